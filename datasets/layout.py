"""Names inside a store's folder."""

ATTRIBUTE = "gaitforge"
"""Attribute of the root group that holds the schema."""

PARTS = "parts"
"""Zarr group of the parts, one group each."""

CATALOG = "catalog"
"""Folder of the catalog files; a file here commits the part of the same name."""

STAGING = ".staging"
"""Folder where parts grow before their commit, with one lock file a part being written."""
