"""Logs of a robot's sensors: rows of q, dq, quaternion and gyro with their times."""

import io
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO
from zipfile import BadZipFile

import numpy as np

from gaitforge.collectors.robots.robot import N_JOINTS
from gaitforge.common.errors import failures, listed

WIDTHS = {"time_s": 1, "q": N_JOINTS, "dq": N_JOINTS, "quat": 4, "gyro": 3}
"""Name of each quantity -> its numbers in a row, in the order of a row without a header."""
ROW = sum(WIDTHS.values())
MIN_RATE_HZ = 20.0
MIN_DURATION_S = 5.0
LARGEST = 1e9
"""Size from which a number is no sensor's; times may be seconds since 1970."""
_MOST_BYTES = 200_000_000
"""Of a log: a minute at 1,000 Hz has 40 million."""
_PARTS = {"quat": "wxyz", "gyro": "xyz"}
_TIMES = ("time_s", "time", "t", "t_s")


@dataclass(frozen=True)
class SensorLog:
    """What a robot's program reads from its sensors, T rows, as it reads it.

    Attributes:
        time_s: (T,) s, ascending.
        q, dq: (T, 12) joint angles and velocities, which should be in the policy's order, in rad
            and rad/s.
        quat: (T, 4), which should be w, x, y, z from the trunk's frame to the world's.
        gyro: (T, 3), which should be rad/s in the trunk's frame: x forward, y left, z up.
    """

    time_s: np.ndarray
    q: np.ndarray
    dq: np.ndarray
    quat: np.ndarray
    gyro: np.ndarray

    @property
    def rate_hz(self) -> float:
        """Rows a second, on average."""
        return (len(self.time_s) - 1) / float(self.time_s[-1] - self.time_s[0])


def read_log(path: Path, joint_names: Sequence[str]) -> SensorLog:
    """The log in a CSV or .npz file; ValueError for one that cannot be used.

    A CSV file begins with a header: time_s, q_0 … q_11, dq_0 … dq_11, quat_w, quat_x, quat_y,
    quat_z, gyro_x, gyro_y, gyro_z. Columns may be in any order, and joints may be named
    (q_FL_hip_joint). An .npz file has the arrays time_s, q, dq, quat and gyro.
    """
    if path.suffix == ".npz":
        return checked_log(_from_npz(path), str(path))
    with failures(f"{path}: it cannot be read", OSError, UnicodeDecodeError, error=ValueError):
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        _check_size(len(content), path)
        lines = content.decode("utf-8-sig").splitlines()
    rows = list(parsed_rows(lines, joint_names, str(path)))
    return log_of_rows(rows, str(path))


def _check_size(size: int, path: Path) -> None:
    if size > _MOST_BYTES:
        raise ValueError(
            f"{path}: more than {_MOST_BYTES // 1_000_000} MB; a check needs half a minute of rows"
        )


def log_of_rows(rows: Sequence[np.ndarray], where: str) -> SensorLog:
    """The log of rows of `ROW` numbers; ValueError for one that cannot be used."""
    table = np.array(rows, dtype=np.float64).reshape(-1, ROW)
    parts = np.split(table, np.cumsum(list(WIDTHS.values()))[:-1], axis=1)
    arrays = dict(zip(WIDTHS, parts, strict=True))
    arrays["time_s"] = arrays["time_s"][:, 0]
    return checked_log(arrays, where)


def checked_log(arrays: dict[str, np.ndarray], where: str) -> SensorLog:
    """The log of arrays by name; ValueError for other shapes, gaps in numbers or too few rows."""
    time_s = np.atleast_1d(arrays["time_s"])
    if len(time_s) < 2:
        raise ValueError(f"{where}: {len(time_s)} rows; a check needs some seconds of rows")
    for name, width in WIDTHS.items():
        expected = (len(time_s),) if name == "time_s" else (len(time_s), width)
        if arrays[name].shape != expected:
            raise ValueError(f"{where}: {name} has the shape {arrays[name].shape}, not {expected}")
        rows = arrays[name].reshape(len(time_s), -1)
        for wrong, words in (
            (~np.isfinite(rows), "is not finite"),
            (np.abs(rows) > (1e12 if name == "time_s" else LARGEST), "is no sensor's number"),
        ):
            if wrong.any():
                row = int(np.argmax(wrong.any(axis=1))) + 1
                raise ValueError(f"{where}: row {row}: {name} {words}")
    if (np.diff(time_s) < 0).any():
        raise ValueError(f"{where}: time_s does not ascend")
    log = SensorLog(**arrays)
    duration = time_s[-1] - time_s[0]
    if duration <= 0 or log.rate_hz < MIN_RATE_HZ:
        raise ValueError(
            f"{where}: fewer than {MIN_RATE_HZ:g} rows a second by time_s, which is in seconds"
        )
    if duration < MIN_DURATION_S:
        raise ValueError(
            f"{where}: {duration:.1f} s of rows by time_s; a check needs {MIN_DURATION_S:g} s "
            "at least, better 30"
        )
    return log


