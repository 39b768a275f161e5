"""Statistics of a LeRobot dataset: of all frames, and of the frames of each episode.

LeRobot averages the quantiles of episodes' histograms; these are exact.
"""

from collections.abc import Iterable
from functools import reduce

import numpy as np

from gaitforge.datasets.analysis.quantiles import channel_quantiles, row_quantiles
from gaitforge.datasets.analysis.statistics import ChannelStatistics, channel_statistics
from gaitforge.datasets.selection.selection import EpisodeSelection

QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_LEVELS = np.array(list(QUANTILES.values()))
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)

Stats = dict[str, np.ndarray]
"""Name -> (*shape), (1,) for a scalar; the count is (1,)."""


def field_stats(selection: EpisodeSelection, field: str) -> Stats:
    """Statistics of a field over a selection's rows."""
    statistics = channel_statistics(selection, field, "threads")
    quantiles = channel_quantiles(selection, field, _LEVELS.tolist(), "threads")
    return _stats(statistics, quantiles)


def scalar_stats(blocks: Iterable[np.ndarray]) -> Stats:
    """Statistics of scalars, whose rows come in blocks."""
    rows = list(blocks)
    statistics = reduce(ChannelStatistics.merge, map(ChannelStatistics.of, rows))
    return _stats(statistics, row_quantiles(np.concatenate(rows), _LEVELS))


def episode_stats(rows: np.ndarray, lengths: np.ndarray) -> Stats:
    """Statistics of consecutive episodes of `rows` (T, *shape).

    Gives name -> (E, *shape), or (E, 1) for scalars and for the count. Episodes of one length are
    computed together.
    """
    shape = rows.shape[1:] or (1,)
    stats: Stats = {name: np.empty((len(lengths), *shape)) for name in NAMES}
    stats["count"] = lengths.reshape(-1, 1).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths).tolist():
        episodes = np.flatnonzero(lengths == length)
        of_each = rows[starts[episodes, None] + np.arange(length)]
        for name, values in _along_second(of_each.reshape(len(episodes), length, *shape)).items():
            stats[name][episodes] = values
    return stats


def _along_second(rows: np.ndarray) -> Stats:
    """Name -> (E, *shape) over T of rows (E, T, *shape), without the count."""
    mean = rows.mean(axis=1, dtype=np.float64)
    spread = np.square(rows - mean[:, None]).mean(axis=1)
    stats = {"min": rows.min(axis=1), "max": rows.max(axis=1), "mean": mean, "std": np.sqrt(spread)}
    return stats | dict(
        zip(QUANTILES, row_quantiles(np.moveaxis(rows, 1, 0), _LEVELS), strict=True)
    )


def _stats(channels: ChannelStatistics, quantiles: np.ndarray) -> Stats:
    plain = {"min": channels.min, "max": channels.max, "mean": channels.mean, "std": channels.std}
    plain |= dict(zip(QUANTILES, quantiles, strict=True))
    shaped = {name: np.atleast_1d(np.asarray(value)) for name, value in plain.items()}
    shaped["count"] = np.array([channels.count], np.int64)
    return {name: shaped[name] for name in NAMES}
