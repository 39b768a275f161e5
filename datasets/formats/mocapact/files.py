"""What one of MoCapAct's files says, checked: observables, snippets, rollouts and their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import h5py
import numpy as np
import pyarrow as pa

from datasets.formats.hdf5 import damage_named, first_line, open_hdf5, read_notes
from datasets.formats.mocapact.schema import (
    EARLY,
    INDICES,
    METRICS,
    NOTED_ROLLOUTS,
    NOTES,
    RANDOM_METRICS,
    REQUIRED_METRICS,
    REQUIRED_STEP_KEYS,
    START_METRICS,
    STEP_KEYS,
    Snippet,
)
from datasets.formats.sources import refuse
from datasets.schema import Schema

_KNOWN = ("observable_indices", "ref_steps", "stats", "n_start_rollouts", "n_rsi_rollouts", NOTES)
_MOST_STEPS = 1 << 31
"""Of an episode; sums of damaged lengths must not overflow."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """The rollouts of one snippet: number i is its group `i`.

    Attributes:
        columns: name -> a value for each: length, random_start, terminated, and the metrics.
        noted: for each its row in the file's notes; None without notes.
    """

    path: Path
    snippet: Snippet
    columns: Mapping[str, np.ndarray]
    noted: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns["length"])


@dataclass(frozen=True, eq=False)
class FileContents:
    """A file that has snippets.

    Attributes:
        widths: observable -> how many numbers, in order.
        keys: those of ``STEP_KEYS`` that its rollouts have.
        action_dim: numbers of an action.
        ref_steps: control steps ahead of the observed references; None if it does not say.
        rollouts: of each snippet, in order of clip and frames.
        notes: the store's schema and catalog rows that an export kept, or None.
        left: what else there is.
    """

    path: Path
    widths: Mapping[str, int]
    keys: tuple[str, ...]
    action_dim: int
    ref_steps: tuple[int, ...] | None
    rollouts: list[Rollouts]
    notes: tuple[Schema, pa.Table] | None
    left: frozenset[str]


def read_contents(path: Path) -> FileContents | None:
    """All but the arrays of the rollouts; None for a file without a snippet.

    Raises:
        DatasetError: names file and key.
    """
    with open_hdf5(path) as file, damage_named(path):
        found = {name: Snippet.parse(name) for name in _keys(path, file)}
        snippets = sorted(each for each in found.values() if each is not None)
        if not snippets:
            return None
        first = f"{snippets[0].name}/0"
        some = _keys(path, get_group(path, file, first), first)
        if lacking := [key for key in REQUIRED_STEP_KEYS if key not in some]:
            refuse(path, f"{first}/{lacking[0]}", "the key is missing")
        seen = _keys(path, get_group(path, file, f"{first}/observations"), first)
        left = {f"{key} of rollouts" for key in some if key not in (*STEP_KEYS, "observations")}
        left |= {f"observations/{key} of rollouts" for key in seen if key != "proprioceptive"}
        left |= {name for name, snippet in found.items() if not snippet and name not in _KNOWN}
        rollouts = [_read_metrics(path, file, snippet) for snippet in snippets]
        notes = None
        if NOTES in file:
            notes = read_notes(path, get_group(path, file, NOTES))
            rollouts = _with_notes(path, file, rollouts, notes[1])
        steps = (
            get_array(path, file, "ref_steps", (None,), "iu")[()] if "ref_steps" in file else None
        )
        return FileContents(
            path=path,
            widths=_observable_widths(path, file),
            keys=tuple(key for key in STEP_KEYS if key in some),
            action_dim=int(get_array(path, file, f"{first}/actions", (None, None)).shape[1]),
            ref_steps=None if steps is None else tuple(steps.tolist()),
            rollouts=rollouts,
            notes=notes,
            left=frozenset(left),
        )


def get_group(path: Path, file: h5py.File, key: str) -> h5py.Group:
    """The group at a key; DatasetError where there is none."""
    found = _get(path, file, key)
    if not isinstance(found, h5py.Group):
        refuse(path, key, "must be a group")
    return found


def get_array(
    path: Path, file: h5py.File, key: str, shape: tuple[int | None, ...], kinds: str = "f"
) -> h5py.Dataset:
    """The array at a key, of a shape (None: any size) and with numbers of NumPy's ``kinds``.

    Raises:
        DatasetError: it is missing, or another one.
    """
    found = _get(path, file, key)
    if not isinstance(found, h5py.Dataset):
        refuse(path, key, "must be an array")
    given = found.shape or ()
    if len(given) != len(shape) or any(
        wanted not in (None, size) for wanted, size in zip(shape, given, strict=True)
    ):
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        refuse(path, key, f"shape must be ({wanted}), not {given}")
    if found.dtype.kind not in kinds:
        refuse(path, key, f"dtype {found.dtype} is not allowed here")
    return found


def read_float32(path: Path, file: h5py.File, key: str, out: np.ndarray) -> None:
    """Fill ``out`` (C order) from the array of its shape at a key.

    Raises:
        DatasetError: another shape or dtype, unreadable, or a number that is not finite.
    """
    try:  # h5py's low level: rollouts are short, and its high level costs as much as their reading
        found = h5py.h5d.open(file.id, key.encode())
        if (found.shape, found.dtype) == (out.shape, np.dtype(np.float32)):
            found.read(h5py.h5s.ALL, h5py.h5s.ALL, out)
        else:
            _refuse_array(path, file, key, out)
    except KeyError:
        _refuse_array(path, file, key, out)
    except (OSError, RuntimeError) as error:
        refuse(path, key, f"cannot be read: {first_line(error)}")
    if not np.isfinite(out).all():
        wrong = np.argwhere(~np.isfinite(out))[0]
        refuse(path, key, f"row {int(wrong[0])} is not finite")


def _refuse_array(path: Path, file: h5py.File, key: str, wanted: np.ndarray) -> NoReturn:
    found = get_array(path, file, key, wanted.shape)
    refuse(path, key, f"dtype must be float32, not {found.dtype}")


def _get(path: Path, file: h5py.File, key: str) -> Any:
    try:
        return file[key]
    except KeyError:
        refuse(path, key, "the key is missing, or what it names is damaged")
    except (OSError, RuntimeError) as error:
        refuse(path, key, f"cannot be read: {first_line(error)}")


def _keys(path: Path, group: h5py.Group, key: str = "") -> list[str]:
    try:
        names = list(group)
    except (OSError, RuntimeError) as error:
        refuse(path, key, f"cannot be read: {first_line(error)}")
    if wrong := [name for name in names if not isinstance(name, str)]:
        refuse(path, key, f"the key {wrong[0]!r} is not text")
    return names


def _values(path: Path, found: h5py.Dataset, key: str) -> np.ndarray:
    try:
        return np.asarray(found[()])
    except (OSError, RuntimeError) as error:
        refuse(path, key, f"cannot be read: {first_line(error)}")


def _observable_widths(path: Path, file: h5py.File) -> dict[str, int]:
    """Observable -> width, in the order of the observation's columns, which they must tile."""
    places: dict[str, np.ndarray] = {}
    for name in _keys(path, get_group(path, file, INDICES), INDICES):
        key = f"{INDICES}/{name}"
        places[name] = _values(path, get_array(path, file, key, (None,), "iu"), key)
    ordered = sorted((name for name in places if len(places[name])), key=lambda n: places[n][0])
    if not ordered:
        refuse(path, INDICES, "names no observable")
    at = 0
    for name in ordered:
        stop = at + len(places[name])
        if not np.array_equal(places[name], np.arange(at, stop)):
            problem = f"must be columns {at} to {stop - 1}: observables tile the observation"
            refuse(path, f"{INDICES}/{name}", problem)
        at = stop
    return {name: len(places[name]) for name in ordered}


