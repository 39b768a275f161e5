"""Numbers of a page: a matrix as int16 differences between rows, deflated, as base64 text.

Layout before deflating, little-endian: rows and columns, uint32; the first row, then the unit of
each column, float64; the low bytes of all differences, then the high ones, column after column.
`page/src/blocks.ts` reads it.
"""

import base64
import struct
import zlib

import numpy as np

POSITION_UNIT_M = 1e-4
ANGLE_UNIT_RAD = 1e-4
"""Units of poses: rounding is at most half a unit, far below what is visible (1 mm, 0.1°)."""
SERIES_LEVELS = 16_000
"""Half the range of a series in units, so that every difference fits."""
_LARGEST = 32_767
_HEAD = struct.Struct("<II")


def encoded(values: np.ndarray, unit: np.ndarray | float) -> str:
    """A finite matrix (R, C) with R >= 1 as text.

    `unit` is above 0, and that of every column, or one for all. Values are rounded to half a unit.
    Where a difference between rows takes more than int16 units, the column's unit grows until it
    fits. The rounding does not add up over the rows.
    """
    values = np.asarray(values, dtype=np.float64)
    rows, columns = values.shape
    jump = np.abs(np.diff(values, axis=0)).max(axis=0, initial=0.0)
    # One unit of slack: both ends of a difference are rounded.
    units = np.maximum(np.broadcast_to(unit, columns), jump / (_LARGEST - 1))
    levels = np.rint((values - values[0]) / units).astype(np.int64)
    differences = np.diff(levels, axis=0).T.astype("<i2")
    pairs = np.frombuffer(differences.tobytes(), np.uint8).reshape(-1, 2)
    head = _HEAD.pack(rows, columns) + np.stack([values[0], units]).astype("<f8").tobytes()
    packed = zlib.compress(head + pairs[:, 0].tobytes() + pairs[:, 1].tobytes(), 9)
    return base64.b64encode(packed).decode()


def decoded(text: str) -> np.ndarray:
    """The matrix (R, C) float64 of a text that `encoded` wrote."""
    raw = zlib.decompress(base64.b64decode(text))
    rows, columns = _HEAD.unpack_from(raw)
    first, units = np.frombuffer(raw, "<f8", 2 * columns, _HEAD.size).reshape(2, columns)
    low, high = np.frombuffer(raw, np.uint8, offset=_HEAD.size + 16 * columns).reshape(2, -1)
    pairs = np.ascontiguousarray(np.stack([low, high], axis=1))
    differences = pairs.view("<i2").reshape(columns, rows - 1).T
    levels = np.concatenate([np.zeros((1, columns), np.int64), np.cumsum(differences, axis=0)])
    return first + units * levels


def encoded_series(values: np.ndarray) -> str:
    """Curves (T, C) as text, each to 1/16,000 of its largest value; not finite becomes 0."""
    values = np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(values).max(axis=0, initial=0.0)
    return encoded(values, np.where(largest > 0, largest / SERIES_LEVELS, 1.0))


def encoded_poses(poses: np.ndarray) -> str:
    """Poses (T, 7 + J) as text: position in m, quaternion wxyz, joint positions in rad.

    A quaternion and its negative are the same rotation; signs are chosen so that it never jumps.
    """
    poses = np.array(poses, dtype=np.float64)
    turned = np.sign((poses[1:, 3:7] * poses[:-1, 3:7]).sum(axis=1))
    poses[1:, 3:7] *= np.cumprod(np.where(turned < 0, -1.0, 1.0))[:, None]
    units = np.full(poses.shape[1], ANGLE_UNIT_RAD)
    units[:3] = POSITION_UNIT_M
    return encoded(poses, units)
