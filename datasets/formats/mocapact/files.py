"""One MoCapAct file, checked: observables, snippets, rollouts and their arrays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from datasets.formats.checks import check_finite, damage_named, first_line, refuse
from datasets.formats.hdf5 import open_hdf5, read_notes
from datasets.formats.mocapact import schema as layout
from datasets.schema import Schema

_KNOWN = (
    "observable_indices",
    "ref_steps",
    "stats",
    "n_start_rollouts",
    "n_rsi_rollouts",
    layout.NOTES,
)
_MOST_STEPS = 1 << 31
"""Of an episode; sums of damaged lengths must not overflow."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """The rollouts of one snippet: number i is its group ``i``.

    Attributes:
        columns: name -> (E,): length, random_start, terminated, and the metrics.
        note_rows: (E,) rows of the file's notes; None without notes.
    """

    path: Path
    snippet: layout.Snippet
    columns: Mapping[str, np.ndarray]
    note_rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns["length"])


@dataclass(frozen=True, eq=False)
class FileContents:
    """A file that has snippets.

    Attributes:
        widths: observable -> how many numbers, in order.
        keys: those of ``STEP_KEYS`` that its rollouts have.
        action_dim: size of an action.
        ref_steps: control steps ahead of the observed references; None if unknown.
        rollouts: of each snippet, in order of clip and frames.
        notes: the store's schema and catalog rows, or None.
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
    """All but the arrays of the rollouts; None for a file without a snippet."""
    with open_hdf5(path) as file, damage_named(path):
        found = {name: layout.Snippet.parse(name) for name in _keys(file)}
        snippets = sorted(each for each in found.values() if each is not None)
        if not snippets:
            return None
        first = f"{snippets[0].name}/0"
        keys = _keys(get_group(path, file, first))
        if lacking := [key for key in layout.REQUIRED_STEP_KEYS if key not in keys]:
            refuse(path, f"{first}/{lacking[0]}", "the key is missing")
        observed = _keys(get_group(path, file, f"{first}/observations"))
        left = {
            f"{key} of rollouts" for key in keys if key not in (*layout.STEP_KEYS, "observations")
        }
        left |= {f"observations/{key} of rollouts" for key in observed if key != "proprioceptive"}
        left |= {name for name, snippet in found.items() if not snippet and name not in _KNOWN}
        rollouts = [_read_metrics(path, file, snippet) for snippet in snippets]
        notes = None
        if layout.NOTES in file:
            notes = read_notes(path, get_group(path, file, layout.NOTES))
            rollouts = [_with_notes(path, file, each, notes[1]) for each in rollouts]
        steps = None
        if "ref_steps" in file:
            steps = tuple(get_array(path, file, "ref_steps", (None,), "iu")[()].tolist())
        return FileContents(
            path=path,
            widths=_observable_widths(path, file),
            keys=tuple(key for key in layout.STEP_KEYS if key in keys),
            action_dim=int(get_array(path, file, f"{first}/actions", (None, None)).shape[1]),
            ref_steps=steps,
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
    """The array at a key, of a shape (None: any size) and with numbers of NumPy's ``kinds``."""
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
    """Fill ``out`` (C order) from the array of its shape at a key."""
    try:  # h5py's low level: rollouts are short, and the high level doubles the time to read them
        found = h5py.h5d.open(file.id, key.encode())
        fits = (found.shape, found.dtype) == (out.shape, np.dtype(np.float32))
        if fits:
            found.read(h5py.h5s.ALL, h5py.h5s.ALL, out)
    except KeyError:
        fits = False
    except (OSError, RuntimeError) as error:
        refuse(path, key, f"cannot be read: {first_line(error)}")
    if not fits:
        array = get_array(path, file, key, out.shape)
        refuse(path, key, f"dtype must be float32, not {array.dtype}")
    check_finite(path, key, out)


def _keys(group: h5py.Group) -> list[str]:
    return [str(name) for name in group]


def _get(path: Path, file: h5py.File, key: str) -> h5py.HLObject:
    with damage_named(path, key, "the key is missing or damaged"):
        return file[key]


def _values(
    path: Path, file: h5py.File, key: str, shape: tuple[int | None, ...], kinds: str = "f"
) -> np.ndarray:
    with damage_named(path, key, "cannot be read"):
        return np.asarray(get_array(path, file, key, shape, kinds)[()])


def _observable_widths(path: Path, file: h5py.File) -> dict[str, int]:
    """Observable -> width, in the order of the observation's columns, which they must tile."""
    places = {
        name: _values(path, file, f"{layout.INDICES}/{name}", (None,), "iu")
        for name in _keys(get_group(path, file, layout.INDICES))
    }
    ordered = sorted((name for name in places if len(places[name])), key=lambda n: places[n][0])
    if not ordered:
        refuse(path, layout.INDICES, "names no observable")
    at = 0
    for name in ordered:
        stop = at + len(places[name])
        if not np.array_equal(places[name], np.arange(at, stop)):
            problem = f"must be columns {at} to {stop - 1}: observables tile the observation"
            refuse(path, f"{layout.INDICES}/{name}", problem)
        at = stop
    return {name: len(places[name]) for name in ordered}


def _read_metrics(path: Path, file: h5py.File, snippet: layout.Snippet) -> Rollouts:
    """A snippet's rollouts: those from its start, then those from random points."""
    columns: dict[str, list[np.ndarray]] = {}
    for random, where in enumerate((layout.START_METRICS, layout.RANDOM_METRICS)):
        at = f"{snippet.name}/{where}"
        group = get_group(path, file, at)
        lengths = _values(path, file, f"{at}/episode_lengths", (None,), "iu").astype(np.int64)
        if ((lengths < 1) | (lengths > _MOST_STEPS)).any():
            refuse(path, f"{at}/episode_lengths", f"every episode needs 1 to {_MOST_STEPS} steps")
        columns.setdefault("length", []).append(lengths)
        columns.setdefault("random_start", []).append(np.full(len(lengths), bool(random)))
        for name, column in layout.METRICS.items():
            if name in layout.REQUIRED_METRICS or name in group:
                values = _values(path, file, f"{at}/{name}", lengths.shape)
                check_finite(path, f"{at}/{name}", values)
                columns.setdefault(column, []).append(values.astype(np.float64))
    joined = {name: np.concatenate(each) for name, each in columns.items()}
    total = len(joined["length"])
    if short := [name for name, values in joined.items() if len(values) != total]:
        refuse(path, snippet.name, f"some of its rollouts have no {short[0]}")
    found = sum(name.isdecimal() for name in _keys(get_group(path, file, snippet.name)))
    if found != total or not total:
        refuse(path, snippet.name, f"has {found} rollouts, but metrics of {total}")
    joined["terminated"] = _values(path, file, f"{snippet.name}/{layout.EARLY}", (total,), "b")
    return Rollouts(path, snippet, joined)


def _with_notes(path: Path, file: h5py.File, rollouts: Rollouts, table: pa.Table) -> Rollouts:
    """The rollouts with their rows in the notes, whose lengths must be those of the metrics."""
    remedy = "delete it to use the arrays"
    names = _values(path, file, f"{layout.NOTES}/{layout.NOTES_ROLLOUTS}", (table.num_rows,), "S")
    rows = {name.decode(): row for row, name in enumerate(names)}
    if "length" not in table.column_names:
        refuse(path, layout.NOTES, f"has no lengths of episodes; {remedy}")
    snippet = rollouts.snippet.name
    found = np.array([rows.get(f"{snippet}/{number}", -1) for number in range(len(rollouts))])
    lengths = table.column("length").to_numpy()
    if (found < 0).any() or not np.array_equal(lengths[found], rollouts.columns["length"]):
        refuse(path, layout.NOTES, f"does not describe the rollouts of {snippet}; {remedy}")
    return replace(rollouts, note_rows=found)
