"""A selection of episodes: a value that is refined, saved, hashed, described, read and streamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
import pyarrow as pa

from datasets.analysis.quantiles import DEFAULT_QUANTILES, channel_quantiles
from datasets.analysis.spectrum import SpectralEnergy, spectral_energy
from datasets.analysis.statistics import ChannelStatistics, channel_statistics
from datasets.catalog.catalog import Catalog
from datasets.catalog.grouping import grouped_outcomes
from datasets.errors import DatasetError
from datasets.hashing import hashed
from datasets.layout import SHARD_STEPS

if TYPE_CHECKING:
    import dask.array
    import xarray

    from datasets.analysis.dask_arrays import Scheduler
    from datasets.storage.store import Store
    from datasets.stream.config import StreamSettings
    from datasets.stream.materialise import Materialised
    from datasets.stream.window_stream import WindowStream

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
        for part_id, rows in self.rows_by_part():
            digest.update(f"{self.catalog.manifests[part_id].content_hash}\n".encode())
            digest.update(rows.astype("<i8").tobytes())
        return digest.hexdigest()

    def episodes(self) -> pa.Table:
        """The catalog's columns, one row an episode."""
        return self.catalog.rows(self.rows)

    def where(self, condition: str) -> Selection:
        """Those episodes for which one boolean SQL expression over the columns is true.

        Raises:
            DatasetError: anything but such an expression; see ``conditions.matching_rows``.
        """
        from datasets.catalog.conditions import matching_rows  # inside: DuckDB is slow to import

        matching = matching_rows(self.catalog, condition)
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
        names = [self.catalog.check_column(name) for name in group_by]
        return grouped_outcomes(self.catalog, self.rows, list(dict.fromkeys(names)))

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
        return self.catalog.numbers("episode")[self.rows]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the selection as a JSON file: its hash, its parts' hashes, and row ranges."""
        from datasets.selection.saved import save_selection

        save_selection(self, path)

    @classmethod
    def load(cls, store: Store, path: str | os.PathLike[str]) -> Selection:
        """Read a saved selection; the same episodes even after more parts were added.

        Raises:
            DatasetError: not a saved selection, or its parts are not in the store as they were.
        """
        from datasets.selection.saved import saved_rows

        catalog = store.catalog()
        rows, recorded = saved_rows(store, catalog, path)
        loaded = cls(store, catalog, rows)
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
        for part_id, rows in self.rows_by_part():
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

    def statistics(self, field: str, scheduler: Scheduler = None) -> ChannelStatistics:
        """Count, mean, std, min and max of every channel of one field, in float64."""
        return channel_statistics(self, field, scheduler)

    def quantiles(
        self,
        field: str,
        quantiles: Sequence[float] = DEFAULT_QUANTILES,
        scheduler: Scheduler = None,
    ) -> np.ndarray:
        """(Q, *shape) exact quantiles of every channel of one field; see ``quantiles``."""
        return channel_quantiles(self, field, quantiles, scheduler)

    def spectral_energy(
        self, field: str, n: int = 128, scheduler: Scheduler = None
    ) -> SpectralEnergy:
        """Energy per mode and channel over windows of ``n`` steps; see ``spectrum``."""
        return spectral_energy(self, field, n, scheduler)

    def dask(self, field: str) -> dask.array.Array:
        """One field as a lazy Dask array; see ``dask_arrays.selection_array``."""
        from datasets.analysis.dask_arrays import selection_array

        return selection_array(self, field)

    def to_xarray(self, fields: Sequence[str] | None = None) -> xarray.Dataset:
        """All or some fields as a lazy xarray Dataset; see ``xarray_view.selection_dataset``."""
        from datasets.analysis.xarray_view import selection_dataset

        return selection_dataset(self, fields)

    def windows(
        self,
        context_len: int = 64,
        batch_size: int = 1024,
        **settings: Unpack[StreamSettings],
    ) -> WindowStream:
        """Stream shuffled windows as batches of torch tensors.

        Args:
            context_len: K, steps of a window.
            batch_size: windows of a batch on each rank.
            **settings: ``fields``, ``seed``, ``epoch``, ``rank``, ``world_size`` and the others of
                ``stream_config.StreamConfig``.

        Raises:
            DatasetError: see ``stream.WindowStream``.
        """
        from datasets.stream.pool import SelectionSource
        from datasets.stream.window_stream import (
            StreamConfig,
            WindowStream,
        )  # inside: torch is slow to import

        config = StreamConfig(context_len=context_len, batch_size=batch_size, **settings)
        return WindowStream(SelectionSource(self), config)

    def materialise(
        self, directory: str | os.PathLike[str], fields: Sequence[str] = ("obs", "action")
    ) -> Materialised:
        """Copy some fields to a node-local memory map; see ``materialise.materialise``."""
        from datasets.stream.materialise import materialise

        return materialise(self, directory, fields)

    def _refined(self, positions: np.ndarray) -> Selection:
        return Selection(self.store, self.catalog, self.rows[positions])

    def rows_by_part(self) -> list[tuple[str, np.ndarray]]:
        """The parts with selected episodes, and their rows there, counted from the part's first."""
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
        from datasets.storage.shards import row_runs  # inside: queries need none of its codecs

        runs = row_runs(*self._field_rows(field, unit))
        with self.store.array_reader(self.catalog, unit.part_id, field) as reader:
            reader.read_runs(runs, out)


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
