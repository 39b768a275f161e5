"""Energy by frequency: Figure 1 of the FCNet paper (Tan et al. 2024)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.statistics import block_spectra, mode_energy
from gaitforge.flows.progress import Advance
from gaitforge.learners.models.fcnet import paper_modes
from gaitforge.plugins.papers.measures.interface import Measure, Point, Series

LOWEST = "lowest modes"
OTHERS = "all other modes"
ACCELERATION = "constant angular acceleration"
HARMONIC = "simple harmonic motion"


@dataclass(frozen=True)
class Spectra(Measure):
    """Share of a signal's energy in the modes that FCNet keeps, and in all others.

    Section 4.3 of the paper keeps min(2.5 ln n, n // 2 + 1) of n // 2 + 1 modes. The mean of a
    window is the lowest one.

    Attributes:
        n: steps of a window; for stores with shorter episodes the highest power of two that fits.
        field: of stores, a step field.
        blocks: its named parts, those of them that a store has; all of a store that has none.
        skill: of the episodes, in stores that tell it; "" for all.
    """

    title: ClassVar[str] = "Share of the energy"
    unit: ClassVar[str] = "%"
    axes: ClassVar[tuple[str, ...]] = ("n",)
    less_is_better: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    reads_stores: ClassVar[bool] = True

    n: tuple[int, ...] = (256,)
    field: str = "obs"
    blocks: tuple[str, ...] = ("base_ang_vel_body", "joint_pos")
    skill: str = "run"

    def points(self, stores: Sequence[str]) -> Iterator[Point]:
        """The two synthetic motions, and each block of each store, at each n."""
        if not self.n or min(self.n) < 2:
            raise ValueError(f"n must be window lengths of 2 steps or more, got {list(self.n)}")
        for name in (ACCELERATION, HARMONIC):
            yield from ((name, n) for n in self.n)
        names = [Path(store).stem for store in stores]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two stores are named {twice[0]}; their names must differ")
        for store in stores:
            selection = self._selection(store)
            longest = int(selection.lengths.max(initial=0))
            fitting = (n if n <= longest else 1 << max(1, longest).bit_length() - 1 for n in self.n)
            for n in dict.fromkeys(fitting):
                yield from ((_panel(store, block), n) for block in self._blocks(selection))

    def series(
        self, point: Point, repeats: int, stores: Sequence[str], advance: Advance
    ) -> Iterator[Series]:
        """The lowest modes and the others; a repeat is a random motion, or a part of episodes."""
        name = point[0]
        n = int(point[1] or 0)
        if name in (ACCELERATION, HARMONIC):
            spectra = [_motion(name, n, seed) for seed in range(repeats)]
        else:
            spectra = next(
                self._recorded(selection, block, n, repeats)
                for selection, store in ((self._selection(store), store) for store in stores)
                for block in self._blocks(selection)
                if name == _panel(store, block)
            )
        shares = np.array([entry["energy_share"] for entry in spectra])
        advance(repeats + 1, name)
        kept = paper_modes(n)
        low = shares[:, :kept].sum(axis=1)
        spectrum = {**spectra[0], "energy_share": shares.mean(axis=0).tolist()}
        up_to = spectrum["frequency_hz"][kept - 1]
        facts = {"modes": kept, "of modes": n // 2 + 1, "up to, Hz": up_to}
        yield Series(LOWEST, (100 * low).tolist(), facts, spectrum)
        yield Series(OTHERS, (100 - 100 * low).tolist(), {"modes": n // 2 + 1 - kept})

    def _selection(self, store: str) -> Selection:
        selection = open_store(store).select()
        columns = selection.episodes().column_names
        return (
            selection.select(skill=self.skill) if self.skill and "skill" in columns else selection
        )

    def _blocks(self, selection: Selection) -> list[str]:
        slices = selection.schema.field(self.field).slices
        return [name for name in self.blocks if name in slices] or list(slices) or [self.field]

    def _recorded(
        self, selection: Selection, block: str, n: int, parts: int
    ) -> list[dict[str, Any]]:
        """The block's spectrum in each of so many parts of the episodes, fewer if there are few."""
        rows = selection.rows[selection.lengths >= n]
        spectra = []
        for part in range(min(parts, len(rows))):
            episodes = selection.with_rows(rows[part::parts])
            by_block = {
                spectrum["block"]: spectrum for spectrum in block_spectra(episodes, self.field, n)
            }
            # A field whose names are single channels has one spectrum, of them all.
            spectrum = by_block.get(block) or next(iter(by_block.values()))
            spectra.append({name: spectrum[name] for name in ("frequency_hz", "energy_share")})
        return spectra


def _panel(store: str, block: str) -> str:
    return f"{Path(store).stem} {block}"


def _motion(name: str, n: int, seed: int) -> dict[str, Any]:
    """The spectrum of a random motion at the legged robots' control rate.

    The formulas are those of Section 2.2; the paper gives no constants. Here: angles and rates up
    to 1 rad and 1 rad/s, accelerations of 0.5 to 2 rad/s²; 0.5 to 2 Hz.
    """
    rng = np.random.default_rng(seed)
    time_s = CONTROL_DT_S * np.arange(n)
    start, rate = rng.uniform(-1, 1, 2)
    if name == ACCELERATION:
        angle = start + rate * time_s + rng.uniform(0.5, 2) * time_s**2 / 2
    else:
        angle = np.sin(2 * np.pi * rng.uniform(0.5, 2) * time_s + np.pi * start)
    energy = mode_energy(angle[None])
    frequency = np.fft.rfftfreq(n, CONTROL_DT_S).tolist()
    return {"frequency_hz": frequency, "energy_share": (energy / energy.sum()).tolist()}
