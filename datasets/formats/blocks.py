"""Helpers of the writers: reading a selection in blocks, and checks before writing."""

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.sources import Span, cut_spans, field_bytes
from gaitforge.datasets.selection.selection import EpisodeSelection, Unit


@dataclass(frozen=True, eq=False)
class Block(Span):
    """Consecutive episodes of a selection, few enough that all their fields fit in memory."""

    selection: EpisodeSelection
    part_id: str

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Field -> (T, *shape), or (E, *shape) for a field per episode."""
        unit = Unit(self.part_id, self.episodes.start, self.episodes.stop)
        return {name: self.selection.read_unit(name, unit) for name in names}


def blocks(selection: EpisodeSelection) -> Iterator[Block]:
    """The selection's blocks in order."""
    fields = selection.schema.fields
    step = 0
    for unit in selection.units():
        for span in cut_spans(selection.lengths[unit.first : unit.stop], fields):
            first = unit.first + span.first
            yield Block(span.lengths, first, step + span.first_step, selection, unit.part_id)
        step += int(selection.lengths[unit.first : unit.stop].sum())


def check_fields(selection: EpisodeSelection, what: str, needed: Sequence[str]) -> None:
    """Refuse a store without the needed fields, or with a reward that is not one number.

    Fields named `final_*` are needed an episode; `what` names the format: "a D4RL file".
    """
    schema = selection.schema
    address = selection.store.address
    held = {(field.name, field.per) for field in schema.fields}
    per = {name: "episode" if name.startswith("final_") else "step" for name in needed}
    missing = [name for name in needed if (name, per[name]) not in held]
    if missing:
        raise DatasetError(
            f"{what} needs the fields {listed(needed)}; {address} lacks {listed(missing)}"
        )
    if "reward" in needed and schema.field("reward").shape:
        raise DatasetError(f"{what} needs one reward a step")


def check_room(selection: EpisodeSelection, destination: Path, advice: str = "") -> None:
    """Refuse a disk without room for the selection's uncompressed values.

    HDF5 can crash the process when the disk fills up. `advice` ends the message.
    """
    needed = field_bytes(selection.schema.fields, selection.steps)
    free = shutil.disk_usage(next(parent for parent in destination.parents if parent.is_dir())).free
    if free < needed:
        sizes = f"it may take {needed / 1e6:,.1f} MB and {free / 1e6:,.1f} MB are free"
        raise DatasetError(f"cannot write {destination}: {sizes}; export to another disk{advice}")
