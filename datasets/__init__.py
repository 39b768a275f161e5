"""Immutable, queryable, checksummed datasets, streamed exactly once per epoch.

A name's module loads when the name is first used; only the ``windows`` methods import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from datasets.analysis.spectrum import SpectralEnergy
    from datasets.analysis.statistics import ChannelStatistics
    from datasets.catalog.edits import Edit
    from datasets.catalog.manifest import PartRecord
    from datasets.catalog.parquet_export import write_parquet
    from datasets.dataset import Selection, Store, create_store, migrate_store, open_store, query
    from datasets.edits.diff import Difference, difference
    from datasets.edits.merge import merge_stores
    from datasets.edits.split import save_split, split_by_column, split_by_fractions
    from datasets.errors import DatasetError
    from datasets.schema import Field, Schema
    from datasets.storage.root import SCHEMA_VERSION
    from datasets.storage.store import StoreInfo
    from datasets.storage.tags import Tag
    from datasets.stream.materialise import Materialised
    from datasets.stream.mixing import Mixture, equal_shares

__gaitforge__ = True
"""Distinguishes this package from others called ``datasets``."""

_HOMES = {
    "analysis.spectrum": ("SpectralEnergy",),
    "analysis.statistics": ("ChannelStatistics",),
    "catalog.edits": ("Edit",),
    "catalog.manifest": ("PartRecord",),
    "catalog.parquet_export": ("write_parquet",),
    "dataset": ("Selection", "Store", "create_store", "migrate_store", "open_store", "query"),
    "edits.diff": ("Difference", "difference"),
    "edits.merge": ("merge_stores",),
    "edits.split": ("save_split", "split_by_column", "split_by_fractions"),
    "errors": ("DatasetError",),
    "schema": ("Field", "Schema"),
    "storage.root": ("SCHEMA_VERSION",),
    "storage.store": ("StoreInfo",),
    "storage.tags": ("Tag",),
    "stream.materialise": ("Materialised",),
    "stream.mixing": ("Mixture", "equal_shares"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"datasets.{module}"), name)
    raise AttributeError(f"module 'datasets' has no attribute '{name}'")
