"""The keys of a D4RL file and the checks on them."""

import re
from pathlib import Path

import h5py
import numpy as np

from gaitforge.common.errors import listed
from gaitforge.datasets.formats.checks import refuse
from gaitforge.datasets.formats.hdf5 import read_rows
from gaitforge.datasets.formats.sources import field_name, free_name, stored_dtype
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
