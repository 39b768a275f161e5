"""Export of a selection as a D4RL file; `d4rl_reader.py` describes the layout."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import h5py
import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats import hdf5
from gaitforge.datasets.formats.protocol import Advance, Carried, Exporter, ExportOptions
from gaitforge.datasets.formats.sources import blocks, check_fields, check_room
from gaitforge.datasets.formats.transfer.imported import imported_metadata
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.storage.about import read_about
from gaitforge.plugins.gym.d4rl import d4rl_layout as layout


@dataclass(frozen=True)
class D4rlExportOptions(ExportOptions):
    """How a file is written.

    Attributes:
        compression: "gzip" as in D4RL's own files, "lzf" or "none".
        notes: embed the schema and the catalog in `metadata/gaitforge`, so that an import gives
            back the same store; other readers ignore them.
        actions: see `ExportOptions`.
    """

    compression: Annotated[str, ("gzip", "lzf", "none")] = "gzip"
    notes: bool = True


class D4rlExporter(Exporter):
    """See `protocol.Exporter`."""

    Options = D4rlExportOptions
    reading: ClassVar = {"keep_next": True}

    def check(self, selection: EpisodeSelection, destination: Path) -> None:
        """See `protocol.Exporter`."""
        check_fields(selection, "a D4RL file", ("obs", "action", "reward"))
        schema = selection.schema
        if truths := [name for name in ("obs", "reward") if schema.field(name).dtype == "bool"]:
            problem = f"in {selection.store.address} the dtype is bool"
            raise DatasetError(f"a D4RL file needs numbers for {listed(truths)}; {problem}")
        keys = sorted(layout.keys_of(schema).values())
        if hdf5.keys_clash(keys):
            problem = "would have one key in a D4RL file, or one in that of the other"
            raise DatasetError(f"two fields {problem}: {listed(keys)}")
        check_room(selection, destination)

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """See `protocol.Exporter`."""
        schema, (ends, cut_off) = selection.schema, _end_flags(selection)
        keys = layout.keys_of(schema)
        metadata = imported_metadata(selection, "d4rl")
        final, extras = _episode_fields(schema)
        extras = extras if self._options.notes else []
        # Only this process knows the file, and not every file system has locks.
        with h5py.File(temporary, "w", locking=False) as file:
            file.attrs.update(read_about(selection.store).texts)
            for block in blocks(selection):
                values = block.read(schema.names("step"))
                for name, rows in values.items():
                    self._put(file, keys[name], rows, block.steps, selection.steps)
                for key, flags in ends.items():
                    marks = np.zeros(block.n_steps, bool)
                    marks[block.stops - 1] = flags[block.episodes]
                    self._put(file, key, marks, block.steps, selection.steps)
                if final:
                    following = np.roll(values["obs"], -1, axis=0)
                    following[block.stops - 1] = block.read(["final_obs"])["final_obs"]
                    self._put(file, layout.NEXT, following, block.steps, selection.steps)
                for name, rows in block.read(extras).items():
                    key = f"{layout.NOTES_FIELDS}/{name}"
                    self._put(file, key, rows, block.episodes, len(selection))
                advance(block.n_steps)
            if len(metadata) == 1:
                layout.unpack_metadata(metadata[0], file)
            if self._options.notes:
                hdf5.write_notes(file.require_group(layout.NOTES), selection)
        return self._carried(schema, cut_off, len(metadata))

    def _put(self, file: h5py.File, key: str, values: np.ndarray, rows: slice, total: int) -> None:
        """Write rows of the dataset at a key, which the first ones create."""
        if key not in file:
            shape = (total, *values.shape[1:])
            packed = hdf5.packing(self._options.compression)
            file.create_dataset(key, shape, values.dtype, compression=packed)
        hdf5.dataset_at(file, key)[rows] = values

    def _carried(self, schema: Schema, cut_off: int, metadata: int) -> Carried:
        kept = [f"{name} -> {key}" for name, key in layout.keys_of(schema).items()]
        (final, extras), left, notes = _episode_fields(schema), [], []
        if final:
            kept.append(f"final_obs -> {layout.NEXT}")
        if self._options.notes:
            kept += [f"{name} -> {layout.NOTES_FIELDS}" for name in extras]
            kept.append(f"the catalog and schema -> {layout.NOTES}")
        else:
            left += [f"{name}: D4RL has no place for a field per episode" for name in extras]
            left += ["the catalog: D4RL has no place for it", "the schema's units and names"]
        if metadata == 1:
            kept.append("metadata of the imported file -> metadata")
        elif metadata:
            left.append(f"metadata of {metadata} imported files: a D4RL file has a place for one")
        if cut_off:
            mark = "a time-out, D4RL's only mark for an end that is not terminal"
            notes.append(f"{cut_off} cut-off episodes are marked by {mark}")
        return Carried(tuple(kept), tuple(left), tuple(notes))


def _end_flags(selection: EpisodeSelection) -> tuple[dict[str, np.ndarray], int]:
    """Key -> (E,) whether the flag is set at an episode's end; a cut-off end is a time-out.

    Also gives the number of such ends.
    """
    table = selection.episodes("terminated", "truncated")
    terminated, truncated = (column.to_numpy() for column in table.columns)
    cut_off = ~terminated & ~truncated
    cut_off[-1] = False  # the end of the file ends it
    flags = {layout.TERMINALS: terminated, layout.TIMEOUTS: truncated | cut_off}
    return flags, int(cut_off.sum())


def _episode_fields(schema: Schema) -> tuple[bool, list[str]]:
    """Whether `next_observations` holds the final ones, and the other fields per episode."""
    names = schema.names("episode")
    in_next = hdf5.next_holds_final(schema, "next_obs")
    return in_next, [name for name in names if not in_next or name != "final_obs"]
