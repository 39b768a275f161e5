"""Immutable, queryable, checksummed datasets, streamed exactly once per epoch.

A name's module loads when the name is first used; only the `windows` methods import
torch, where it is installed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gaitforge.common.errors import DatasetError
    from gaitforge.common.trust import trust
    from gaitforge.datasets.catalog.catalog import PartRecord
    from gaitforge.datasets.catalog.edit_log import Edit
    from gaitforge.datasets.catalog.rows import write_parquet
    from gaitforge.datasets.dataset import Selection, Store, create_store, open_store, query
    from gaitforge.datasets.edits.assemble import merge_stores
    from gaitforge.datasets.edits.operations import Difference, difference
    from gaitforge.datasets.edits.split import save_split, split_by_column, split_by_fractions
    from gaitforge.datasets.schema import Field, Schema
    from gaitforge.datasets.statistics import ChannelStatistics, SpectralEnergy
    from gaitforge.datasets.storage.records import SCHEMA_VERSION, Tag
    from gaitforge.datasets.storage.store import StoreInfo
    from gaitforge.datasets.stream.materialise import Materialised, Mixture, equal_shares

if __name__ != "gaitforge.datasets":
    raise ImportError(
        "this folder is gaitforge's: import gaitforge.datasets; to import another package called "
        "datasets, start Python in another folder"
    )

_HOMES = {
    "gaitforge.common.errors": ("DatasetError",),
    "gaitforge.common.trust": ("trust",),
    "gaitforge.datasets.statistics": ("ChannelStatistics", "SpectralEnergy"),
    "gaitforge.datasets.catalog.catalog": ("PartRecord",),
    "gaitforge.datasets.catalog.edit_log": ("Edit",),
    "gaitforge.datasets.catalog.rows": ("write_parquet",),
    "gaitforge.datasets.dataset": ("Selection", "Store", "create_store", "open_store", "query"),
    "gaitforge.datasets.edits.assemble": ("merge_stores",),
    "gaitforge.datasets.edits.operations": ("Difference", "difference"),
    "gaitforge.datasets.edits.split": ("save_split", "split_by_column", "split_by_fractions"),
    "gaitforge.datasets.schema": ("Field", "Schema"),
    "gaitforge.datasets.storage.records": ("SCHEMA_VERSION", "Tag"),
    "gaitforge.datasets.storage.store": ("StoreInfo",),
    "gaitforge.datasets.stream.materialise": ("Materialised", "Mixture", "equal_shares"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'gaitforge.datasets' has no attribute '{name}'")
