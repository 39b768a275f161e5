"""Immutable, queryable, checksummed datasets, streamed exactly once per epoch.

Importing this package does not import torch; only the ``windows`` methods do.
"""

from datasets.analysis.spectrum import SpectralEnergy
from datasets.analysis.statistics import ChannelStatistics
from datasets.catalog.manifest import PartRecord
from datasets.catalog.parquet_export import write_parquet
from datasets.dataset import Selection, Store, create_store, migrate_store, open_store, query
from datasets.errors import DatasetError
from datasets.schema import Field, Schema
from datasets.storage.root import SCHEMA_VERSION
from datasets.storage.store import StoreInfo
from datasets.storage.tags import Tag
from datasets.stream.materialise import Materialised
from datasets.stream.mixing import Mixture, equal_shares

__gaitforge__ = True
"""Distinguishes this package from others called ``datasets``."""

__all__ = [
    "SCHEMA_VERSION",
    "ChannelStatistics",
    "DatasetError",
    "Field",
    "Materialised",
    "Mixture",
    "PartRecord",
    "Schema",
    "Selection",
    "SpectralEnergy",
    "Store",
    "StoreInfo",
    "Tag",
    "create_store",
    "equal_shares",
    "migrate_store",
    "open_store",
    "query",
    "write_parquet",
]