def _from_npz(path: Path) -> dict[str, np.ndarray]:
    kinds = (ValueError, TypeError, OSError, EOFError, BadZipFile, zlib.error)
    with (
        failures(f"{path}: it cannot be read", *kinds, error=ValueError),
        np.load(path, allow_pickle=False) as archive,
    ):
        _check_size(sum(member.file_size for member in archive.zip.infolist()), path)
        missing = [name for name in WIDTHS if name not in archive.files]
        arrays = {name: np.asarray(archive[name]) for name in WIDTHS if name not in missing}
    if missing:
        raise ValueError(f"{path}: it lacks {listed(missing)}; needed: {listed(WIDTHS)}")
    for name, array in arrays.items():
        if array.dtype.kind not in "fiu":
            raise ValueError(f"{path}: {name} holds no numbers")
    return {name: np.asarray(array, dtype=np.float64) for name, array in arrays.items()}


def columns(joint_names: Sequence[str]) -> list[tuple[str, ...]]:
    """Names that each column of a row may have in a header."""
    names: list[tuple[str, ...]] = [_TIMES]
    for kind in ("q", "dq"):
        names += [(f"{kind}_{k}", f"{kind}_{joint}") for k, joint in enumerate(joint_names)]
    for kind, parts in _PARTS.items():
        names += [(f"{kind}_{part}",) for part in parts]
    return names


def parsed_rows(
    lines: Iterable[str], joint_names: Sequence[str], where: str, needs_header: bool = True
) -> Iterator[np.ndarray]:
    """Rows (ROW,) of CSV lines in the order of `WIDTHS`; ValueError that names the line.

    Without `needs_header` the first line may be a row; then each has `ROW` numbers in that order.
    """
    order: list[int] | None = None
    for number, line in enumerate(lines, 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        words = [word.strip() for word in text.split(",")]
        if order is None:
            order = _header(words, joint_names)
            if order is not None:
                continue
            if needs_header or len(words) != ROW:
                missing = _missing(words, joint_names)
                raise ValueError(f"{where}: its header lacks {listed(missing, 8)}")
            order = list(range(ROW))
        try:
            values = np.array([float(words[k]) for k in order])
        except (ValueError, IndexError):
            raise ValueError(f"{where}: line {number} is no row of numbers") from None
        yield values


def _header(words: Sequence[str], joint_names: Sequence[str]) -> list[int] | None:
    """For each number of a row, its place in a line; None if this is no whole header."""
    places = {word: place for place, word in enumerate(words)}
    order = []
    for names in columns(joint_names):
        found = [places[name] for name in names if name in places]
        if not found:
            return None
        order.append(found[0])
    return order


def _missing(words: Sequence[str], joint_names: Sequence[str]) -> list[str]:
    return [names[0] for names in columns(joint_names) if not set(names) & set(words)]


def read_live(
    stream: TextIO,
    joint_names: Sequence[str],
    told: Callable[[Sequence[np.ndarray]], str],
    every_s: float = 1.0,
) -> SensorLog:
    """The log of rows that arrive on a stream until it ends or Ctrl-C.

    Args:
        told: what to say of the rows so far, in a line on standard error, after each `every_s` of
            their time.
    """
    rows: list[np.ndarray] = []
    next_s = -np.inf
    try:
        for row in parsed_rows(stream, joint_names, "standard input", needs_header=False):
            rows.append(row)
            if row[0] >= next_s:
                next_s = row[0] + every_s
                print(f"\r{told(rows):<78}", end="", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        pass  # the usual end of live rows
    if rows:
        print(file=sys.stderr)
    return log_of_rows(rows, "standard input")


def to_csv(log: SensorLog) -> str:
    """A log as the text of a CSV file."""
    buffer = io.StringIO()
    names = [names[0] for names in columns([str(k) for k in range(N_JOINTS)])]
    table = np.column_stack([log.time_s, log.q, log.dq, log.quat, log.gyro])
    np.savetxt(buffer, table, "%.9g", ",", header=",".join(names), comments="")
    return buffer.getvalue()
