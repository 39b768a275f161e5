"""A selection as a D4RL file; see ``d4rl``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np

from datasets.errors import DatasetError, listed
from datasets.formats.d4rl.schema import (
    NEXT,
    NOTED_FIELDS,
    NOTES,
    OBSERVATIONS,
    TERMINALS,
    TIMEOUTS,
    key_of,
)
from datasets.formats.hdf5 import dataset_at, write_notes
from datasets.formats.interface import Advance, Carried
from datasets.formats.sources import bounded_units, check_room
from datasets.schema import Schema
from datasets.selection.selection import Selection

NEEDED = ("obs", "action", "reward")
COMPRESSIONS = ("gzip", "lzf", "none")


@dataclass(frozen=True)
class D4rlExportOptions:
    """How a file is written.

    Attributes:
        compression: "gzip" as D4RL's own files, "lzf" or "none".
        notes: keep the schema and the catalog in ``metadata/gaitforge``, so that an import gives
            back the same store; other readers may ignore them.
    """

    compression: str = "gzip"
    notes: bool = True


class D4rlExporter:
    """See ``interface.Exporter``."""

    Options = D4rlExportOptions
    reading: ClassVar[Mapping[str, Any]] = {"keep_next": True}

    def __init__(self, options: D4rlExportOptions) -> None:
        if options.compression not in COMPRESSIONS:
            raise DatasetError(f"option compression must be one of {listed(COMPRESSIONS)}")
        self._options = options

    def check(self, selection: Selection, destination: Path) -> None:
        """See ``interface.Exporter``."""
        schema = selection.store.schema
        if missing := [name for name in NEEDED if name not in schema.names("step")]:
            raise DatasetError(
                f"a D4RL file needs the fields {listed(NEEDED)} a step; "
                f"{selection.store.address} lacks {listed(missing)}"
            )
        if schema.field("reward").shape:
            raise DatasetError("a D4RL file needs one reward a step")
        if truths := [name for name in ("obs", "reward") if schema.field(name).dtype == "bool"]:
            raise DatasetError(
                f"a D4RL file needs numbers for {listed(truths)}; in {selection.store.address} the "
                "dtype is bool"
            )
        keys = [key_of(name) for name in schema.names("step")]
        if len(set(keys)) < len(keys):
            raise DatasetError(f"two fields would have one key in a D4RL file: {listed(keys)}")
        check_room(selection, destination)

    def write(self, selection: Selection, temporary: Path, advance: Advance) -> Carried:
        """See ``interface.Exporter``."""
        with h5py.File(temporary, "w") as file:
            self._write_steps(file, selection, advance)
            cut_off = self._write_flags(file, selection)
            if _final_obs_in_next(selection.store.schema):
                self._write_following(file, selection)
            if self._options.notes:
                write_notes(file.create_group(NOTES), selection)
                _write_episode_fields(file, selection)
        return self._carried(selection, cut_off)

    def _create(self, file: h5py.File, key: str, rows: int, like: np.ndarray) -> h5py.Dataset:
        compression = None if self._options.compression == "none" else self._options.compression
        return file.create_dataset(
            key, (rows, *like.shape[1:]), like.dtype, compression=compression
        )

    def _write_steps(self, file: h5py.File, selection: Selection, advance: Advance) -> None:
        names = selection.store.schema.names("step")
        row = 0
        for unit in bounded_units(selection):
            count = 0
            for name in names:
                values = selection.read_unit(name, unit)
                key, count = key_of(name), len(values)
                if key not in file:
                    self._create(file, key, selection.steps, values)
                dataset_at(file, key)[row : row + count] = values
            row += count
            advance(count)

    def _write_flags(self, file: h5py.File, selection: Selection) -> int:
        """Mark where episodes end; returns how many cut-off ones look like time-outs."""
        table = selection.episodes()
        terminated = table.column("terminated").to_numpy()
        truncated = table.column("truncated").to_numpy()
        cut_off = ~terminated & ~truncated
        cut_off[-1] = False  # the end of the file ends it
        flags = {TERMINALS: terminated, TIMEOUTS: truncated | cut_off}
        for key in flags:
            self._create(file, key, selection.steps, np.zeros(0, bool))
        row = 0
        for unit in bounded_units(selection):
            lengths = selection.unit_rows(unit)[1]
            steps, last = int(lengths.sum()), np.cumsum(lengths) - 1
            for key, ends in flags.items():
                marks = np.zeros(steps, bool)
                marks[last] = ends[unit.first : unit.stop]
                dataset_at(file, key)[row : row + steps] = marks
            row += steps
        return int(cut_off.sum())

    def _write_following(self, file: h5py.File, selection: Selection) -> None:
        """Each row's next observation: the following row's, or the episode's final one."""
        obs, row = dataset_at(file, OBSERVATIONS), 0
        for unit in bounded_units(selection):
            lengths = selection.unit_rows(unit)[1]
            steps = int(lengths.sum())
            following = np.empty((steps, *obs.shape[1:]), obs.dtype)
            following[:-1] = obs[row + 1 : row + steps]
            following[np.cumsum(lengths) - 1] = selection.read_unit("final_obs", unit)
            if NEXT not in file:
                self._create(file, NEXT, selection.steps, following)
            dataset_at(file, NEXT)[row : row + steps] = following
            row += steps

    def _carried(self, selection: Selection, cut_off: int) -> Carried:
        schema = selection.store.schema
        kept = [f"{name} -> {key_of(name)}" for name in schema.names("step")]
        if _final_obs_in_next(schema):
            kept.append(f"final_obs -> {NEXT}")
        other, notes = _other_episode_fields(schema), []
        left = [f"{name}: D4RL has no place for a field an episode" for name in other]
        if self._options.notes:
            kept += [f"{name} -> {NOTED_FIELDS}" for name in other]
            kept.append(f"the catalog and schema -> {NOTES}")
            left = []
        else:
            left += ["the catalog: D4RL has no place for it", "the schema's units and names"]
        if cut_off:
            notes.append(
                f"{cut_off} cut-off episodes are marked by a time-out, D4RL's only mark for an end "
                "that is not terminal"
            )
        return Carried(tuple(kept), tuple(left), tuple(notes))


def _final_obs_in_next(schema: Schema) -> bool:
    """Whether the next observations hold the final ones: they must be alike, and not be stored."""
    if "final_obs" not in schema.names("episode") or "next_obs" in schema.names("step"):
        return False
    final, obs = schema.field("final_obs"), schema.field("obs")
    return (final.shape, final.dtype) == (obs.shape, obs.dtype)


def _other_episode_fields(schema: Schema) -> list[str]:
    held = ["final_obs"] if _final_obs_in_next(schema) else []
    return [name for name in schema.names("episode") if name not in held]


def _write_episode_fields(file: h5py.File, selection: Selection) -> None:
    """Keep, among the notes, the fields an episode that the layout has no place for."""
    schema, episode = selection.store.schema, 0
    names = _other_episode_fields(schema)
    for name in names:
        field = schema.field(name)
        shape = (len(selection), *field.shape)
        file.create_dataset(f"{NOTED_FIELDS}/{name}", shape, field.dtype)
    for unit in bounded_units(selection) if names else ():
        count = len(selection.unit_rows(unit)[1])
        for name in names:
            values = selection.read_unit(name, unit)
            dataset_at(file, f"{NOTED_FIELDS}/{name}")[episode : episode + count] = values
        episode += count
