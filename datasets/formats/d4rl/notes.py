"""What an export kept in ``metadata/gaitforge`` of a D4RL file, held against the file's arrays."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from datasets.errors import listed
from datasets.formats.d4rl.schema import (
    NEXT,
    NOTED_FIELDS,
    NOTES,
    TERMINALS,
    TIMEOUTS,
    key_of,
    marked_rows,
)
from datasets.formats.notes import TRUNCATED, check_noted
from datasets.formats.sources import refuse, stored_dtype
from datasets.schema import Schema

REMEDY = f"delete the group {NOTES} to go by the arrays"


def refuse_options(path: Path, options: Any) -> None:
    """Refuse options that say what the notes say too, so that none is given in vain."""
    given = [each.name for each in fields(options) if getattr(options, each.name) != each.default]
    if given:
        what = f"option {given[0]} has" if len(given) == 1 else f"options {listed(given)} have"
        refuse(path, NOTES, f"{what} no effect on what gaitforge kept there; {REMEDY}")


def noted_keys(
    path: Path, file: h5py.File, schema: Schema, rows: int, episodes: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Field a step -> its key, and field an episode -> its key, all of them there and as noted.

    ``final_obs`` has the key of the next observations where these hold it.
    """
    steps = {name: key_of(name) for name in schema.names("step")}
    per_episode = {name: f"{NOTED_FIELDS}/{name}" for name in schema.names("episode")}
    wanted = {
        **dict.fromkeys(steps.items(), rows),
        **dict.fromkeys(per_episode.items(), episodes),
    }
    kept = per_episode.get("final_obs")
    if kept is not None and kept not in file and NEXT not in steps.values():
        per_episode["final_obs"] = NEXT
        del wanted["final_obs", kept]
        wanted["final_obs", NEXT] = rows
    for (name, key), count in wanted.items():
        field, there = schema.field(name), file.get(key)
        if not isinstance(there, h5py.Dataset):
            refuse(path, key, "the key is missing, which gaitforge's notes name")
        given = there.shape, stored_dtype(there.dtype)
        if given != ((count, *field.shape), field.dtype):
            refuse(path, key, f"shape or dtype is not what gaitforge's {NOTES} say")
    return steps, per_episode


def noted_lengths(
    path: Path, found: dict[str, h5py.Dataset], noted: pa.Table, rows: int
) -> np.ndarray:
    """Lengths of the episodes in the notes, which must end where and as the file's marks say.

    A time-out marks an episode that was truncated or cut off, and the last one may be cut off
    without a mark: only the notes tell these apart.
    """
    columns = noted.column_names
    lengths = noted.column("length").to_numpy() if "length" in columns else np.array([0])
    ended, timed_out = (marked_rows(path, found[key], key) for key in (TERMINALS, TIMEOUTS))
    stops = np.union1d(np.concatenate([ended, timed_out]) + 1, [rows])
    if not np.array_equal(np.cumsum(lengths), stops):
        refuse(
            path,
            NOTES,
            f"the lengths kept there are not those that {TERMINALS} and {TIMEOUTS} tell; {REMEDY}",
        )
    terminated = np.isin(stops - 1, ended)
    truncated = np.isin(stops - 1, timed_out)
    if TRUNCATED in columns:
        either = truncated & ~terminated
        truncated[either] = noted.column(TRUNCATED).to_numpy()[either]
    check_noted(
        path, NOTES, noted, 0, lengths, remedy=REMEDY, terminated=terminated, truncated=truncated
    )
    return lengths
