"""Statistics of every channel: mean, deviation, range, exact quantiles and spectral energy.

Mean, standard deviation and range are computed in blocks and merged.

Exact quantiles are computed of as many channels at a time as fit in memory.

The spectral energy of stored signals is Figure 1 of the FCNet paper, for a selection.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.analysis.lazy_arrays import Scheduler, reduce_units
from gaitforge.datasets.selection.selection import EpisodeSelection

# Mean, standard deviation and range.
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


# Exact quantiles.
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


# Spectral energy.
BLOCK_WINDOWS = 32
LARGEST_WINDOW = 256
"""Steps of the paper's windows."""


@dataclass(frozen=True, eq=False)
class SpectralEnergy:
    """Energy of each mode of each channel, summed over windows of n steps.

    `frequency_hz` (n // 2 + 1,) goes from 0 to half the control frequency; `energy`
    (n // 2 + 1, *shape) float64 has n times the square of the field's unit.
    """

    frequency_hz: np.ndarray
    energy: np.ndarray
    windows: int

    @property
    def share(self) -> np.ndarray:
        """`energy` divided by its sum over modes; 0 for a channel that is always 0."""
        total = self.energy.sum(axis=0)
        return np.divide(self.energy, total, out=np.zeros_like(self.energy), where=total > 0)

    def merge(self, other: "SpectralEnergy") -> "SpectralEnergy":
        """Energy of both sets of windows together; n must be the same."""
        return SpectralEnergy(
            self.frequency_hz, self.energy + other.energy, self.windows + other.windows
        )


def spectral_energy(
    selection: EpisodeSelection, field: str, n: int = 128, scheduler: Scheduler = None
) -> SpectralEnergy:
    """Energy per mode; `share` of it is Figure 1 of the FCNet paper, which has n = 256.

    Each episode is cut from its first step into windows of n steps; a shorter remainder is left
    out. The energy of mode k is |X_k|² of the raw window, doubled if the conjugate mode n - k is
    another one: by Parseval's theorem the shares are shares of the signal's energy. The mean is
    kept as mode 0. Energies are summed over windows before they are normalised. DatasetError: not
    a floating-point step field, n < 2, or no episode with n steps.
    """
    described = selection.schema.field(field)
    if described.per != "step" or not described.dtype.startswith("float"):
        raise DatasetError(f"field {field} has no spectrum; give a floating-point step field")
    if n < 2:
        raise DatasetError(f"a spectrum needs windows of 2 steps or more, not {n}")
    frequency = np.fft.rfftfreq(n, selection.schema.control_dt_s)
    energy = reduce_units(
        selection, field, partial(_energy_of_unit, frequency, n), SpectralEnergy.merge, scheduler
    )
    if energy.windows == 0:
        longest = int(selection.lengths.max(initial=0))
        raise DatasetError(f"no episode has n = {n} steps; n must be at most {longest}")
    return energy


def block_spectra(
    selection: EpisodeSelection, field: str, n: int | None = None, scheduler: Scheduler = None
) -> Iterator[dict[str, Any]]:
    """The spectra of a vector field's named blocks, as JSON values.

    One for the whole field if it has no names, or one for each channel.

    `energy_share` is the mean of a block's channels that are not always 0, and `energy_95_hz` the
    frequency up to which 95 % of it lies. None for n: a power of two, at most 256 and the longest
    episode.

    Raises:
        DatasetError: as `spectral_energy`.
    """
    described = selection.schema.field(field)
    if n is None:
        longest = max(1, int(selection.lengths.max(initial=1)))
        n = min(LARGEST_WINDOW, 1 << (longest.bit_length() - 1))
    energy = spectral_energy(selection, field, n, scheduler)
    blocks = described.slices
    if all(stop - start == 1 for start, stop in blocks.values()):
        blocks = {field: (0, described.shape[0])}
    for name, (start, stop) in blocks.items():
        share = energy.share[:, start:stop].sum(axis=1)
        share /= max(1, np.count_nonzero(energy.energy[:, start:stop].any(axis=0)))
        most = int(np.searchsorted(share.cumsum(), 0.95)) if share.any() else 0
        yield {
            "field": field,
            "block": name,
            "channels": stop - start,
            "window": n,
            "windows": energy.windows,
            "frequency_hz": energy.frequency_hz.tolist(),
            "energy_share": share.tolist(),
            "energy_95_hz": float(energy.frequency_hz[most]),
        }


def _energy_of_unit(
    frequency_hz: np.ndarray, n: int, rows: np.ndarray, lengths: np.ndarray
) -> SpectralEnergy:
    starts = np.cumsum(lengths) - lengths
    counts = lengths // n
    within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    firsts = np.repeat(starts, counts) + within * n
    energy = np.zeros((n // 2 + 1, *rows.shape[1:]))
    for start in range(0, len(firsts), BLOCK_WINDOWS):
        index = firsts[start : start + BLOCK_WINDOWS, None] + np.arange(n)
        energy += mode_energy(rows[index])
    return SpectralEnergy(frequency_hz, energy, len(firsts))


def mode_energy(windows: np.ndarray) -> np.ndarray:
    """(W, n, ...) -> (n // 2 + 1, ...): the energy of each mode, summed over windows.

    Over the modes it sums to n times that of the squares of all steps (Parseval's theorem).
    """
    n = windows.shape[1]
    modes = np.fft.rfft(windows.astype(np.float64), axis=1)
    energy = np.square(np.abs(modes)).sum(axis=0)
    energy[1 : (n + 1) // 2] *= 2
    return energy
