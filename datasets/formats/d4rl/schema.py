"""The keys of a D4RL file and the checks on them."""

from pathlib import Path

import h5py
import numpy as np

from datasets.errors import listed
from datasets.formats.checks import refuse
from datasets.formats.hdf5 import read_rows
from datasets.formats.sources import field_name, stored_dtype

OBSERVATIONS, ACTIONS, REWARDS = "observations", "actions", "rewards"
TERMINALS, TIMEOUTS, NEXT = "terminals", "timeouts", "next_observations"
REQUIRED = (OBSERVATIONS, ACTIONS, REWARDS, TERMINALS)
INFOS = "infos"
NOTES = "metadata/gaitforge"
NOTES_FIELDS = f"{NOTES}/fields"
"""Group of the fields per episode, for which D4RL has no place."""

MAIN_KEYS = {"obs": OBSERVATIONS, "action": ACTIONS, "reward": REWARDS, "next_obs": NEXT}
"""Field -> key in the file; see ``key_of`` for any other field per step."""

_FLAG_BLOCK = 1 << 22


def key_of(name: str) -> str:
    """The key in the file of a field per step."""
    return MAIN_KEYS.get(name, f"{INFOS}/{name.removeprefix('info_')}")


def check_keys(path: Path, found: dict[str, h5py.Dataset]) -> int:
    """The number of rows; refuses main keys that are missing, unequal in length or not numbers."""
    for key in REQUIRED:
        if key not in found:
            refuse(path, key, f"the key is missing; a D4RL file has {listed(REQUIRED)}")
    rows = found[OBSERVATIONS].shape[0] if found[OBSERVATIONS].shape else 0
    if rows == 0:
        refuse(path, OBSERVATIONS, "has no rows")
    for key in (*REQUIRED, TIMEOUTS, NEXT):
        if key not in found:
            continue
        shape, dtype = found[key].shape, found[key].dtype
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
    """The field for a key of ``infos/``, and why it cannot be one, or ""."""
    name = field_name(f"info_{key.removeprefix(INFOS + '/')}")
    if dataset.shape[:1] != (rows,):
        return name, f"shape {dataset.shape} is not of {rows} rows"
    if not stored_dtype(dataset.dtype) or 0 in dataset.shape:
        return name, f"dtype {dataset.dtype} is not one of numbers"
    return name, "another key has the same name in lower case" if name in taken else ""


def marked_rows(path: Path, dataset: h5py.Dataset, key: str) -> np.ndarray:
    """Rows at which a flag is set."""
    found = [np.zeros(0, np.int64)]
    for first in range(0, len(dataset), _FLAG_BLOCK):
        stop = min(first + _FLAG_BLOCK, len(dataset))
        flags = read_rows(path, dataset, key, first, stop).reshape(-1)
        if (wrong := ~np.isin(flags, (0, 1))).any():
            row = int(np.argmax(wrong))
            refuse(path, key, f"row {first + row} is {flags[row]}, not 0 or 1")
        found.append(first + np.flatnonzero(flags))
    return np.concatenate(found)


def cut_long(stops: np.ndarray, horizon: int) -> np.ndarray:
    """Episode ends, with further ones so that no episode is longer than the horizon."""
    starts = np.concatenate([[0], stops[:-1]])
    cuts = [np.arange(*each, horizon)[1:] for each in zip(starts, stops, strict=True)]
    return np.union1d(stops, np.concatenate(cuts)).astype(np.int64)
