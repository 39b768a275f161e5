"""The notes of an export in `metadata/gaitforge` of a D4RL file, checked against its arrays."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.datasets.errors import listed
from gaitforge.datasets.formats.checks import refuse
from gaitforge.datasets.formats.d4rl import d4rl_schema as keys
from gaitforge.datasets.formats.notes import check_notes
from gaitforge.datasets.formats.sources import stored_dtype
from gaitforge.datasets.schema import Schema

REMEDY = f"delete the group {keys.NOTES} to use the arrays"


def refuse_options(path: Path, options: Any) -> None:
    """Refuse options for a file with notes, which they could not change."""
    names = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    if names:
        what = f"option {names[0]} has" if len(names) == 1 else f"options {listed(names)} have"
        refuse(path, keys.NOTES, f"{what} no effect on a file with gaitforge's notes; {REMEDY}")


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
        field, item = schema.field(name), file.get(key)
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
    terminated, truncated = np.isin(stops - 1, ended), np.isin(stops - 1, timed_out)
    if "truncated" in columns:
        either = truncated & ~terminated
        truncated[either] = table.column("truncated").to_numpy()[either]
    flags = {"terminated": terminated, "truncated": truncated}
    check_notes(path, keys.NOTES, table, 0, lengths, remedy=REMEDY, **flags)
    return lengths
