"""Export of a selection as MoCapAct's HDF5; `mocapact_schema.py` describes the layout."""

from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.formats.hdf5 import write_notes
from gaitforge.datasets.formats.protocol import Advance, Carried, Exporter, ExportOptions
from gaitforge.datasets.formats.sources import Block, blocks, check_fields, check_room
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.plugins.mocapact.format import mocapact_schema as keys

CLIP_COLUMNS = ("clip", "snippet_start", "snippet_end", "random_start")
_DIMENSIONS = {"obs": 1, "action": 1, "reward": 0, "final_obs": 1}


@dataclass(frozen=True)
class MocapactExportOptions(ExportOptions):
    """How files are written.

    Attributes:
        notes: embed the schema and the catalog in the group `gaitforge`, so that an import gives
            back the same episodes; other readers ignore them.
        actions: see `ExportOptions`.
    """

    notes: bool = True


class MocapactExporter(Exporter):
    """Writes one file, if the destination ends in .hdf5 or .h5, or a folder with a file per clip.

    See `protocol.Exporter`.
    """

    Options = MocapactExportOptions

    def check(self, selection: EpisodeSelection, destination: Path) -> None:
        """See `protocol.Exporter`."""
        self._one_file = destination.suffix in keys.SUFFIXES
        schema = selection.schema
        check_fields(selection, "a MoCapAct file", tuple(_DIMENSIONS))
        for name, dimensions in _DIMENSIONS.items():
            schema_field = schema.field(name)
            if schema_field.dtype != "float32" or len(schema_field.shape) != dimensions:
                need = f"{name} in float32 with {dimensions} dimensions a row"
                actual = f"here it is {schema_field.dtype} with shape {schema_field.shape}"
                raise DatasetError(f"a MoCapAct file needs {need}; {actual}")
        _Content(schema)
        _Plan(selection)
        check_room(selection, destination)

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """See `protocol.Exporter`."""
        content = _Content(selection.schema)
        plan = _Plan(selection)
        if not self._one_file:
            temporary.mkdir()
        with _Files(temporary, self._one_file, content, plan) as files:
            for block in blocks(selection):
                files.write(block)
                advance(block.n_steps)
            for name in files.sums:
                everything = np.arange(len(selection))
                episodes = everything if self._one_file else everything[plan.clips == name]
                files.finish(name, episodes)
                if self._options.notes:
                    group = files.open(name).create_group(keys.NOTES)
                    _write_notes(group, selection, plan, episodes)
        return self._carried(content, plan)

    def _carried(self, content: "_Content", plan: "_Plan") -> Carried:
        array_keys = content.keys
        fields = ", ".join(content.layout.fields)
        kept = [f"{fields} and the final observation -> {keys.PROPRIOCEPTIVE}"]
        kept += [f"{name} -> {key}" for name, key in array_keys.items()]
        dropped = [name for name in content.schema.names() if name not in content.fields]
        left = [f"{name}: MoCapAct has no array of this kind" for name in dropped]
        absent = [(key, name) for key, name in keys.STEP_KEYS.items() if name not in array_keys]
        left += [f"{key}: the store has no {name} in float32" for key, name in absent]
        left += [
            f"{key} of some snippets: not all of their rollouts have a {column}"
            for key, column in keys.METRICS.items()
            if 0 < np.isnan(plan.columns[column]).sum() < len(plan.snippets)
        ]
        notes = [
            *plan.notes,
            "stats as in the published files: sums of actions, too, are divided by the number of "
            "observations, which is larger by one per episode",
        ]
        if self._options.notes:
            kept.append(f"the catalog and schema -> {keys.NOTES}")
        else:
            left.append("columns of the catalog beside clip, snippet, start and metrics")
        return Carried(tuple(kept), tuple(left), tuple(notes))


class _Content:
    """The fields of a store that the format holds.

    Attributes:
        layout: the observables; keys: field -> key of the other arrays; fields: all of them.
    """

    def __init__(self, schema: Schema) -> None:
        usable = {
            schema_field.name for schema_field in schema.fields if schema_field.dtype == "float32"
        }
        usable &= set(schema.names("step"))
        self.schema, self.layout = schema, keys.ObservableLayout.of_schema(schema)
        observed = list(self.layout.fields)
        for name in observed:
            final = f"final_{name}"
            if final not in schema.names("episode"):
                raise DatasetError(f"a MoCapAct file needs the last observation in field {final}")
            if schema.field(final).shape != schema.field(name).shape or name not in usable:
                raise DatasetError(f"field {name} must be float32 and of the shape of {final}")
        action = schema.field("action").shape
        self.keys = {
            name: key
            for key, name in keys.STEP_KEYS.items()
            if name in usable and schema.field(name).shape == (action if "actions" in key else ())
        }
        self.fields = [*self.keys, *observed, *(f"final_{name}" for name in observed)]


