"""Immutable, queryable, checksummed datasets, streamed exactly once per epoch.

A name's module loads when the name is first used; only the `windows` methods import torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaitforge.common.errors import DatasetError
    from gaitforge.common.trust import trust
    from gaitforge.datasets.analysis.spectrum import SpectralEnergy
    from gaitforge.datasets.analysis.statistics import ChannelStatistics
    from gaitforge.datasets.catalog.edit_log import Edit
    from gaitforge.datasets.catalog.manifest import PartRecord
    from gaitforge.datasets.catalog.parquet_export import write_parquet
    from gaitforge.datasets.dataset import Selection, Store, create_store, open_store, query
    from gaitforge.datasets.edits.diff import Difference, difference
    from gaitforge.datasets.edits.merge import merge_stores
    from gaitforge.datasets.edits.split import save_split, split_by_column, split_by_fractions
    from gaitforge.datasets.schema import Field, Schema
    from gaitforge.datasets.storage.root import SCHEMA_VERSION
    from gaitforge.datasets.storage.store import StoreInfo
    from gaitforge.datasets.storage.tags import Tag
    from gaitforge.datasets.stream.materialise import Materialised
    from gaitforge.datasets.stream.mixing import Mixture, equal_shares

if __name__ != "gaitforge.datasets":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.datasets; to import another package called "
        "datasets, start Python in another folder"
    )

_HOMES = {
    "gaitforge.common.errors": ("DatasetError",),
    "gaitforge.common.trust": ("trust",),
    "gaitforge.datasets.analysis.spectrum": ("SpectralEnergy",),
    "gaitforge.datasets.analysis.statistics": ("ChannelStatistics",),
    "gaitforge.datasets.catalog.edit_log": ("Edit",),
    "gaitforge.datasets.catalog.manifest": ("PartRecord",),
    "gaitforge.datasets.catalog.parquet_export": ("write_parquet",),
    "gaitforge.datasets.dataset": ("Selection", "Store", "create_store", "open_store", "query"),
    "gaitforge.datasets.edits.diff": ("Difference", "difference"),
    "gaitforge.datasets.edits.merge": ("merge_stores",),
    "gaitforge.datasets.edits.split": ("save_split", "split_by_column", "split_by_fractions"),
    "gaitforge.datasets.schema": ("Field", "Schema"),
    "gaitforge.datasets.storage.root": ("SCHEMA_VERSION",),
    "gaitforge.datasets.storage.store": ("StoreInfo",),
    "gaitforge.datasets.storage.tags": ("Tag",),
    "gaitforge.datasets.stream.materialise": ("Materialised",),
    "gaitforge.datasets.stream.mixing": ("Mixture", "equal_shares"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'gaitforge.datasets' has no attribute '{name}'")
