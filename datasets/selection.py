"""Selections of episodes as immutable values, and selections as JSON files.

A selection is refined, hashed, described and read. Random numbers are counter-based (`hashed`): the
same on every machine, library version and rank.

The JSON file of a selection holds row ranges of parts, with the parts' content hashes.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, amount, disk_failures, failures, listed
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.hashing import hashed
from gaitforge.datasets.catalog import summaries
from gaitforge.datasets.catalog.catalog import Catalog
from gaitforge.datasets.catalog.edit_log import changed_columns
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.rows import Records
from gaitforge.datasets.catalog.summaries import grouped_outcomes, select_rows
from gaitforge.datasets.layout import SHARD_STEPS, check_outside_stores
from gaitforge.datasets.schema import (
    ACTION,
    EXECUTED,
    FINAL_OBS,
    OBS,
    Actions,
    Place,
    Schema,
    chosen_place,
    executed_schema,
    has_new_reward,
)
from gaitforge.datasets.storage.parts import row_runs
from gaitforge.datasets.storage.store import PartStore

_SPLIT = 4
_OF_ACTIONS = ("schema", "hash", "arrays_hash", "_shown")
"""Cached values of a selection that depend on its actions."""

ORIGINAL = "original_episode"
"""Column with the id of the episode that a counterfactual one repeats."""

CUT_FROM = "cut_from"
"""Column with the id of the episode that a piece was cut from; -1 for whole episodes."""

_FOLLOWS_FROM_STEPS = ("start", "length", "return", "terminated", "truncated")
"""Columns that edits set only with the episodes' steps or rewards, which the hash has anyway."""


@dataclass(frozen=True)
class Unit:
    """The selected episodes that start in one shard of one part; they are read together.

    `first` and `stop` are rows of the selection.
    """

    part_id: str
    first: int
    stop: int


def final_of(schema: Schema, name: str) -> str | None:
    """The step field whose value after the last step an episode field `final_<it>` holds."""
    final = schema.field(name)
    step = name.removeprefix("final_")
    if step == name or step not in schema.names("step"):
        return None
    field = schema.field(step)
    return step if (field.shape, field.dtype) == (final.shape, final.dtype) else None