class _Plan:
    """Target of each episode of the selection: its snippet and the number of its rollout there.

    Attributes:
        snippets: one per episode.
        clips: (E,) names; numbers: (E,).
        columns: name -> (E,): length, random_start, terminated, and metrics with NaN for none.
        notes: assumptions.
    """

    def __init__(self, selection: EpisodeSelection) -> None:
        table = selection.episodes()
        self.snippets, random, self.notes = _snippets(selection, table)
        for snippet in set(self.snippets):
            if keys.MocapactSnippet.parse(snippet.name) != snippet:
                problem = f"no frames are {snippet.start} to {snippet.end}; count from 0"
                raise DatasetError(f"clip {keys.clip_of(snippet.clip)}: {problem}")
        order = _numbers(table, "rollout")
        self.numbers = _numbered(self.snippets, random, order)
        if (self.numbers != order)[np.isfinite(order)].any():
            problem = "some of their snippets' rollouts were not selected"
            self.notes.append(f"rollouts were numbered anew: {problem}")
        self.columns: dict[str, np.ndarray] = {
            "length": selection.lengths,
            "random_start": random,
            "terminated": table.column("terminated").to_numpy().astype(bool),
        }
        self.columns |= {column: _numbers(table, column) for column in keys.METRICS.values()}
        self.clips = np.array([snippet.clip for snippet in self.snippets], object)

    def rollout(self, episode: int) -> str:
        """The group of an episode."""
        return f"{self.snippets[episode].name}/{self.numbers[episode]}"


def _snippets(
    selection: EpisodeSelection, table: pa.Table
) -> tuple[list[keys.MocapactSnippet], np.ndarray, list[str]]:
    """(E,) snippets, (E,) whether they start at a random point, and assumptions.

    Episodes without these columns in the catalog go by their skill.
    """
    nothing = pa.nulls(len(table))
    columns = {
        name: (table.column(name) if name in table.column_names else nothing).to_pylist()
        for name in CLIP_COLUMNS
    }
    rows = list(zip(*columns.values(), strict=True))
    skills = table.column(selection.schema.group_by[1]).to_pylist()
    lengths = selection.lengths.tolist()
    unknown = [episode for episode, row in enumerate(rows) if None in row]
    longest: dict[str, int] = {}
    for episode in unknown:
        longest[skills[episode]] = max(longest.get(skills[episode], 0), lengths[episode])
    for episode in unknown:
        rows[episode] = (skills[episode], 0, longest[skills[episode]], False)
    notes = []
    if unknown:
        lacking = [name for name, values in columns.items() if None in values]
        notes.append(
            f"{len(unknown)} of {len(rows)} episodes have no {listed(lacking)} in the catalog: "
            "their skill is taken as their clip, of one snippet as long as the longest of them"
        )
    snippets = [
        keys.MocapactSnippet(keys.clip_name(str(clip)), start, end) for clip, start, end, _ in rows
    ]
    return snippets, np.array([bool(row[3]) for row in rows]), notes


def _numbers(table: pa.Table, name: str) -> np.ndarray:
    """A numeric column as float64 with NaN for missing values, or where there is none."""
    kind = table.schema.field(name).type if name in table.column_names else pa.null()
    if not pa.types.is_integer(kind) and not pa.types.is_floating(kind):
        return np.full(len(table), np.nan)
    values = table.column(name).cast(pa.float64()).to_numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _numbered(
    snippets: list[keys.MocapactSnippet], random: np.ndarray, order: np.ndarray
) -> np.ndarray:
    """(E,) number of each rollout in its snippet: those from the start first, then by `order`."""
    numbers = np.empty(len(snippets), np.int64)
    following: dict[keys.MocapactSnippet, int] = {}
    for episode in np.lexsort((order, random)).tolist():
        numbers[episode] = following.get(snippets[episode], 0)
        following[snippets[episode]] = int(numbers[episode]) + 1
    return numbers


@dataclass
class _Sums:
    """Sums over a file's rows, for `stats`."""

    count: int = 0
    totals: dict[str, np.ndarray] = field(default_factory=dict)

    def add(self, name: str, rows: np.ndarray) -> None:
        wide = rows.astype(np.float64)
        sums = np.stack([wide.sum(axis=0), (wide * wide).sum(axis=0)])
        self.totals[name] = self.totals.get(name, 0.0) + sums

    def write(self, file: h5py.File) -> None:
        """Means and variances, both sums divided by the count of observations as published."""
        stats = file.create_group("stats")
        for name, (total, squares) in self.totals.items():
            mean = total / self.count
            variance = squares / self.count - mean**2
            stats.create_dataset(f"{name}_mean", data=mean.astype(np.float32))
            stats.create_dataset(f"{name}_var", data=np.maximum(variance, 0).astype(np.float32))
        stats.create_dataset("count", data=np.int64(self.count))


