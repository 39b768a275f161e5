"""One MoCapAct file, checked: observables, snippets, rollouts and their arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.datasets.formats.hdf5 import (
    ImplausibleSizeError,
    check_chunks,
    open_hdf5,
    read_notes,
    read_whole,
)
from gaitforge.datasets.formats.sources import check_finite, damage_named, first_line, refuse
from gaitforge.datasets.schema import Schema, consecutive_slices
from gaitforge.plugins.mocapact.format import mocapact_schema as layout

_COUNTS = ("n_start_rollouts", "n_rsi_rollouts")
_KNOWN = ("observable_indices", "ref_steps", "stats", *_COUNTS, layout.NOTES)
_MOST_STEPS = 1 << 31
"""Longest episode; sums of damaged lengths must not overflow."""


@dataclass(frozen=True, eq=False)
class Rollouts:
    """The rollouts of one snippet: number i is its group `i`.

    Attributes:
        columns: name -> (E,): length, random_start, terminated, and the metrics.
        note_rows: (E,) rows of the file's notes; None without notes.
    """

    path: Path
    snippet: layout.MocapactSnippet
    columns: Mapping[str, np.ndarray]
    note_rows: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.columns["length"])


@dataclass(frozen=True, eq=False)
class FileContents:
    """A file that has snippets.

    Attributes:
        widths: observable -> how many numbers, in order.
        keys: those of `STEP_KEYS` that its rollouts have.
        ref_steps: control steps ahead of the observed references; None if unknown.
        rollouts: one record per snippet, in order of clip and frames.
        notes: the store's schema and catalog rows; left: names of what is not imported.
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
    with open_hdf5(path) as opened, damage_named(path):
        file = CheckedFile(path, opened)
        groups = {name: layout.MocapactSnippet.parse(name) for name in file.names()}
        snippets = sorted(snippet for snippet in groups.values() if snippet is not None)
        if not snippets:
            return None
        first = f"{snippets[0].name}/0"
        keys = file.names(first)
        if lacking := [key for key in layout.REQUIRED_STEP_KEYS if key not in keys]:
            refuse(path, f"{first}/{lacking[0]}", "the key is missing")
        observed = (f"observations/{key}" for key in file.names(f"{first}/observations"))
        expected = (*layout.STEP_KEYS, "observations", layout.PROPRIOCEPTIVE)
        left = {f"{key} of rollouts" for key in (*keys, *observed) if key not in expected}
        left |= {name for name, snippet in groups.items() if not snippet and name not in _KNOWN}
        rollouts = [_read_metrics(file, snippet) for snippet in snippets]
        notes = None
        if layout.NOTES in opened:
            notes = read_notes(path, file.group(layout.NOTES))
            rollouts = [_with_notes(file, rollout, notes[1]) for rollout in rollouts]
        steps = None
        if "ref_steps" in opened:
            steps = tuple(read_whole(file.array("ref_steps", (None,), "iu")).tolist())
        return FileContents(
            path=path,
            widths=_observable_widths(file),
            keys=tuple(key for key in layout.STEP_KEYS if key in keys),
            action_dim=int(file.array(f"{first}/actions", (None, None)).shape[1]),
            ref_steps=steps,
            rollouts=rollouts,
            notes=notes,
            left=frozenset(left),
        )


@dataclass(frozen=True)
class CheckedFile:
    """An open file; DatasetError names it and the key."""

    path: Path
    file: h5py.File

    def group(self, key: str) -> h5py.Group:
        """The group at a key."""
        item = self._get(key)
        if not isinstance(item, h5py.Group):
            refuse(self.path, key, "must be a group")
        return item

    def names(self, key: str = "/") -> list[str]:
        """The keys of a group."""
        return [str(name) for name in self.group(key)]

    def array(self, key: str, shape: tuple[int | None, ...], kinds: str = "f") -> h5py.Dataset:
        """The array at a key, of a shape (None: any size) and of NumPy's `kinds`."""
        item = self._get(key)
        if not isinstance(item, h5py.Dataset):
            refuse(self.path, key, "must be an array")
        actual = item.shape or ()
        sizes = zip(shape, actual, strict=False)
        if len(actual) != len(shape) or any(want not in (None, size) for want, size in sizes):
            expected = ", ".join("any" if size is None else str(size) for size in shape)
            refuse(self.path, key, f"shape must be ({expected}), not {actual}")
        if item.dtype.kind not in kinds:
            refuse(self.path, key, f"dtype {item.dtype} is not allowed here")
        return item

    def values(self, key: str, shape: tuple[int | None, ...], kinds: str = "f") -> np.ndarray:
        """The values of an `array`."""
        with damage_named(self.path, key, "cannot be read"):
            return np.asarray(read_whole(self.array(key, shape, kinds)))

    def _get(self, key: str) -> h5py.HLObject:
        with damage_named(self.path, key, "the key is missing or damaged"):
            return self.file[key]


