"""Mean, standard deviation and range of every channel, computed in blocks and merged."""

from dataclasses import dataclass
from functools import reduce

import numpy as np

from gaitforge.datasets.analysis.dask_arrays import Scheduler, reduce_units
from gaitforge.datasets.selection.selection import EpisodeSelection

BLOCK_ROWS = 1 << 12


@dataclass(frozen=True, eq=False)
class ChannelStatistics:
    """Statistics over `count` rows, each array of the field's shape in float64.

    `squares` is the sum of squared differences from the mean.
    """

    count: int
    mean: np.ndarray
    squares: np.ndarray
    min: np.ndarray
    max: np.ndarray

    @property
    def std(self) -> np.ndarray:
        """Population standard deviation, sqrt(squares / count)."""
        return np.sqrt(self.squares / self.count)

    @classmethod
    def of(cls, rows: np.ndarray) -> "ChannelStatistics":
        """Statistics of (N, *shape) rows, N at least 1."""
        values = rows.astype(np.float64)
        mean = values.mean(axis=0)
        squares = np.square(values - mean).sum(axis=0)
        return cls(len(rows), mean, squares, values.min(axis=0), values.max(axis=0))

    def scaled(self, factors: np.ndarray) -> "ChannelStatistics":
        """Statistics of the rows times `factors`, an array of the field's shape."""
        low, high = np.sort([self.min * factors, self.max * factors], axis=0)
        return ChannelStatistics(
            self.count, self.mean * factors, self.squares * factors**2, low, high
        )

    def merge(self, other: "ChannelStatistics") -> "ChannelStatistics":
        """Statistics of both sets of rows together.

        Pairwise update of Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
        Computing Sample Variances" (1979), equations 1.5a and 1.5b.
        """
        count = self.count + other.count
        gap = other.mean - self.mean
        mean = self.mean + gap * (other.count / count)
        between = np.square(gap) * (self.count * other.count / count)
        squares = self.squares + other.squares + between
        low = np.minimum(self.min, other.min)
        high = np.maximum(self.max, other.max)
        return ChannelStatistics(count, mean, squares, low, high)


def channel_statistics(
    selection: EpisodeSelection, field: str, scheduler: Scheduler = None
) -> ChannelStatistics:
    """Statistics of one field over the selection's rows; errors as in `reduce_units`."""
    return reduce_units(selection, field, _of_unit, ChannelStatistics.merge, scheduler)


def _of_unit(rows: np.ndarray, _lengths: np.ndarray) -> ChannelStatistics:
    blocks = (
        ChannelStatistics.of(rows[start : start + BLOCK_ROWS])
        for start in range(0, len(rows), BLOCK_ROWS)
    )
    return reduce(ChannelStatistics.merge, blocks)
