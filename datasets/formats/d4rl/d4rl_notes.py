"""`metadata/` of a D4RL file: gaitforge's notes, checked against the arrays, and the authors' own.

The authors' (the algorithm, the policy's weights) have no place in a store's parts. The store keeps
them beside these as a small HDF5 file, for an export.
"""

from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.datasets.formats.checks import damage_named, refuse
from gaitforge.datasets.formats.d4rl import d4rl_schema as keys
from gaitforge.datasets.formats.hdf5 import datasets_of
from gaitforge.datasets.formats.notes import check_notes
from gaitforge.datasets.formats.sources import Span, stored_dtype
from gaitforge.datasets.schema import Schema

METADATA = "metadata"
MOST_BYTES = 16 << 20
"""Largest metadata that are kept; D4RL's largest are a policy of two layers of 256, 0.3 MB."""

REMEDY = f"delete the group {keys.NOTES} to use the arrays"


def keys_of_notes(
    path: Path, file: h5py.File, schema: Schema, rows: int, episodes: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Field -> key, for step and for episode fields; refuses arrays that are not as described.

    `final_obs` has the key of the next observations where these hold it.
    """
    steps = keys.keys_of(schema)
    per_episode = {name: f"{keys.NOTES_FIELDS}/{name}" for name in schema.names("episode")}
    kept = per_episode.get("final_obs")
    if kept is not None and kept not in file and keys.NEXT not in steps.values():
        per_episode["final_obs"] = keys.NEXT
    for name, key in [*steps.items(), *per_episode.items()]:
        field = schema.field(name)
        item = file.get(key)
        if not isinstance(item, h5py.Dataset):
            refuse(path, key, "the key is missing, which gaitforge's notes name")
        count = rows if name in steps or key == keys.NEXT else episodes
        if (item.shape, stored_dtype(item.dtype)) != ((count, *field.shape), field.dtype):
            refuse(path, key, f"shape or dtype is not what gaitforge's {keys.NOTES} say")
    return steps, per_episode


def lengths_of_notes(
    path: Path, datasets: dict[str, h5py.Dataset], table: pa.Table, rows: int
) -> np.ndarray:
    """Lengths of the episodes in the notes, whose ends must be those that the flags mark.

    A time-out marks an episode that was truncated or cut off, and the last one may be cut off
    without a mark: only the notes tell these apart.
    """
    columns = table.column_names
    lengths = table.column("length").to_numpy() if "length" in columns else np.array([0])
    marks = (keys.TERMINALS, keys.TIMEOUTS)
    ended, timed_out = (keys.marked_rows(path, datasets[key], key) for key in marks)
    stops = np.union1d(np.concatenate([ended, timed_out]) + 1, [rows])
    if not np.array_equal(np.cumsum(lengths), stops):
        problem = f"the lengths in the notes are not those of {' and '.join(marks)}"
        refuse(path, keys.NOTES, f"{problem}; {REMEDY}")
    terminated = np.isin(stops - 1, ended)
    truncated = np.isin(stops - 1, timed_out)
    if "truncated" in columns:
        either = truncated & ~terminated
        truncated[either] = table.column("truncated").to_numpy()[either]
    flags = {"terminated": terminated, "truncated": truncated}
    check_notes(path, keys.NOTES, table, Span(lengths, 0, 0), remedy=REMEDY, **flags)
    return lengths


def packed_metadata(path: Path, file: h5py.File) -> tuple[bytes, list[str]]:
    """An HDF5 file with all below `metadata` but gaitforge's notes, b"" for nothing.

    Also gives what is left out, with the reason.
    """
    group = file.get(METADATA)
    if not isinstance(group, h5py.Group):
        return b"", []
    names = [name for name in group if f"{METADATA}/{name}" != keys.NOTES]
    with damage_named(path, METADATA), h5py.File.in_memory() as packed:
        datasets = datasets_of(group).items()
        sizes = [dataset.nbytes for name, dataset in datasets if name.partition("/")[0] in names]
        if sum(sizes) <= MOST_BYTES:
            for name in names:
                group.copy(name, packed)
            packed.flush()
            if len(content := packed.id.get_file_image()) <= 2 * MOST_BYTES:
                return content if names else b"", []
    return b"", [f"{METADATA}: larger than the {MOST_BYTES >> 20} MiB that are kept"]


def unpack_metadata(content: bytes, file: h5py.File) -> None:
    """Write below `metadata` what `packed_metadata` gave."""
    with h5py.File(BytesIO(content), "r") as packed:
        group = file.require_group(METADATA)
        for name in packed:
            packed.copy(name, group)