def read_float32(path: Path, file: h5py.File, key: str, out: np.ndarray) -> None:
    """Fill `out` (C order) from the array of its shape at a key."""
    try:  # h5py's low level: rollouts are short, and the high level doubles the time to read them
        dataset = h5py.h5d.open(file.id, key.encode())
        fits = (dataset.shape, dataset.dtype) == (out.shape, np.dtype(np.float32))
        if fits:
            if dataset.get_create_plist().get_nfilters():
                check_chunks(h5py.Dataset(dataset), 0, len(out))
            dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, out)
    except KeyError:
        fits = False
    except (OSError, RuntimeError, ImplausibleSizeError) as error:
        refuse(path, key, f"cannot be read: {first_line(error)}")
    if not fits:
        array = CheckedFile(path, file).array(key, out.shape)
        refuse(path, key, f"dtype must be float32, not {array.dtype}")
    check_finite(path, key, out)


def _observable_widths(file: CheckedFile) -> dict[str, int]:
    """Observable -> width, in the order of the observation's columns, which they must tile."""
    places = {
        name: file.values(f"{layout.INDICES}/{name}", (None,), "iu")
        for name in file.names(layout.INDICES)
    }
    ordered = sorted((name for name in places if len(places[name])), key=lambda n: places[n][0])
    if not ordered:
        refuse(file.path, layout.INDICES, "names no observable")
    widths = {name: len(places[name]) for name in ordered}
    for name, (start, stop) in consecutive_slices(widths).items():
        if not np.array_equal(places[name], np.arange(start, stop)):
            problem = f"must be columns {start} to {stop - 1}: observables tile the observation"
            refuse(file.path, f"{layout.INDICES}/{name}", problem)
    return widths


def _read_metrics(file: CheckedFile, snippet: layout.MocapactSnippet) -> Rollouts:
    """A snippet's rollouts: those from its start, then those from random points."""
    path = file.path
    columns: dict[str, list[np.ndarray]] = {}
    for random, where in enumerate((layout.START_METRICS, layout.RANDOM_METRICS)):
        at = f"{snippet.name}/{where}"
        names = file.names(at)
        lengths = file.values(f"{at}/episode_lengths", (None,), "iu").astype(np.int64)
        if ((lengths < 1) | (lengths > _MOST_STEPS)).any():
            refuse(path, f"{at}/episode_lengths", f"every episode needs 1 to {_MOST_STEPS} steps")
        metrics = {"length": lengths, "random_start": np.full(len(lengths), bool(random))}
        for name, column in layout.METRICS.items():
            if name in layout.REQUIRED_METRICS or name in names:
                values = file.values(f"{at}/{name}", lengths.shape)
                check_finite(path, f"{at}/{name}", values)
                metrics[column] = values.astype(np.float64)
        for column, values in metrics.items():
            columns.setdefault(column, []).append(values)
    joined = {name: np.concatenate(arrays) for name, arrays in columns.items()}
    total = len(joined["length"])
    if short := [name for name, values in joined.items() if len(values) != total]:
        refuse(path, snippet.name, f"some of its rollouts have no {short[0]}")
    groups = sum(name.isdecimal() for name in file.names(snippet.name))
    if groups != total or not total:
        refuse(path, snippet.name, f"has {groups} rollouts, but metrics of {total}")
    joined["terminated"] = file.values(f"{snippet.name}/{layout.EARLY}", (total,), "b")
    return Rollouts(path, snippet, joined)


def _with_notes(file: CheckedFile, rollouts: Rollouts, table: pa.Table) -> Rollouts:
    """The rollouts with their rows in the notes, whose lengths must be those of the metrics."""
    remedy = "delete it to use the arrays"
    snippet = rollouts.snippet.name
    names = file.values(f"{layout.NOTES}/{layout.NOTES_ROLLOUTS}", (table.num_rows,), "S")
    rows = {name.decode(): row for row, name in enumerate(names)}
    if "length" not in table.column_names:
        refuse(file.path, layout.NOTES, f"has no lengths of episodes; {remedy}")
    note_rows = np.array([rows.get(f"{snippet}/{number}", -1) for number in range(len(rollouts))])
    lengths = table.column("length").to_numpy()
    if (note_rows < 0).any() or not np.array_equal(lengths[note_rows], rollouts.columns["length"]):
        refuse(file.path, layout.NOTES, f"does not describe the rollouts of {snippet}; {remedy}")
    return replace(rollouts, note_rows=note_rows)