def _read_metrics(path: Path, file: h5py.File, snippet: Snippet) -> Rollouts:
    """A snippet's rollouts: those from its start, then those from random points."""
    columns: dict[str, list[np.ndarray]] = {}
    for random, where in enumerate((START_METRICS, RANDOM_METRICS)):
        group = get_group(path, file, f"{snippet.name}/{where}")
        key = f"{snippet.name}/{where}/episode_lengths"
        lengths = _values(path, get_array(path, file, key, (None,), "iu"), key).astype(np.int64)
        if ((lengths < 1) | (lengths > _MOST_STEPS)).any():
            refuse(path, key, f"every episode needs 1 to {_MOST_STEPS} steps")
        columns.setdefault("length", []).append(lengths)
        columns.setdefault("random_start", []).append(np.full(len(lengths), bool(random)))
        for name, column in METRICS.items():
            key = f"{snippet.name}/{where}/{name}"
            if name not in REQUIRED_METRICS and name not in group:
                continue
            values = _values(path, get_array(path, file, key, lengths.shape), key)
            if not np.isfinite(values).all():
                refuse(path, key, "every value must be finite")
            columns.setdefault(column, []).append(values.astype(np.float64))
    joined = {name: np.concatenate(each) for name, each in columns.items()}
    total = len(joined["length"])
    if short := [name for name, values in joined.items() if len(values) != total]:
        refuse(path, snippet.name, f"some of its rollouts have no {short[0]}")
    names = _keys(path, get_group(path, file, snippet.name), snippet.name)
    there = sum(name.isdecimal() for name in names)
    if there != total or not total:
        refuse(path, snippet.name, f"has {there} rollouts, but metrics of {total}")
    key = f"{snippet.name}/{EARLY}"
    joined["terminated"] = _values(path, get_array(path, file, key, (total,), "b"), key)
    return Rollouts(path, snippet, joined)


def _with_notes(
    path: Path, file: h5py.File, rollouts: list[Rollouts], table: pa.Table
) -> list[Rollouts]:
    """The rollouts with their rows in the notes, whose lengths must be those of the metrics."""
    key = f"{NOTES}/{NOTED_ROLLOUTS}"
    names = _values(path, get_array(path, file, key, (table.num_rows,), "S"), key)
    rows = {name.decode(): row for row, name in enumerate(names)}
    if "length" not in table.column_names:
        refuse(path, NOTES, "has no lengths of episodes; delete it to go by the arrays")
    lengths = table.column("length").to_numpy()
    known = []
    for each in rollouts:
        wanted = [f"{each.snippet.name}/{number}" for number in range(len(each))]
        noted = np.array([rows.get(name, -1) for name in wanted])
        if (noted < 0).any() or not np.array_equal(lengths[noted], each.columns["length"]):
            problem = (
                f"is not of the rollouts of {each.snippet.name}; delete it to go by the arrays"
            )
            refuse(path, NOTES, problem)
        known.append(Rollouts(path, each.snippet, each.columns, noted))
    return known
