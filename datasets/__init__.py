"""Immutable, queryable, checksummed datasets of legged motion, streamed exactly once an epoch.

Importing this package does not import torch; only ``Selection.windows`` does.
"""

from datasets.errors import DatasetError
from datasets.export import write_parquet
from datasets.manifest import PartRecord
from datasets.materialise import Materialised
from datasets.mixing import Mixture, equal_shares
from datasets.root import SCHEMA_VERSION, migrate_store
from datasets.schema import Field, Schema
from datasets.selection import Selection, query
from datasets.spectrum import SpectralEnergy
from datasets.statistics import ChannelStatistics
from datasets.store import Store, create_store, open_store
from datasets.tags import Tag

__gaitforge__ = True
"""Tells this package from any other that is called ``datasets``."""

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
    "Tag",
    "create_store",
    "equal_shares",
    "migrate_store",
    "open_store",
    "query",
    "write_parquet",
]