class _Files(ExitStack):
    """The files, one open at a time; `sums` is file name -> its sums."""

    def __init__(self, path: Path, one_file: bool, content: _Content, plan: _Plan) -> None:
        super().__init__()
        self._place = path
        self._one_file = one_file
        self._content = content
        self._plan = plan
        self._name: str | None = None
        self.sums: dict[str, _Sums] = {}

    def open(self, name: str) -> h5py.File:
        """The file of a clip, or the only one."""
        if name != self._name:
            self.close()
            path = self._place if self._one_file else self._place / f"{name}.hdf5"
            # Only this process knows the file, and not every file system has locks.
            self._file = self.enter_context(h5py.File(path, "a", locking=False))
            self._name = name
        return self._file

    def write(self, block: Block) -> None:
        """Write the rollouts of a block."""
        plan = self._plan
        content = self._content
        arrays = block.read(self._content.fields)
        for number, (length, stop) in enumerate(zip(block.lengths, block.stops, strict=True)):
            rows = slice(stop - length, stop)
            episode = block.first + number
            file_name = "" if self._one_file else plan.clips[episode]
            sums = self.sums.setdefault(file_name, _Sums())
            group = self.open(file_name).create_group(plan.rollout(episode))
            for field_name, key in content.keys.items():
                group.create_dataset(key, data=arrays[field_name][rows])
            seen = np.empty((length + 1, content.layout.width), np.float32)
            for name, columns in content.layout.columns.items():
                seen[:-1, columns] = arrays[name][rows]
                seen[-1, columns] = arrays[f"final_{name}"][number]
            group.create_dataset(keys.PROPRIOCEPTIVE, data=seen)
            sums.count += len(seen)
            sums.add("proprio", seen)
            sums.add("act", arrays["action"][rows])
            if "mean_action" in content.keys:
                sums.add("mean_act", arrays["mean_action"][rows])

    def finish(self, name: str, episodes: np.ndarray) -> None:
        """Write a file's metrics, indices and statistics; its rollouts are these episodes."""
        file = self.open(name)
        schema = self._content.schema
        _write_metrics(file, self._plan, episodes)
        for observable, bounds in self._content.layout.slices.items():
            columns = np.arange(*bounds, dtype=np.int64)
            file.create_dataset(f"{keys.INDICES}/{observable}", data=columns)
        steps = schema.attributes.get(keys.ATTRIBUTE, {}).get("ref_steps")
        if steps is not None:
            file.create_dataset("ref_steps", data=np.array(steps, np.int64))
        self.sums[name].write(file)


def _write_notes(
    group: h5py.Group, selection: EpisodeSelection, plan: _Plan, episodes: np.ndarray
) -> None:
    write_notes(group, selection.with_rows(selection.rows[episodes]))
    names = np.array([plan.rollout(episode).encode() for episode in episodes], "S")
    group.create_dataset(keys.NOTES_ROLLOUTS, data=names)


def _write_metrics(file: h5py.File, plan: _Plan, episodes: np.ndarray) -> None:
    """Metrics and early terminations of a file's snippets, and the most rollouts of each start."""
    of_snippet: dict[keys.MocapactSnippet, list[int]] = {}
    for episode in episodes.tolist():
        of_snippet.setdefault(plan.snippets[episode], []).append(episode)
    starts = {False: keys.START_METRICS, True: keys.RANDOM_METRICS}
    most = {False: 0, True: 0}
    for snippet, members in of_snippet.items():
        ordered = np.array(members)[np.argsort(plan.numbers[members])]
        group = file.require_group(snippet.name)
        group.create_dataset(keys.EARLY, data=plan.columns["terminated"][ordered])
        for random, where in starts.items():
            those = ordered[plan.columns["random_start"][ordered] == random]
            most[random] = max(most[random], len(those))
            metrics = group.create_group(where)
            metrics.create_dataset("episode_lengths", data=plan.columns["length"][those])
            for key, column in keys.METRICS.items():
                if not np.isnan(plan.columns[column][ordered]).any():
                    values = plan.columns[column][those]
                    metrics.create_dataset(key, data=_as_published(key, values))
    file.create_dataset("n_start_rollouts", data=np.int64(most[False]))
    file.create_dataset("n_rsi_rollouts", data=np.int64(most[True]))


def _as_published(key: str, values: np.ndarray) -> np.ndarray:
    """Returns in float32 where it holds them, as sums of float32 rewards are."""
    narrow = values.astype(np.float32)
    return narrow if key == "episode_returns" and np.array_equal(narrow, values) else values
