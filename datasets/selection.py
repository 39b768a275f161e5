"""A selection of episodes: a value that is refined, saved, hashed, described, read and streamed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from datasets.catalog import Catalog
from datasets.conditions import matching_rows
from datasets.errors import DatasetError, listed
from datasets.files import write_bytes_durably
from datasets.hashing import hashed
from datasets.parts import SHARD_STEPS
from datasets.shards import row_runs
from datasets.spectrum import SpectralEnergy, spectral_energy
from datasets.statistics import ChannelStatistics, channel_statistics

if TYPE_CHECKING:
    from datasets.store import Store
    from datasets.stream import WindowStream

SAVED_VERSION = 1
DEFAULT_POOL_WINDOWS = 16_384
_SPLIT = 4


@dataclass(frozen=True)
class Unit:
    """What is read together: the selected episodes that start in one shard of one part.

    Attributes:
        part_id: the part.
        first, stop: rows of the selection.
    """

    part_id: str
    first: int
    stop: int


class Selection:
    """Whole episodes of a store, ordered by part and start; it never changes.

    Later commits to the store do not touch it. ``len`` is the number of episodes.

    Args:
        store: the store.
        catalog: its catalog at the time of the selection.
        rows: ascending row numbers of the catalog's table.
    """

    def __init__(self, store: Store, catalog: Catalog, rows: np.ndarray) -> None:
        self.store = store
        self.catalog = catalog
        self.rows = rows
        self.rows.flags.writeable = False

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def steps(self) -> int:
        """Steps of all the episodes."""
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
    def hash(self) -> str:
        """SHA-256 of the selected rows and of the content of their parts, and of nothing else."""
        digest = hashlib.sha256()
        for part_id, rows in self._rows_by_part():
            digest.update(f"{self.catalog.manifests[part_id].content_hash}\n".encode())
            digest.update(rows.astype("<i8").tobytes())
        return digest.hexdigest()

    def episodes(self) -> pa.Table:
        """The catalog's columns, one row an episode."""
        return self.catalog.table.take(pa.array(self.rows))

    def where(self, condition: str) -> Selection:
        """Those episodes for which one boolean SQL expression over the columns is true.

        Raises:
            DatasetError: anything but such an expression; see ``conditions.matching_rows``.
        """
        matching = matching_rows(self.catalog.table, condition)
        kept = np.isin(self.rows, matching, assume_unique=True)
        return self._refined(np.flatnonzero(kept))

    def describe(self, group_by: Sequence[str] = ("terrain", "skill")) -> list[dict[str, Any]]:
        """One dict a group, sorted by key.

        Returns:
            The group's keys and ``episodes``, ``steps``, ``return`` (mean), ``success`` (rate) and
            ``survival`` (1 - rate of terminated). An empty ``group_by`` makes one group of all.

        Raises:
            DatasetError: unknown column.
        """
        if len(self) == 0:
            return []
        names = [self.catalog.check_column(name) for name in group_by]
        columns = list(dict.fromkeys([*names, "length", "return", "success", "terminated"]))
        table = self.catalog.table.select(columns).take(pa.array(self.rows))
        for flag in ("success", "terminated"):  # Arrow has no mean of booleans
            table = table.append_column(f"{flag} as number", table.column(flag).cast(pa.int8()))
        means = ("return", "success as number", "terminated as number")
        aggregates = [("length", "count"), ("length", "sum"), *((name, "mean") for name in means)]
        groups = table.group_by(names).aggregate(aggregates)
        if names:
            groups = groups.sort_by([(name, "ascending") for name in names])
        return [
            dict.fromkeys(names)
            | {
                "episodes": row["length_count"],
                "steps": row["length_sum"],
                "return": row["return_mean"],
                "success": row["success as number_mean"],
                "survival": 1.0 - row["terminated as number_mean"],
            }
            | {name: row[name] for name in names}
            for row in groups.to_pylist()
        ]

    def split(self, fraction: float, seed: int) -> tuple[Selection, Selection]:
        """Split into (rest, held out) by a hash of each episode's id and the seed.

        An episode lands on the same side whatever else is selected, so a held-out episode stays
        held out in every selection; ``fraction`` is met on average, not exactly.

        Raises:
            DatasetError: fraction outside 0..1.
        """
        if not 0.0 <= fraction <= 1.0:
            raise DatasetError(f"the held-out fraction must be in 0..1, not {fraction}")
        uniform = hashed(seed, _SPLIT, self.episode_ids()).astype(np.float64) / 2.0**64
        held_out = uniform < fraction
        return self._refined(np.flatnonzero(~held_out)), self._refined(np.flatnonzero(held_out))

    def episode_ids(self) -> np.ndarray:
        """(E,) global episode ids from the collection plan."""
        return self.catalog.table.column("episode").to_numpy()[self.rows]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the selection as a JSON file: its hash, its parts' hashes, and row ranges."""
        parts = {
            part_id: {
                "content_hash": self.catalog.manifests[part_id].content_hash,
                "rows": row_runs(rows, np.ones_like(rows)),
            }
            for part_id, rows in self._rows_by_part()
        }
        tree = {"selection_version": SAVED_VERSION, "hash": self.hash, "parts": parts}
        try:
            write_bytes_durably(Path(path), json.dumps(tree, indent=1).encode())
        except OSError as error:
            raise DatasetError(f"cannot write the selection to {path}: {error.strerror}") from error

    @classmethod
    def load(cls, store: Store, path: str | os.PathLike[str]) -> Selection:
        """Read a saved selection; the same episodes even after more parts were added.

        Raises:
            DatasetError: not a saved selection, or its parts are not in the store as they were.
        """
        try:
            tree = json.loads(Path(path).read_bytes())
            if tree["selection_version"] != SAVED_VERSION:
                raise DatasetError(
                    f"{path}: selection version {tree['selection_version']}; this program reads "
                    f"version {SAVED_VERSION}"
                )
            parts = {
                part: (each["content_hash"], each["rows"]) for part, each in tree["parts"].items()
            }
            recorded = tree["hash"]
        except (OSError, KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise DatasetError(f"{path} is not a saved selection") from error
        catalog = store.catalog()
        rows: list[np.ndarray] = [np.zeros(0, np.int64)]
        for part_id, (content_hash, runs) in parts.items():
            manifest = catalog.manifests.get(part_id)
            if manifest is None or manifest.content_hash != content_hash:
                raise DatasetError(
                    f"{path}: part {part_id} is not in {store.path} as it was when it was selected"
                )
            first, _ = catalog.part_bounds[part_id]
            rows += [first + np.arange(start, stop) for start, stop in runs]
        loaded = cls(store, catalog, np.concatenate(rows))
        if loaded.hash != recorded:
            raise DatasetError(f"{path} is damaged: its rows do not have the recorded hash")
        return loaded

    def read(self, field: str) -> np.ndarray:
        """All values of one field: (steps, *shape), or (episodes, *shape) for a field an episode.

        Raises:
            DatasetError: unknown field, or a damaged or missing object.
        """
        described = self.store.schema.field(field)
        total = self.steps if described.per == "step" else len(self)
        out = np.empty((total, *described.shape), described.dtype)
        filled = 0
        for unit in self.units():
            count = int(self._field_rows(field, unit)[1].sum())
            self._read_runs(field, unit, out[filled : filled + count])
            filled += count
        return out

    def episode(self, index: int) -> dict[str, np.ndarray]:
        """Every field of one episode: (length, *shape), or (*shape) for a field an episode.

        Raises:
            DatasetError: index outside the selection, or a damaged or missing object.
        """
        if not 0 <= index < len(self):
            raise DatasetError(f"no episode {index}; the selection has 0..{len(self) - 1}")
        one = self._refined(np.array([index]))
        return {
            each.name: one.read(each.name) if each.per == "step" else one.read(each.name)[0]
            for each in self.store.schema.fields
        }

    def units(self) -> list[Unit]:
        """The reading units in order; together they hold every selected episode once."""
        units: list[Unit] = []
        first = 0
        for part_id, rows in self._rows_by_part():
            stop = first + len(rows)
            shards = self.starts[first:stop] // SHARD_STEPS
            cuts = first + 1 + np.flatnonzero(np.diff(shards))
            bounds = [first, *cuts.tolist(), stop]
            units += [Unit(part_id, low, high) for low, high in pairwise(bounds)]
            first = stop
        return units

    def unit_rows(self, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        """(E,) first row of each of the unit's episodes in ``read_unit``'s array, and lengths."""
        lengths = self.lengths[unit.first : unit.stop]
        return np.cumsum(lengths) - lengths, lengths

    def read_unit(self, field: str, unit: Unit, out: np.ndarray | None = None) -> np.ndarray:
        """The unit's rows of one field, its selected episodes end to end, into ``out`` if given."""
        described = self.store.schema.field(field)
        if out is None:
            rows = int(self._field_rows(field, unit)[1].sum())
            out = np.empty((rows, *described.shape), described.dtype)
        self._read_runs(field, unit, out)
        return out

    def statistics(self, field: str) -> ChannelStatistics:
        """Count, mean, std, min and max of every channel of one field, in float64."""
        return channel_statistics(self, field)

    def spectral_energy(self, field: str, n: int = 128) -> SpectralEnergy:
        """Energy share per mode and channel over windows of ``n`` steps; see ``spectrum``."""
        return spectral_energy(self, field, n)

    def windows(
        self,
        context_len: int = 64,
        batch_size: int = 1024,
        fields: Sequence[str] = ("obs", "action"),
        seed: int = 0,
        epoch: int = 0,
        rank: int = 0,
        world_size: int = 1,
        return_to_go: bool = False,
        drop_last: bool = False,
        pool_windows: int = DEFAULT_POOL_WINDOWS,
        prefetch: int = 2,
    ) -> WindowStream:
        """Stream shuffled windows as batches of torch tensors; see ``stream.WindowStream``.

        The import is inside because it imports torch, which nothing else here needs.
        """
        from datasets.stream import StreamConfig, WindowStream

        config = StreamConfig(
            context_len=context_len,
            batch_size=batch_size,
            fields=tuple(fields),
            seed=seed,
            epoch=epoch,
            rank=rank,
            world_size=world_size,
            return_to_go=return_to_go,
            drop_last=drop_last,
            pool_windows=pool_windows,
            prefetch=prefetch,
        )
        return WindowStream(self, config)

    def _refined(self, positions: np.ndarray) -> Selection:
        return Selection(self.store, self.catalog, self.rows[positions])

    def _rows_by_part(self) -> list[tuple[str, np.ndarray]]:
        """The parts with selected episodes, and their rows counted from the part's first."""
        found = []
        for part_id, (first, stop) in self.catalog.part_bounds.items():
            low, high = np.searchsorted(self.rows, (first, stop))
            if high > low:
                found.append((part_id, self.rows[low:high] - first))
        return found

    def _field_rows(self, field: str, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
        if self.store.schema.field(field).per == "step":
            chosen = slice(unit.first, unit.stop)
            return self.starts[chosen], self.lengths[chosen]
        first, _ = self.catalog.part_bounds[unit.part_id]
        rows = self.rows[unit.first : unit.stop] - first
        return rows, np.ones_like(rows)

    def _read_runs(self, field: str, unit: Unit, out: np.ndarray) -> None:
        runs = row_runs(*self._field_rows(field, unit))
        with self.store.array_reader(self.catalog, unit.part_id, field) as reader:
            reader.read_runs(runs, out)


def select_rows(catalog: Catalog, wanted: Mapping[str, Any], path: Path) -> np.ndarray:
    """Rows of the catalog whose columns take one of the wanted values.

    Args:
        catalog: the episodes.
        wanted: column -> a value or several.
        path: of the store, for messages.

    Raises:
        DatasetError: an unknown column, or a value that no episode has.
    """
    keep = np.ones(catalog.table.num_rows, bool)
    for name, value in wanted.items():
        column = catalog.table.column(catalog.check_column(name))
        values = _as_list(value)
        present = set(pc.unique(column).to_pylist())  # type: ignore[attr-defined]
        for each in values:
            if each not in present:
                allowed = sorted(present - {None}, key=lambda one: (str(type(one)), one))
                raise DatasetError(f"no {name} {each!r} in {path}; there is: {listed(allowed)}")
        chosen = pa.array(values, column.type)
        keep &= np.asarray(pc.is_in(column, value_set=chosen))  # type: ignore[attr-defined]
    return np.flatnonzero(keep)


def query(
    store: Store,
    terrain: str | Sequence[str] | None = None,
    skill: str | Sequence[str] | None = None,
    level: int | Sequence[int] | None = None,
    where: str | None = None,
    group_by: Sequence[str] = ("terrain", "skill"),
) -> list[dict[str, Any]]:
    """Describe the episodes that match all the filters, grouped; opens no array.

    Returns:
        ``Selection.describe``'s rows.

    Raises:
        DatasetError: as ``Store.select``, ``Selection.where`` and ``Selection.describe``.
    """
    selection = store.select(terrain=terrain, skill=skill, level=level)
    if where is not None:
        selection = selection.where(where)
    return selection.describe(group_by)


def _as_list(value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        return [value]
    return list(value)
