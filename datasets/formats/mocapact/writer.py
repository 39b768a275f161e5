"""A selection as MoCapAct's HDF5; see ``mocapact_schema`` for the layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError, listed
from datasets.formats.hdf5 import write_notes
from datasets.formats.interface import Advance, Carried
from datasets.formats.mocapact.schema import (
    ATTRIBUTE,
    EARLY,
    INDICES,
    METRICS,
    NOTED_ROLLOUTS,
    NOTES,
    PROPRIOCEPTIVE,
    RANDOM_METRICS,
    START_METRICS,
    STEP_KEYS,
    ObservableLayout,
    Snippet,
    clip_name,
    clip_of,
    final_name,
)
from datasets.formats.sources import bounded_units, check_room
from datasets.schema import Schema
from datasets.selection.selection import Selection

FILE_SUFFIXES = (".hdf5", ".h5")
NEEDED = ("obs", "action", "reward", "final_obs")
CLIP_COLUMNS = ("clip", "snippet_start", "snippet_end", "random_start")


@dataclass(frozen=True)
class MocapactExportOptions:
    """How files are written.

    Attributes:
        notes: keep the schema and the catalog in the group ``gaitforge``, so that an import gives
            back the same episodes; other readers may ignore it.
    """

    notes: bool = True


class MocapactExporter:
    """Writes one file, if the destination ends in .hdf5 or .h5, or a folder with a file a clip.

    See ``interface.Exporter``.
    """

    Options: ClassVar[type[Any]] = MocapactExportOptions

    def __init__(self, options: MocapactExportOptions) -> None:
        self._options = options
        self._one_file = True
        self._plan: _Plan | None = None

    def check(self, selection: Selection, destination: Path) -> None:
        """See ``interface.Exporter``."""
        self._one_file = destination.suffix in FILE_SUFFIXES
        schema = selection.store.schema
        if missing := [name for name in NEEDED if name not in schema.names()]:
            raise DatasetError(
                f"a MoCapAct file needs the fields {listed(NEEDED)}; "
                f"{selection.store.address} lacks {listed(missing)}"
            )
        for name, dimensions in (("obs", 1), ("action", 1), ("reward", 0), ("final_obs", 1)):
            each = schema.field(name)
            if each.dtype != "float32" or len(each.shape) != dimensions:
                raise DatasetError(
                    f"a MoCapAct file needs {name} in float32 with {dimensions} dimensions a row; "
                    f"here it is {each.dtype} with shape {each.shape}"
                )
        _held_layout(schema)
        self._plan = _plan(selection)
        check_room(selection, destination)

    def write(self, selection: Selection, temporary: Path, advance: Advance) -> Carried:
        """See ``interface.Exporter``."""
        plan = self._plan or _plan(selection)
        layout, keys = _held_layout(selection.store.schema)
        if not self._one_file:
            temporary.mkdir()
        files = _Files(temporary, self._one_file, layout)
        try:
            for unit in bounded_units(selection):
                arrays = {name: selection.read_unit(name, unit) for name in _held(layout, keys)}
                firsts, lengths = selection.unit_rows(unit)
                for number, first in enumerate(firsts.tolist()):
                    rows = slice(first, first + int(lengths[number]))
                    episode = unit.first + number
                    files.write(plan, episode, arrays, keys, rows, number)
                advance(int(lengths.sum()))
            for name in files.sums:
                members = np.flatnonzero(plan.clips == name) if not self._one_file else None
                self._finish(files, name, selection, plan, members)
        finally:
            files.close()
        return self._carried(selection, layout, keys, plan)

    def _finish(
        self,
        files: _Files,
        name: str,
        selection: Selection,
        plan: _Plan,
        members: np.ndarray | None,
    ) -> None:
        """What a file says of all its rollouts; `members` are its episodes, None for all."""
        chosen = np.arange(len(selection)) if members is None else members
        file = files.open(name)
        _write_metrics(file, plan, chosen)
        _write_description(file, selection.store.schema, files.layout)
        files.sums[name].write(file)
        if self._options.notes:
            notes = file.create_group(NOTES)
            part = Selection(selection.store, selection.catalog, selection.rows[chosen])
            write_notes(notes, part)
            names = [f"{plan.snippets[each].name}/{plan.numbers[each]}" for each in chosen]
            encoded = np.array([each.encode() for each in names], "S")
            notes.create_dataset(NOTED_ROLLOUTS, data=encoded)

    def _carried(
        self, selection: Selection, layout: ObservableLayout, keys: Mapping[str, str], plan: _Plan
    ) -> Carried:
        schema = selection.store.schema
        held = _held(layout, keys)
        kept = [f"{', '.join(layout.fields)} and the final observation -> {PROPRIOCEPTIVE}"]
        kept += [f"{name} -> {key}" for name, key in keys.items()]
        left = [
            f"{name}: MoCapAct has no array of this kind"
            for name in schema.names()
            if name not in held
        ]
        left += [
            f"{key}: the store has no {name} in float32"
            for key, name in STEP_KEYS.items()
            if name not in keys
        ]
        left += [
            f"{key} of some snippets: not all of their rollouts have a {column}"
            for key, column in METRICS.items()
            if column in plan.columns and np.isnan(plan.columns[column]).any()
        ]
        notes = list(plan.notes)
        if self._options.notes:
            kept.append(f"the catalog and schema -> {NOTES}")
        else:
            left.append("columns of the catalog beside clip, snippet, start and metrics")
        notes.append(
            "stats follow the published files: sums of actions, too, are divided by the number of "
            "observations, which is larger by one an episode"
        )
        return Carried(tuple(kept), tuple(left), tuple(notes))


@dataclass(frozen=True, eq=False)
class _Plan:
    """Where each episode of the selection goes: its snippet and the number of its rollout there.

    Attributes:
        clips: (E,) names; numbers: (E,); columns: name -> (E,) metrics (NaN where there is none),
            random_start, terminated.
        notes: what was assumed.
    """

    snippets: list[Snippet]
    clips: np.ndarray
    numbers: np.ndarray
    columns: Mapping[str, np.ndarray]
    notes: tuple[str, ...]


def _plan(selection: Selection) -> _Plan:
    table = selection.episodes()
    snippets, random, notes = _snippets(selection, table)
    for each in set(snippets):
        if Snippet.parse(each.name) != each:
            frames = f"{each.start} to {each.end}"
            raise DatasetError(f"clip {clip_of(each.clip)}: no frames are {frames}; count from 0")
    order = _numbers(table, "rollout")
    if order is None:
        order = np.full(len(snippets), np.nan)
    numbers = _numbered(snippets, random, order)
    if (numbers != order)[np.isfinite(order)].any():
        notes.append("rollouts were numbered anew, for some of their snippets were not selected")
    columns = {
        "length": selection.lengths,
        "random_start": random,
        "terminated": table.column("terminated").to_numpy().astype(bool),
    }
    for column in METRICS.values():
        values = _numbers(table, column)
        if values is not None:
            columns[column] = values
    clips = np.array([each.clip for each in snippets], object)
    return _Plan(snippets, clips, numbers, columns, tuple(notes))


def _snippets(selection: Selection, table: pa.Table) -> tuple[list[Snippet], np.ndarray, list[str]]:
    """(E,) snippets, (E,) whether they start at a random point, and what was assumed.

    Episodes of which the catalog does not tell all of this go by their skill.
    """
    count = len(selection)
    told = {
        name: table.column(name).to_pylist() if name in table.column_names else [None] * count
        for name in CLIP_COLUMNS
    }
    rows = list(
        zip(
            *told.values(),
            table.column(selection.store.schema.group_by[1]).to_pylist(),
            strict=True,
        )
    )
    unknown = [episode for episode, row in enumerate(rows) if None in row[:-1]]
    longest: dict[str, int] = {}
    for episode in unknown:
        skill = rows[episode][-1]
        longest[skill] = max(longest.get(skill, 0), int(selection.lengths[episode]))
    for episode in unknown:
        skill = rows[episode][-1]
        rows[episode] = (skill, 0, longest[skill], False, skill)
    notes = []
    if unknown:
        lacking = [name for name, values in told.items() if None in values]
        notes.append(
            f"{len(unknown)} of {count} episodes have no {listed(lacking)} in the catalog: there "
            "an episode's skill stands for its clip, of which the snippet is as long as the "
            "longest of them, and all start where it does"
        )
    snippets = [Snippet(clip_name(str(clip)), start, end) for clip, start, end, *_ in rows]
    return snippets, np.array([bool(row[3]) for row in rows]), notes


def _numbers(table: pa.Table, name: str) -> np.ndarray | None:
    """A column of numbers as float64, NaN where one is missing; None if it is not there."""
    if name not in table.column_names:
        return None
    kind = table.column(name).type
    if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        return None
    values = table.column(name).cast(pa.float64()).to_numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _numbered(snippets: list[Snippet], random: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(E,) the number of each rollout in its snippet: those from the start first, then by order."""
    numbers = np.empty(len(snippets), np.int64)
    following: dict[Snippet, int] = {}
    for episode in np.lexsort((order, random)).tolist():
        numbers[episode] = following.get(snippets[episode], 0)
        following[snippets[episode]] = int(numbers[episode]) + 1
    return numbers


