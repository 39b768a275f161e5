"""The keys of a D4RL file, what lies in its `metadata/`, and the checks on both.

`metadata/` holds gaitforge's notes, checked against the arrays, and the authors' own (the
algorithm, the policy's weights). These have no place in a store's parts: the store keeps them
beside the parts as a small HDF5 file, for an export.
"""

import re
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import listed
from gaitforge.datasets.formats.hdf5 import datasets_of, read_rows
from gaitforge.datasets.formats.sources import (
    Span,
    check_notes,
    damage_named,
    field_name,
    free_name,
    refuse,
    stored_dtype,
)
from gaitforge.datasets.schema import Schema

OBSERVATIONS = "observations"
ACTIONS = "actions"
REWARDS = "rewards"
TERMINALS = "terminals"
TIMEOUTS = "timeouts"
NEXT = "next_observations"
REQUIRED = (OBSERVATIONS, ACTIONS, REWARDS, TERMINALS)
ROWS = (*REQUIRED, TIMEOUTS, NEXT)
INFOS = "infos"
NOTES = "metadata/gaitforge"
NOTES_FIELDS = f"{NOTES}/fields"
"""Group of the fields per episode, for which D4RL has no place."""

MAIN_KEYS = {"obs": OBSERVATIONS, "action": ACTIONS, "reward": REWARDS, "next_obs": NEXT}
"""Field -> key in the file; see `keys_of` for any other field per step."""

KEYS = "d4rl_keys"
"""Attribute of the schema: field -> key of `infos`, where the name does not tell it."""

_INFO_KEY = re.compile(r"infos(/(?!\.(/|$))[^/\0]+)*")

_FLAG_BLOCK = 1 << 22


def keys_of(schema: Schema) -> dict[str, str]:
    """Field per step -> its key in a file: the one it was imported from, else by its name."""
    noted = schema.attributes.get(KEYS)
    keys = {name: _own_key(name) for name in schema.names("step")}
    for name, key in noted.items() if isinstance(noted, dict) else ():
        if name in keys and name not in MAIN_KEYS and _INFO_KEY.fullmatch(str(key)):
            keys[name] = str(key)
    return keys


def untold_keys(fields: dict[str, str]) -> dict[str, str]:
    """The fields whose names do not tell their keys, for the attribute `KEYS`."""
    return {name: key for name, key in fields.items() if key != _own_key(name)}


def _own_key(name: str) -> str:
    return MAIN_KEYS.get(name, f"{INFOS}/{name.removeprefix('info_')}")


def check_keys(path: Path, datasets: dict[str, h5py.Dataset]) -> int:
    """The number of rows; refuses main keys that are missing, unequal in length or not numbers."""
    for key in REQUIRED:
        if key not in datasets:
            refuse(path, key, f"the key is missing; a D4RL file has {listed(REQUIRED)}")
    rows = datasets[OBSERVATIONS].shape[0] if datasets[OBSERVATIONS].shape else 0
    if rows == 0:
        refuse(path, OBSERVATIONS, "has no rows")
    for key in (name for name in ROWS if name in datasets):
        shape = datasets[key].shape
        dtype = datasets[key].dtype
        if shape[:1] != (rows,):
            refuse(path, key, f"has shape {shape}, but {OBSERVATIONS} have {rows} rows")
        if not stored_dtype(dtype) or (key in (OBSERVATIONS, REWARDS) and dtype.kind == "b"):
            refuse(path, key, f"dtype {dtype} is not one of numbers")
        if 0 in shape:
            refuse(path, key, f"has no numbers: its shape is {shape}")
        if key in (REWARDS, TERMINALS, TIMEOUTS) and shape not in ((rows,), (rows, 1)):
            refuse(path, key, f"needs one number per row, not shape {shape}")
    return rows


