"""Names inside a store's folder, and the size of a shard."""

ATTRIBUTE = "gaitforge"
"""Attribute of the root group that holds the store's own record; see ``root``."""

PARTS = "parts"
"""Zarr group of the parts, one group each."""

CATALOG = "catalog"
"""Folder of the catalog files; a file here commits the part of the same name."""

TAGS = "tags"
"""Folder of the named versions, a JSON file each."""

STAGING = ".staging"
"""Folder where parts grow before their commit, with one lock file a part being written."""

CACHE = ".cache"
"""Folder of what can be made anew from the committed files at any time."""

MERGED_PREFIX = "merged-"
"""How the names of parts begin that ``compact`` wrote."""

SHARD_STEPS = 1 << 18
"""Most rows of one shard."""