def _held_layout(schema: Schema) -> tuple[ObservableLayout, dict[str, str]]:
    """The observables, and field -> key of the other arrays that the format holds."""
    usable = {each.name for each in schema.fields if each.dtype == "float32" and each.per == "step"}
    whole = ObservableLayout.of_schema(schema)
    finals = {final_name(name) for name in whole.fields}
    if unpaired := [name for name in finals if name not in schema.names("episode")]:
        raise DatasetError(f"a MoCapAct file needs the last observation, too: field {unpaired[0]}")
    for name in whole.fields:
        if schema.field(final_name(name)).shape != schema.field(name).shape or name not in usable:
            raise DatasetError(f"field {name} must be float32 and of the shape of its final row")
    shapes = {key: (schema.field("action").shape if "actions" in key else ()) for key in STEP_KEYS}
    keys = {
        name: key
        for key, name in STEP_KEYS.items()
        if name in usable and schema.field(name).shape == shapes[key]
    }
    return whole, keys


def _held(layout: ObservableLayout, keys: Mapping[str, str]) -> list[str]:
    return [*keys, *layout.fields, *map(final_name, layout.fields)]


@dataclass
class _Sums:
    """Sums over a file's rows, of which ``stats`` are made."""

    count: int = 0
    totals: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, rows: np.ndarray) -> None:
        wide = rows.astype(np.float64)
        for key, values in ((f"{name}_sum", wide), (f"{name}_squares", wide * wide)):
            self.totals[key] = self.totals.get(key, 0.0) + values.sum(axis=0)

    def write(self, file: h5py.File) -> None:
        """Means and variances, both sums divided by the count of observations as published."""
        stats = file.create_group("stats")
        for key in [key for key in self.totals if key.endswith("_sum")]:
            name = key.removesuffix("_sum")
            mean = self.totals[key] / self.count
            variance = self.totals[f"{name}_squares"] / self.count - mean**2
            stats.create_dataset(f"{name}_mean", data=mean.astype(np.float32))
            stats.create_dataset(f"{name}_var", data=np.maximum(variance, 0).astype(np.float32))
        stats.create_dataset("count", data=np.int64(self.count))


