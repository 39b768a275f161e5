"""Exact quantiles of every channel, of as many channels at a time as fit in memory."""

from collections.abc import Sequence
from functools import partial

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.analysis.dask_arrays import Scheduler, reduce_units
from gaitforge.datasets.selection.selection import EpisodeSelection

HELD_BYTES = 1 << 29
"""Most bytes of the channels that are read together; at least one channel is."""

DEFAULT_QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


def channel_quantiles(
    selection: EpisodeSelection,
    field: str,
    quantiles: Sequence[float] = DEFAULT_QUANTILES,
    scheduler: Scheduler = None,
) -> np.ndarray:
    """(Q, *shape) float64 quantiles of every channel, equal to `numpy.quantile` of all rows.

    Rows are read once for every `HELD_BYTES` of the field. DatasetError: a quantile outside 0..1,
    an empty selection, or an unknown field.
    """
    levels = np.asarray(quantiles, np.float64)
    if levels.ndim != 1 or len(levels) == 0 or not ((levels >= 0) & (levels <= 1)).all():
        raise DatasetError(f"quantiles must be one or more numbers in 0..1, not {quantiles}")
    described = selection.schema.field(field)
    rows = selection.steps if described.per == "step" else len(selection)
    channels = int(np.prod(described.shape, dtype=np.int64))
    at_once = max(1, HELD_BYTES * channels // max(1, rows * described.row_bytes))
    blocks = []
    for first in range(0, channels, at_once):
        measure = partial(_columns, first, first + at_once)
        together = reduce_units(selection, field, measure, _joined, scheduler)
        blocks.append(row_quantiles(together, levels))
    return np.concatenate(blocks, axis=1).reshape(len(levels), *described.shape)


def row_quantiles(rows: np.ndarray, quantiles: np.ndarray) -> np.ndarray:
    """(Q, *shape) float64 quantiles (Q,) of the rows (N, *shape).

    Order statistics are exact; between two of them the interpolation is linear in float64 (method 7
    of Hyndman and Fan 1996).
    """
    position = quantiles * (len(rows) - 1)
    below = np.floor(position).astype(np.int64)
    above = np.minimum(below + 1, len(rows) - 1)
    ordered = np.partition(rows, np.union1d(below, above), axis=0)
    low, high = (ordered[ranks].astype(np.float64) for ranks in (below, above))
    share = (position - below).reshape(-1, *[1] * (rows.ndim - 1))
    gap = high - low
    return np.where(share < 0.5, low + gap * share, high - gap * (1 - share))


def _columns(first: int, stop: int, rows: np.ndarray, _lengths: np.ndarray) -> np.ndarray:
    return rows.reshape(len(rows), -1)[:, first:stop].copy()


def _joined(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    return np.concatenate([first, second])
