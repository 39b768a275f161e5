"""Energy of stored signals by frequency: Figure 1 of the FCNet paper on a selection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from datasets.errors import DatasetError

if TYPE_CHECKING:
    from datasets.selection import Selection

BLOCK_WINDOWS = 32


@dataclass(frozen=True, eq=False)
class SpectralEnergy:
    """Energy share of each mode of each channel.

    Attributes:
        frequency_hz: (n // 2 + 1,) from 0 to half the control frequency.
        share: (n // 2 + 1, *shape) float64; sums to 1 over the modes, all 0 for a channel that is
            always 0.
        windows: how many windows of n steps were transformed.
    """

    frequency_hz: np.ndarray
    share: np.ndarray
    windows: int


def spectral_energy(selection: Selection, field: str, n: int) -> SpectralEnergy:
    """Energy density normalised to 100 % over all modes (FCNet, Figure 1, which has n = 256).

    Each episode is cut from its first step into windows of n steps (a remainder shorter than n is
    left out). The energy of mode k is |X_k|² of the raw window, counted twice where the conjugate
    mode n - k is another one, so that by Parseval's theorem the shares are shares of the signal's
    energy. The mean is kept: mode 0 is one of "all modes" of the figure. Energies are summed over
    the windows before the normalisation.

    Args:
        selection: the episodes.
        field: a floating-point field a step.
        n: steps of a window, at least 2.

    Raises:
        DatasetError: unknown or unfit field, n < 2, or no episode with n steps.
    """
    described = selection.store.schema.field(field)
    if described.per != "step" or not described.dtype.startswith("float"):
        raise DatasetError(f"field {field} has no spectrum; choose a floating-point field a step")
    if n < 2:
        raise DatasetError(f"a spectrum needs windows of 2 steps or more, not {n}")
    energy = np.zeros((n // 2 + 1, *described.shape))
    windows = 0
    for unit in selection.units():
        starts, lengths = selection.unit_rows(unit)
        counts = lengths // n
        within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        firsts = np.repeat(starts, counts) + within * n
        if len(firsts):
            energy += _energy(selection.read_unit(field, unit), firsts, n)
            windows += len(firsts)
    if windows == 0:
        longest = int(selection.lengths.max(initial=0))
        raise DatasetError(f"no episode has {n} steps; use n of at most {longest}")
    energy[1 : (n + 1) // 2] *= 2
    total = energy.sum(axis=0)
    share = np.divide(energy, total, out=np.zeros_like(energy), where=total > 0)
    frequency = np.fft.rfftfreq(n, selection.store.schema.control_dt_s)
    return SpectralEnergy(frequency, share, windows)


def _energy(rows: np.ndarray, firsts: np.ndarray, n: int) -> np.ndarray:
    energy = np.zeros((n // 2 + 1, *rows.shape[1:]))
    for start in range(0, len(firsts), BLOCK_WINDOWS):
        index = firsts[start : start + BLOCK_WINDOWS, None] + np.arange(n)
        modes = np.fft.rfft(rows[index].astype(np.float64), axis=1)
        energy += np.square(np.abs(modes)).sum(axis=0)
    return energy
