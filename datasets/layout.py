"""Names inside a store's folder, and the size of a shard."""

from pathlib import Path

from gaitforge.common.errors import DatasetError

ROOT_FILE = "zarr.json"
"""Zarr's record of the root group; a folder with it is a store."""
ABOUT = "about.json"
"""File with licence, authors and description of the dataset; see `storage.about`."""
ATTRIBUTE = "gaitforge"
"""Attribute of the root group that holds the store's record; see `root`."""
PARTS = "parts"
"""Zarr group with one group per part."""
CATALOG = "catalog"
"""Folder of the catalog files; a file here commits the part of its name."""
TAGS = "tags"
"""Folder of the named versions, one JSON file each."""
EDITS = "edits"
"""Folder of the edits made after collection, one Parquet file each."""
IMPORTS = "imports"
"""Folder of the records of imported sources, and of what these hold beside episodes."""
OVERLAYS = "overlays"
"""Folder of the fields added after collection: a store for each, with the same parts."""
FOLDERS = (PARTS, OVERLAYS, IMPORTS, CATALOG, EDITS, TAGS)
"""The folders of a store, each after those it relies on; hidden ones are not part of it."""
PUBLISHED = (
    "README.md",
    "LICENSE",
    "CITATION.cff",
    "card.md",
    "croissant.json",
    "manifest.json",
)
"""Files that a published store has beside its own, and pages (.html)."""
PICTURES = "pictures"
"""Folder of a published store's pictures."""
STAGING = ".staging"
"""Folder where parts are written before their commit, with one lock file each."""
CACHE = ".cache"
"""Folder of files that can be rebuilt from the committed ones at any time."""
MERGED_PREFIX = "merged-"
"""Prefix of the names of parts that `compact` wrote."""
SHARD_STEPS = 1 << 18
"""Most rows of one shard."""


def check_outside_stores(path: Path) -> Path:
    """Return the path of something that is to be written; DatasetError if a store holds it."""
    for folder in (path.absolute(), *path.absolute().parents):
        if (folder / ROOT_FILE).is_file() and (folder / CATALOG).is_dir():
            raise DatasetError(f"{path} is inside the store {folder}; give a path outside of it")
    return path