class _Files:
    """The files that are written, one open at a time, and the sums of each by its name."""

    def __init__(self, place: Path, one_file: bool, layout: ObservableLayout) -> None:
        self._place, self._one_file = place, one_file
        self._name, self._file = "", None
        self._runs = layout.runs
        self.layout = layout
        self.sums: dict[str, _Sums] = {}

    def open(self, name: str) -> h5py.File:
        """The file of a clip, or the only one."""
        if self._file is None or name != self._name:
            self.close()
            path = self._place if self._one_file else self._place / f"{name}.hdf5"
            self._file, self._name = h5py.File(path, "a"), name
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def write(
        self,
        plan: _Plan,
        episode: int,
        arrays: Mapping[str, np.ndarray],
        keys: Mapping[str, str],
        rows: slice,
        number: int,
    ) -> None:
        """Write one rollout; `rows` and `number` are the episode's in the unit's arrays."""
        name = "" if self._one_file else plan.clips[episode]
        sums = self.sums.setdefault(name, _Sums())
        where = f"{plan.snippets[episode].name}/{plan.numbers[episode]}"
        group = self.open(name).create_group(where)
        for field_name, key in keys.items():
            group.create_dataset(key, data=arrays[field_name][rows])
        seen = np.empty((rows.stop - rows.start + 1, self.layout.width), np.float32)
        for run in self._runs:
            seen[:-1, run.first : run.stop] = arrays[run.field][rows, run.target]
            seen[-1, run.first : run.stop] = arrays[final_name(run.field)][number, run.target]
        group.create_dataset(PROPRIOCEPTIVE, data=seen)
        sums.count += len(seen)
        sums.add("proprio", seen)
        sums.add("act", arrays["action"][rows])
        if "mean_action" in keys:
            sums.add("mean_act", arrays["mean_action"][rows])


def _write_metrics(file: h5py.File, plan: _Plan, chosen: np.ndarray) -> None:
    """Metrics and early terminations of a file's snippets, and how many rollouts start where."""
    of_snippet: dict[Snippet, list[int]] = {}
    for episode in chosen.tolist():
        of_snippet.setdefault(plan.snippets[episode], []).append(episode)
    most = {False: 0, True: 0}
    for snippet, members in of_snippet.items():
        ordered = np.array(members)[np.argsort(plan.numbers[members])]
        group = file.require_group(snippet.name)
        group.create_dataset(EARLY, data=plan.columns["terminated"][ordered])
        for random, where in ((False, START_METRICS), (True, RANDOM_METRICS)):
            those = ordered[plan.columns["random_start"][ordered] == random]
            most[random] = max(most[random], len(those))
            metrics = group.create_group(where)
            metrics.create_dataset("episode_lengths", data=plan.columns["length"][those])
            for key, column in METRICS.items():
                if column in plan.columns and not np.isnan(plan.columns[column][ordered]).any():
                    values = plan.columns[column][those]
                    metrics.create_dataset(key, data=_as_published(key, values))
    file.create_dataset("n_start_rollouts", data=np.int64(most[False]))
    file.create_dataset("n_rsi_rollouts", data=np.int64(most[True]))


def _as_published(key: str, values: np.ndarray) -> np.ndarray:
    """Returns in float32 where it holds them, as sums of float32 rewards are."""
    narrow = values.astype(np.float32)
    return narrow if key == "episode_returns" and np.array_equal(narrow, values) else values


def _write_description(file: h5py.File, schema: Schema, layout: ObservableLayout) -> None:
    for name, (start, stop) in layout.slices.items():
        file.create_dataset(f"{INDICES}/{name}", data=np.arange(start, stop, dtype=np.int64))
    steps = schema.attributes.get(ATTRIBUTE, {}).get("ref_steps")
    if steps is not None:
        file.create_dataset("ref_steps", data=np.array(steps, np.int64))
