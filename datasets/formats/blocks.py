"""What writers share: reading a selection in blocks, and checks before writing."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gaitforge.datasets.errors import DatasetError, listed
from gaitforge.datasets.formats.sources import pack_episodes, step_bytes
from gaitforge.datasets.selection.selection import Selection, Unit


@dataclass(frozen=True, eq=False)
class Block:
    """Consecutive episodes of a selection, few enough that all their fields fit in memory.

    `first_step` is the number of the block's first step in the selection.
    """

    selection: Selection
    unit: Unit
    first_step: int

    @cached_property
    def lengths(self) -> np.ndarray:
        """(E,) steps of each episode."""
        return self.selection.lengths[self.episodes]

    @cached_property
    def stops(self) -> np.ndarray:
        """(E,) the step after each episode, counted in the block."""
        return np.cumsum(self.lengths)

    @property
    def n_steps(self) -> int:
        """Steps of the block."""
        return int(self.stops[-1])

    @property
    def episodes(self) -> slice:
        """Rows of the selection."""
        return slice(self.unit.first, self.unit.stop)

    @property
    def steps(self) -> slice:
        """Steps of the selection."""
        return slice(self.first_step, self.first_step + self.n_steps)

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Field -> (T, *shape), or (E, *shape) for a field per episode."""
        return {name: self.selection.read_unit(name, self.unit) for name in names}


def blocks(selection: Selection) -> Iterator[Block]:
    """The selection's blocks in order."""
    row_bytes, step = step_bytes(selection.schema.fields), 0
    for unit in selection.units():
        first = unit.first
        for part in pack_episodes(selection.lengths[unit.first : unit.stop], row_bytes):
            block = Block(selection, Unit(unit.part_id, first, first + len(part)), step)
            yield block
            first, step = block.unit.stop, block.steps.stop


def check_fields(selection: Selection, what: str, needed: Sequence[str]) -> None:
    """Refuse a store without the needed fields, or with a reward that is not one number.

    Fields named `final_*` are needed an episode; `what` names the format: "a D4RL file".
    """
    schema, address = selection.schema, selection.store.address
    held = {(each.name, each.per) for each in schema.fields}
    per = {name: "episode" if name.startswith("final_") else "step" for name in needed}
    missing = [name for name in needed if (name, per[name]) not in held]
    if missing:
        raise DatasetError(
            f"{what} needs the fields {listed(needed)}; {address} lacks {listed(missing)}"
        )
    if "reward" in needed and schema.field("reward").shape:
        raise DatasetError(f"{what} needs one reward a step")


def check_room(selection: Selection, destination: Path, advice: str = "") -> None:
    """Refuse a disk without room for the selection's uncompressed values.

    HDF5 can crash the process when the disk fills up. `advice` ends the message.
    """
    needed = selection.steps * step_bytes(selection.schema.fields)
    free = shutil.disk_usage(next(each for each in destination.parents if each.is_dir())).free
    if free < needed:
        sizes = f"it may take {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free"
        raise DatasetError(f"cannot write {destination}: {sizes}; export to another disk{advice}")
