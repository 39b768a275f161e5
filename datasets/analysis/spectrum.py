"""Spectral energy of stored signals: Figure 1 of the FCNet paper, for a selection."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.analysis.dask_arrays import Scheduler, reduce_units
from gaitforge.datasets.selection.selection import EpisodeSelection

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
        selection, field, partial(_of_unit, frequency, n), SpectralEnergy.merge, scheduler
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


def _of_unit(
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
