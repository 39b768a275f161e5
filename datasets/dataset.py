"""The user's classes: the stores and selections below, with methods for what is built on them.

Nothing in `storage`, `selection`, `stream` or `analysis` imports this file.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np

from gaitforge.common.errors import DatasetError, amount, listed
from gaitforge.datasets import selection as episodes
from gaitforge.datasets import statistics as analysis
from gaitforge.datasets.edits import operations
from gaitforge.datasets.schema import Actions, Schema
from gaitforge.datasets.statistics import (
    channel_quantiles,
    channel_statistics,
    selection_array,
    selection_dataset,
)
from gaitforge.datasets.storage import s3 as remote
from gaitforge.datasets.storage import store as local
from gaitforge.datasets.storage.about import About, read_about, write_about
from gaitforge.datasets.storage.integrity import compact_store, remove_leftovers, verify_store
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.datasets.stream import materialise as copies
from gaitforge.datasets.stream.pool import SelectionSource
from gaitforge.datasets.stream.stream_config import (
    StreamConfig,
    StreamSettings,
    with_settings,
)

if TYPE_CHECKING:
    from gaitforge.datasets.stream.window_stream import WindowStream


class Selection(episodes.EpisodeSelection):
    """Whole episodes of a store, to refine, describe, read, stream, measure and save.

    Methods that are assigned are functions of a selection elsewhere, with their documentation.
    """

    save = episodes.save_selection
    drop = operations.drop
    annotate = operations.annotate
    trim = operations.trim
    statistics = channel_statistics
    quantiles = channel_quantiles
    spectral_energy = analysis.spectral_energy
    dask = selection_array
    to_xarray = selection_dataset
    materialise = copies.materialise

    @classmethod
    def load(cls, store: local.PartStore, path: str | os.PathLike[str]) -> Self:
        """Read a selection that `save` wrote; see `selection.load_selection`."""
        loaded = episodes.load_selection(store, path)
        return cls(store, loaded.catalog, loaded.rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: the same rows of the store, which is opened again there."""
        return _reselected, (self.store, episodes.part_runs(self), self.actions)

    @with_settings()
    def windows(
        self, window_len: int = 64, batch_size: int = 1024, **settings: Unpack[StreamSettings]
    ) -> "WindowStream":
        """Stream shuffled windows in batches; see `WindowStream`.

        `settings` are the other fields of `stream_config.StreamConfig`.
        """
        from gaitforge.datasets.stream.window_stream import WindowStream  # torch is slow to import

        config = StreamConfig(window_len=window_len, batch_size=batch_size, **settings)
        return WindowStream(SelectionSource(self), config)


class Store(local.PartStore):
    """A dataset on a local file system; `open_store` and `create_store` make one."""

    about = read_about
    verify = verify_store
    gc = remove_leftovers
    compact = compact_store

    def select(self, **equals: Any) -> Selection:
        """Episodes whose columns have one of the given values; DatasetError lists what there is.

        `equals` is column -> a value, several, or None for all: `terrain="flat", level=[0, 1]`.
        """
        catalog = self.catalog()
        return Selection(self, catalog, catalog.shown).select(**equals)

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process: the store opened again, from its address and tag."""
        return open_store, (self.full_address, self.tag_name)

    def __repr__(self) -> str:
        version = f"tag {self.tag_name}, " if self.tag_name else ""
        try:
            held = self.select()
            digest = self.info().hash
        except DatasetError as error:
            return f"{type(self).__name__}({self.address}: {error})"
        kinds = "".join(f"; {kind}" for kind in held.kinds())
        return (
            f"{type(self).__name__}({self.address}, {version}version {digest[:12]}; "
            f"{self.schema.robot}, {amount(len(held), 'episode')}, "
            f"{amount(held.steps, 'step')}{kinds})"
        )

    def set_about(self, **changes: Any) -> About:
        """Change fields of `about`, which the next cards and exports carry; see `about.About`."""
        if unknown := set(changes) - set(asdict(About())):
            raise DatasetError(f"unknown {listed(unknown)}; allowed: {listed(asdict(About()))}")
        about = replace(read_about(self), **changes)
        write_about(self, about)
        return about

    def as_collected(self) -> Selection:
        """All committed episodes without the store's edits, to repeat a collection."""
        catalog = self.collected()
        return Selection(self, catalog, np.arange(catalog.num_rows))


class RemoteStore(remote.BucketStore, Store):
    """A dataset on object storage; `open_store` and `create_store` make one from a URL."""


def _reselected(store: Store, runs: episodes.PartRuns, actions: Actions) -> Selection:
    rows = episodes.selection_of_runs(store, runs)
    return Selection(store, rows.catalog, rows.rows, actions)


def open_store(address: str | os.PathLike[str], tag: str | None = None) -> Store:
    """Open the store in a folder or at `s3://bucket/prefix`, at one of its tags if given."""
    return _class_for(address).open(address, tag)


def create_store(
    address: str | os.PathLike[str], schema: Schema, plan: Mapping[str, Any] | None = None
) -> Store:
    """Create a store in a folder or at `s3://bucket/prefix`, or open an equal one there.

    `plan` is kept with the store as JSON values; see `Store.create`.
    """
    return _class_for(address).create(address, schema, plan)


def _class_for(address: str | os.PathLike[str]) -> type[Store]:
    return RemoteStore if is_bucket_url(address) else Store


def query(
    store: Store, where: str | None = None, group_by: Sequence[str] | None = None, **equals: Any
) -> list[dict[str, Any]]:
    """`Selection.describe` of the matching episodes, without reading any array.

    `equals` is as in `Store.select`, `where` as in `Selection.where`.
    """
    selection = store.select(**equals)
    if where is not None:
        selection = selection.where(where)
    return selection.describe(group_by)