class EpisodeSelection:
    """Whole episodes of a store, ordered by part and start; `len` counts them.

    It never changes: later commits to the store do not affect it. `catalog` is the store's at the
    time of the selection, and `rows` are ascending row numbers of it. `actions` is what
    is read as the field `action`, see `with_actions`; by default what is stored.
    """

    def __init__(
        self, store: PartStore, catalog: Catalog, rows: np.ndarray, actions: Actions = ""
    ) -> None:
        self.store = store
        self.catalog = catalog
        self.rows = rows
        self.actions = actions
        self.rows.flags.writeable = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def steps(self) -> int:
        """Steps of all episodes."""
        return int(self.lengths.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        """(E,) first step row of each episode within its part."""
        return self.catalog.starts[self.rows]

    @cached_property
    def lengths(self) -> np.ndarray:
        """(E,) steps of each episode."""
        return self.catalog.lengths[self.rows]

    @cached_property
    def schema(self) -> Schema:
        """The store's fields, with those that were added after the collection."""
        return self._stored_schema if self._shown is None else executed_schema(self._stored_schema)

    @cached_property
    def _stored_schema(self) -> Schema:
        added = {name: entry.field for name, entry in self.catalog.fields.items()}
        collected = [added.pop(field.name, field) for field in self.store.schema.fields]
        return replace(self.store.schema, fields=(*collected, *added.values()))

    @property
    def has_new_reward(self) -> bool:
        """Whether the rewards were replaced, here or in the store that this one was made from."""
        return "reward" in self.catalog.fields or has_new_reward(self.store.schema)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of `arrays_hash` and of the columns' values that annotations set, if any."""
        return self.hash_over((), self.catalog.overlaid_names)

    @cached_property
    def arrays_hash(self) -> str:
        """SHA-256 of `episodes_hash`, fields in a collected one's place, and executed actions."""
        return self.hash_over((), ())

    def hash_over(self, fields: Iterable[str], columns: Iterable[str]) -> str:
        """As `arrays_hash`, also of these fields that were added, and these columns' annotations.

        It is `episodes_hash` where no edit changed the selected episodes' values, and the actions
        are the stored ones.
        """
        collected = set(self.store.schema.names())
        names = sorted(self.catalog.fields.keys() & collected.union(fields))
        annotated = self._annotated(columns)
        executed = [] if self._shown is None else [f"executed actions {self._shown}"]
        if not names and not annotated.column_names and not executed:
            return self.episodes_hash
        parts = [part_id for part_id, _ in self.rows_by_part()]
        new = [str(self.catalog.fields[name].parts.get(part)) for name in names for part in parts]
        content = [self.episodes_hash, *names, *new, *executed]
        if annotated.column_names:
            content.append(f"annotated {episodes_digest(annotated)}")
        return hashlib.sha256("\n".join(content).encode()).hexdigest()

    def _annotated(self, columns: Iterable[str]) -> pa.Table:
        """Those of the columns in which an edit changed a value of the selected episodes."""
        wanted = set(columns).difference(_FOLLOWS_FROM_STEPS)
        names = sorted(name for name in wanted if name in self._changed)
        return self.catalog.rows(self.rows, names) if names else pa.table({})

    @cached_property
    def _changed(self) -> frozenset[str]:
        """Columns in which an edit changed a value of the selected episodes."""
        changed = changed_columns(self.catalog.collected, self.catalog, self.rows, self.rows)
        return frozenset(name for name, is_changed in changed.items() if is_changed.any())

    @cached_property
    def episodes_hash(self) -> str:
        """SHA-256 of the selected rows, the content hashes of their parts, and what was trimmed."""
        digest = hashlib.sha256()
        for part_id, rows in self.rows_by_part():
            digest.update(f"{self.catalog.manifests[part_id].content_hash}\n".encode())
            digest.update(rows.astype("<i8").tobytes())
        trimmed = self.catalog.trimmed
        if trimmed is not None and trimmed[self.rows].any():
            digest.update(b"trimmed\n")
            digest.update(np.stack([self.starts, self.lengths]).astype("<i8").tobytes())
        return digest.hexdigest()

    def episodes(self, *columns: str) -> pa.Table:
        """The catalog's columns (all, or the named ones), one row per episode."""
        return self.catalog.rows(self.rows, columns or None)

    def with_actions(self, actions: Actions = "") -> Self:
        """These episodes, with the "clean" or the "executed" actions as their field `action`.

        By default what was chosen before, else executed ones where the schema tells them
        (`executed_place`). Rewards and next observations follow from the executed ones; the clean
        ones are labels to imitate. The last action of an episode without `final_obs` is the stored
        one. A place in `obs` also names executed actions. DatasetError for actions nothing tells.
        """
        if not actions and self.actions:
            return self
        span = chosen_place(self._stored_schema, actions, self.store.address)
        chosen = object.__new__(type(self))  # not by copy(), which reopens the store
        vars(chosen).update(vars(self), actions=actions or ("" if span is None else EXECUTED))
        for name in _OF_ACTIONS:
            vars(chosen).pop(name, None)
        return chosen

    @cached_property
    def _shown(self) -> Place | None:
        """Where `obs` shows the executed actions that are read; None for the stored ones."""
        if not self.actions:
            return None
        return chosen_place(self._stored_schema, self.actions, self.store.address)

    def select(self, **equals: Any) -> Self:
        """The episodes whose columns have one of the given values; see `select_rows`.

        `equals` is column -> a value, several, or None for all: `terrain="flat", level=[0, 1]`.
        """
        values = {name: value for name, value in equals.items() if value is not None}
        if not values:
            return self
        return self._among(select_rows(self.catalog, values, self.store.address))

    def where(self, condition: str) -> Self:
        """The episodes for which a boolean SQL expression is true; see `matching_rows`."""
        from gaitforge.datasets.catalog.conditions import matching_rows  # DuckDB is slow to import

        return self._among(matching_rows(self.catalog, condition))

    def of_parts(self, part_ids: Sequence[str]) -> Self:
        """The episodes that were collected in these parts; DatasetError for an absent part."""
        bounds = self.catalog.part_bounds
        if absent := [part_id for part_id in part_ids if part_id not in bounds]:
            raise DatasetError(f"no part {listed(absent)} in {self.store.address}")
        rows = [np.arange(*bounds[part_id]) for part_id in part_ids]
        return self._among(np.concatenate([np.zeros(0, np.int64), *rows]))

    def best(self, share: float, group_by: Sequence[str] | None = None) -> Self:
        """The episodes with the highest returns of each group: this share of it, at least one.

        `group_by` is by default the schema's and, where there is one, the level, so that hard
        episodes are measured by others of their kind. Of equal returns the earlier rows count.
        """
        if not 0.0 < share <= 1.0:
            raise DatasetError(f"the best share must lie in (0, 1], not {share}")
        names = list(self.store.schema.group_by if group_by is None else group_by)
        if group_by is None and "level" in self.catalog.column_names:
            names.append("level")
        codes = [self.catalog.codes(name)[0][self.rows] for name in names]
        keys = np.stack(codes or [np.zeros_like(self.rows)], axis=1)
        _, group, sizes = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
        group = group.ravel()
        order = np.lexsort((-self.catalog.numbers("return")[self.rows], group))
        rank = np.arange(len(order)) - (np.cumsum(sizes) - sizes)[group[order]]
        kept = order[rank < np.ceil(share * sizes)[group[order]]]
        return self.with_rows(self.rows[np.sort(kept)])

    def describe(self, group_by: Sequence[str] | None = None) -> list[dict[str, Any]]:
        """Episodes and outcomes by group (the schema's `group_by`), one dict per group, sorted.

        A dict has the group's keys and `episodes`, `steps`, `return` (mean), `success` (rate),
        `terminated` (rate) or, of legged robots, `survival` (1 - that). `()` is one group.
        """
        return list(self.grouped(group_by))

    def grouped(self, group_by: Sequence[str] | None = None, bins: int = 0) -> Records:
        """As `describe`, for any number of groups: their dicts are made when they are read.

        Args:
            bins: about how many bins a column of more than 20 different numbers gets; a bin's key
                is [low, high], from `low` to below `high`. 0 for a group of each number.
        """
        asked = self.store.schema.group_by if group_by is None else group_by
        columns = list(dict.fromkeys(map(self.catalog.check_column, asked)))
        return grouped_outcomes(self.catalog, self.rows, columns, self.store.schema, bins)

    def listing(
        self, limit: int = 0, sort: str = "", show: Sequence[str] = ()
    ) -> list[dict[str, Any]]:
        """Single episodes, one dict each: name, part, groups, level, length, return, success, fell.

        At most `limit` (0: all), sorted by `sort` ("COLUMN" or "COLUMN desc"), and columns `show`.
        """
        return list(self.listed(limit, sort, show))

    def listed(self, limit: int = 0, sort: str = "", show: Sequence[str] = ()) -> Records:
        """As `listing`, for any number of episodes: their dicts are made when they are read."""
        rows = self.rows
        by = sort.split()[:1]
        if by:
            rows = summaries.sorted_rows(self.catalog, rows, sort)
        rows = rows[:limit] if limit else rows
        return summaries.listed_episodes(self.catalog, rows, self.store.schema, (*by, *show))

    def named(self, *names: str) -> Self:
        """The episodes with these names or ids; DatasetError if the selection lacks one."""
        address = self.store.address
        rows = np.unique([summaries.episode_row(self.catalog, name, address) for name in names])
        for row in rows[~np.isin(rows, self.rows)].tolist():
            name = summaries.episode_name(int(self.catalog.numbers("episode")[row]))
            raise DatasetError(f"episode {name} of {address} is not among the chosen ones")
        return self.with_rows(rows)

    def __repr__(self) -> str:
        total = len(self.catalog.shown)
        share = "all of" if len(self) == total else f"of {amount(total, 'episode')} in"
        sizes = f"{amount(len(self), 'episode')}, {amount(self.steps, 'step')}"
        return f"Selection({sizes}, {share} {self.store.address}; {'; '.join(self.kinds())})"

    def kinds(self) -> list[str]:
        """How many values of each grouping column, and which: "2 terrains: flat, rough"."""
        texts = []
        for name in self.store.schema.group_by:
            codes, values = self.catalog.codes(name)
            here = sorted(str(values[code]) for code in np.unique(codes[self.rows]))
            texts.append(f"{amount(len(here), name)}: {listed(here, 8)}")
        return texts

    def split(self, fraction: float, seed: int) -> tuple[Self, Self]:
        """Split into (rest, held out) by a hash of each episode's id and the seed.

        An episode is on the same side in every selection; `fraction` (0..1) is met on average. One
        that repeats another (`ORIGINAL`) or was cut from it (`CUT_FROM`) is on its side.
        """
        if not 0.0 <= fraction <= 1.0:
            raise DatasetError(f"the held-out fraction must be in 0..1, not {fraction}")
        uniform = hashed(seed, _SPLIT, self._originals()).astype(np.float64) / 2.0**64
        held_out = uniform < fraction
        return self.with_rows(self.rows[~held_out]), self.with_rows(self.rows[held_out])

    def _originals(self) -> np.ndarray:
        """(E,) each episode's id, or that of the one that it repeats or was cut from."""
        originals = self.episode_ids()
        for name in (CUT_FROM, ORIGINAL):
            columns = self.catalog.schema
            if name in columns.names and pa.types.is_integer(columns.field(name).type):
                ids = self.episodes(name).column(name).fill_null(-1).to_numpy()
                originals = np.where(ids >= 0, ids, originals)
        return originals

    def episode_ids(self) -> np.ndarray:
        """(E,) global episode ids from the collection plan."""
        return self.catalog.numbers("episode")[self.rows]

    def read(self, field: str) -> np.ndarray:
        """All values of one field: (steps, *shape), or (episodes, *shape) for an episode field."""
        described = self.schema.field(field)
        total = self.steps if described.per == "step" else len(self)
        out = np.empty((total, *described.shape), described.dtype)
        filled = 0
        for unit in self.units():
            count = int(self._field_rows(field, unit)[1].sum())
            self.read_unit(field, unit, out[filled : filled + count])
            filled += count
        return out

    def episode(self, index: int) -> dict[str, np.ndarray]:
        """Every field of one episode: (length, *shape), or (*shape) for an episode field."""
        if not 0 <= index < len(self):
            raise DatasetError(f"no episode {index}; the selection has 0..{len(self) - 1}")
        episode = self.with_rows(self.rows[[index]])
        values = {field.name: episode.read(field.name) for field in self.schema.fields}
        return values | {name: values[name][0] for name in self.schema.names("episode")}

    def units(self) -> list[Unit]:
        """The reading units in order; together they hold every selected episode once."""
        units: list[Unit] = []
        first = 0
        for part_id, rows in self.rows_by_part():
            stop = first + len(rows)
            shards = self.starts[first:stop] // SHARD_STEPS
            cuts = first + 1 + np.flatnonzero(np.diff(shards))
            bounds = [first, *cuts.tolist(), stop]
            units += [Unit(part_id, low, high) for low, high in pairwise(bounds)]
            first = stop
        return units

    def spread(self, steps: int, columns: Sequence[str] = ()) -> Self:
        """Whole reading units of so many steps or some more; all of them if there are fewer.

        Units are taken at even distances in the order of kinds and of sizes, so that both keep
        about their shares, whatever the order of the parts. A kind is what a unit's first episode
        has in `columns`, of which those that the catalog lacks are left out. Every value of these
        columns is in the result, unless that takes twice the steps.
        """
        units = self.units()
        if self.steps <= steps or len(units) < 2:
            return self
        first = np.array([unit.first for unit in units])
        sizes = np.add.reduceat(self.lengths, first)
        known = [name for name in columns if name in self.catalog.column_names]
        codes = [self.catalog.codes(name)[0][self.rows] for name in known]
        numbers = np.arange(len(units))
        # The hash is for units of one kind and size, which may alternate in what no column tells.
        order = np.lexsort([hashed(numbers), sizes, *(code[first] for code in codes[::-1])])
        count = min(len(units), -(-len(units) * steps // self.steps))
        taken = np.zeros(len(units), bool)
        taken[order[(2 * numbers[:count] + 1) * len(units) // (2 * count)]] = True
        unit_of = np.repeat(numbers, np.diff([*first, len(self)]))
        for code in codes:
            absent = np.setdiff1d(code, code[taken[unit_of]])
            while len(absent) and sizes[taken].sum() < 2 * steps:
                of_absent = np.bincount(unit_of, self.lengths * np.isin(code, absent), len(units))
                taken[of_absent.argmax()] = True
                absent = np.setdiff1d(code, code[taken[unit_of]])
        for number in order[np.argsort(hashed(numbers))]:
            if sizes[taken].sum() >= steps:
                break
            taken[number] = True
        return self.with_rows(self.rows[taken[unit_of]])

    def unit_rows(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """(E,) first row of each of the unit's episodes in `read_unit`'s array, and lengths."""
        lengths = self.lengths[unit.first : unit.stop]
        return np.cumsum(lengths) - lengths, lengths

    def read_unit(self, field: str, unit: Unit, out: np.ndarray | None = None) -> np.ndarray:
        """The unit's rows of one field, its selected episodes end to end, into `out` if given."""
        out = self._read_stored(field, unit, out)
        if field == ACTION and self._shown is not None:
            self._put_executed(out, unit, slice(*self._shown))
        return out

    def _put_executed(self, actions: np.ndarray, unit: Unit, shown: slice) -> None:
        """Replace a unit's actions by the executed ones that the next observations show."""
        starts, lengths = self.unit_rows(unit)
        last = starts + lengths - 1
        final = actions[last]
        if FINAL_OBS in self.schema.names("episode"):
            final = self._read_stored(FINAL_OBS, unit)[:, shown]
        actions[:-1] = self._read_stored(OBS, unit)[1:, shown]
        actions[last] = final

    def _read_stored(self, field: str, unit: Unit, out: np.ndarray | None = None) -> np.ndarray:
        described = self.schema.field(field)
        starts, lengths = self._field_rows(field, unit)
        if out is None:
            out = np.empty((int(lengths.sum()), *described.shape), described.dtype)
        with self.store.field_reader(self.catalog, unit.part_id, field) as reader:
            reader.read_runs(row_runs(starts, lengths), out)
        if described.per == "episode" and self.catalog.stops_cut is not None:
            self._read_new_finals(field, unit, out)
        return out

    def _read_new_finals(self, field: str, unit: Unit, out: np.ndarray) -> None:
        """Put the step after the last one where an episode was trimmed at its end."""
        episodes = slice(unit.first, unit.stop)
        assert self.catalog.stops_cut is not None
        cut = np.flatnonzero(self.catalog.stops_cut[self.rows[episodes]])
        step_field = final_of(self.schema, field)
        if len(cut) and step_field is not None:
            following = (self.starts[episodes] + self.lengths[episodes])[cut]
            finals = np.empty((len(cut), *out.shape[1:]), out.dtype)
            with self.store.field_reader(self.catalog, unit.part_id, step_field) as reader:
                reader.read_runs(row_runs(following, np.ones_like(following)), finals)
            out[cut] = finals

    def as_collected(self) -> Self:
        """The same episodes without the store's edits, to repeat a collection."""
        return type(self)(self.store, self.catalog.collected, self.rows, self.actions)

    def with_rows(self, rows: np.ndarray) -> Self:
        """A selection of the given ascending rows of the same catalog."""
        return type(self)(self.store, self.catalog, rows, self.actions)

    def _among(self, rows: np.ndarray) -> Self:
        kept = np.zeros(self.catalog.num_rows, bool)  # quicker than a sorted search
        kept[rows] = True
        return self.with_rows(self.rows[kept[self.rows]])

    def rows_by_part(self) -> list[tuple[str, np.ndarray]]:
        """Part id and selected rows, counted from the part's first, of each part it touches."""
        parts = []
        for part_id, (first, stop) in self.catalog.part_bounds.items():
            low, high = np.searchsorted(self.rows, (first, stop))
            if high > low:
                parts.append((part_id, self.rows[low:high] - first))
        return parts

    def _field_rows(self, field: str, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        if self.schema.field(field).per == "step":
            episodes = slice(unit.first, unit.stop)
            return self.starts[episodes], self.lengths[episodes]
        first, _ = self.catalog.part_bounds[unit.part_id]
        rows = self.rows[unit.first : unit.stop] - first
        return rows, np.ones_like(rows)


# Selections as JSON files.
SAVED_VERSION = 1

PartRuns = dict[str, tuple[str, list[tuple[int, int]]]]
"""Part id -> its content hash, and half-open runs of its episodes' rows, ascending and disjoint."""


def save_selection(selection: EpisodeSelection, path: str | os.PathLike[str]) -> None:
    """Write `episodes_hash`, the parts' content hashes, and the row ranges in each."""
    runs = part_runs(selection).items()
    parts = {part_id: {"content_hash": digest, "rows": rows} for part_id, (digest, rows) in runs}
    tree = {"selection_version": SAVED_VERSION, "hash": selection.episodes_hash, "parts": parts}
    with disk_failures(f"cannot write the selection to {path}"):
        write_bytes_durably(check_outside_stores(Path(path)), json.dumps(tree, indent=1).encode())


def load_selection(
    store: PartStore, path: str | os.PathLike[str], *, edited: bool = False
) -> EpisodeSelection:
    """Read a saved selection; DatasetError if it is none, or its parts are absent or changed.

    So it is for episodes that were dropped or trimmed since, unless `edited` takes what is left.
    """
    parts, recorded = _read(path)
    with failures(os.fspath(path)):
        loaded = selection_of_runs(store, parts)
    shown = np.isin(loaded.rows, loaded.catalog.shown, assume_unique=True)
    trimmed = loaded.catalog.trimmed
    lost = int((~shown).sum()) + (0 if trimmed is None else int(trimmed[loaded.rows[shown]].sum()))
    is_same = loaded.episodes_hash == recorded
    if edited and lost:
        return loaded.with_rows(loaded.rows[shown])
    if not shown.all() or (lost and not is_same):
        change = "dropped" if is_same else "dropped or trimmed"
        raise DatasetError(
            f"{path}: {lost} of its {len(loaded)} episodes were {change}; open the store at a tag "
            "from before, or select again"
        )
    if not is_same:
        raise DatasetError(f"{path} is damaged: its rows do not have the recorded hash")
    return loaded


def part_runs(selection: EpisodeSelection) -> PartRuns:
    """The selection's rows, which `selection_of_runs` selects again."""
    manifests = selection.catalog.manifests
    return {
        part_id: (manifests[part_id].content_hash, row_runs(rows, np.ones_like(rows)))
        for part_id, rows in selection.rows_by_part()
    }


def selection_of_runs(store: PartStore, parts: PartRuns) -> EpisodeSelection:
    """The selection of these rows; DatasetError if parts are absent, changed or have fewer."""
    catalog = store.catalog()
    rows: list[np.ndarray] = [np.zeros(0, np.int64)]
    for part_id in sorted(parts):
        content_hash, runs = parts[part_id]
        manifest = catalog.manifests.get(part_id)
        if manifest is None or manifest.content_hash != content_hash:
            subject = f"part {part_id} of {store.address}"
            raise DatasetError(f"{subject} is absent or changed; select again")
        if runs[-1][1] > manifest.episodes:
            problem = f"has {manifest.episodes} episodes, not {runs[-1][1]}"
            raise DatasetError(f"the selection is damaged: part {part_id} {problem}")
        first, _ = catalog.part_bounds[part_id]
        rows += [first + np.arange(start, stop) for start, stop in runs]
    return EpisodeSelection(store, catalog, np.concatenate(rows))


def _read(path: str | os.PathLike[str]) -> tuple[PartRuns, str]:
    try:
        tree = json.loads(Path(path).read_bytes())
        version = tree["selection_version"]
        if version == SAVED_VERSION:
            parts = {
                part_id: (str(entry["content_hash"]), _checked_runs(entry["rows"]))
                for part_id, entry in tree["parts"].items()
            }
            return parts, str(tree["hash"])
    except FileNotFoundError:
        raise DatasetError(f"no file {path}; gaitforge query --save FILE writes one") from None
    except (OSError, KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path} is not a saved selection") from error
    raise DatasetError(
        f"{path}: selection version {version}; this program reads version {SAVED_VERSION}"
    )


def _checked_runs(runs: Any) -> list[tuple[int, int]]:
    """Half-open (start, stop) runs, ascending and disjoint; ValueError for anything else."""
    bounds = [bound for start, stop in runs for bound in (start, stop)]
    if not bounds or any(type(bound) is not int for bound in bounds) or bounds[0] < 0:
        raise ValueError("rows must be runs of integers")
    if any(low >= high for low, high in pairwise(bounds)):
        raise ValueError("runs must ascend")
    return [(start, stop) for start, stop in runs]