def info_field(key: str, dataset: h5py.Dataset, rows: int, taken: set[str]) -> tuple[str, str]:
    """The field for a key of `infos`, and why it cannot be one, or ""."""
    name = free_name(field_name(f"info_{key.removeprefix(INFOS + '/')}"), taken)
    if dataset.shape[:1] != (rows,):
        return name, f"shape {dataset.shape} is not of {rows} rows"
    if not stored_dtype(dataset.dtype) or 0 in dataset.shape:
        return name, f"dtype {dataset.dtype} is not one of numbers"
    return name, ""


def marked_rows(path: Path, dataset: h5py.Dataset, key: str) -> np.ndarray:
    """Rows at which a flag is set."""
    marks = [np.zeros(0, np.int64)]
    for first in range(0, len(dataset), _FLAG_BLOCK):
        stop = min(first + _FLAG_BLOCK, len(dataset))
        flags = read_rows(path, dataset, key, first, stop).reshape(-1)
        if (wrong := ~np.isin(flags, (0, 1))).any():
            row = int(np.argmax(wrong))
            refuse(path, key, f"row {first + row} is {flags[row]}, not 0 or 1")
        marks.append(first + np.flatnonzero(flags))
    return np.concatenate(marks)


def cut_long(stops: np.ndarray, horizon: int) -> np.ndarray:
    """Episode ends, with further ones so that no episode is longer than the horizon."""
    starts = np.concatenate([[0], stops[:-1]])
    cuts = [np.arange(*bounds, horizon)[1:] for bounds in zip(starts, stops, strict=True)]
    return np.union1d(stops, np.concatenate(cuts)).astype(np.int64)


METADATA = "metadata"
MOST_BYTES = 16 << 20
"""Largest metadata that are kept; D4RL's largest are a policy of two layers of 256, 0.3 MB."""

REMEDY = f"delete the group {NOTES} to use the arrays"


def keys_of_notes(
    path: Path, file: h5py.File, schema: Schema, rows: int, episodes: int
) -> tuple[dict[str, str], dict[str, str]]:
    """Field -> key, for step and for episode fields; refuses arrays that are not as described.

    `final_obs` has the key of the next observations where these hold it.
    """
    steps = keys_of(schema)
    per_episode = {name: f"{NOTES_FIELDS}/{name}" for name in schema.names("episode")}
    kept = per_episode.get("final_obs")
    if kept is not None and kept not in file and NEXT not in steps.values():
        per_episode["final_obs"] = NEXT
    for name, key in [*steps.items(), *per_episode.items()]:
        field = schema.field(name)
        item = file.get(key)
        if not isinstance(item, h5py.Dataset):
            refuse(path, key, "the key is missing, which gaitforge's notes name")
        count = rows if name in steps or key == NEXT else episodes
        if (item.shape, stored_dtype(item.dtype)) != ((count, *field.shape), field.dtype):
            refuse(path, key, f"shape or dtype is not what gaitforge's {NOTES} say")
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
    marks = (TERMINALS, TIMEOUTS)
    ended, timed_out = (marked_rows(path, datasets[key], key) for key in marks)
    stops = np.union1d(np.concatenate([ended, timed_out]) + 1, [rows])
    if not np.array_equal(np.cumsum(lengths), stops):
        problem = f"the lengths in the notes are not those of {' and '.join(marks)}"
        refuse(path, NOTES, f"{problem}; {REMEDY}")
    terminated = np.isin(stops - 1, ended)
    truncated = np.isin(stops - 1, timed_out)
    if "truncated" in columns:
        either = truncated & ~terminated
        truncated[either] = table.column("truncated").to_numpy()[either]
    flags = {"terminated": terminated, "truncated": truncated}
    check_notes(path, NOTES, table, Span(lengths, 0, 0), remedy=REMEDY, **flags)
    return lengths


def packed_metadata(path: Path, file: h5py.File) -> tuple[bytes, list[str]]:
    """An HDF5 file with all below `metadata` but gaitforge's notes, b"" for nothing.

    Also gives what is left out, with the reason.
    """
    group = file.get(METADATA)
    if not isinstance(group, h5py.Group):
        return b"", []
    names = [name for name in group if f"{METADATA}/{name}" != NOTES]
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
