"""Immutable, queryable, checksummed datasets of legged motion, streamed exactly once an epoch.

Importing this package does not import torch; only ``Selection.windows`` does.
"""

from datasets.errors import DatasetError
from datasets.manifest import PartRecord
from datasets.schema import SCHEMA_VERSION, Field, Schema
from datasets.selection import Selection, query
from datasets.spectrum import SpectralEnergy
from datasets.statistics import ChannelStatistics
from datasets.store import Store, open_store

__gaitforge__ = True
"""Tells this package from any other that is called ``datasets``."""

__all__ = [
    "SCHEMA_VERSION",
    "ChannelStatistics",
    "DatasetError",
    "Field",
    "PartRecord",
    "Schema",
    "Selection",
    "SpectralEnergy",
    "Store",
    "open_store",
    "query",
]
