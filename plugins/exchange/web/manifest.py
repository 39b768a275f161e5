"""The list of a store's small files, by which it is read where nothing can be listed.

`manifest.json`, beside the root file: the name of each file that is not an array's object -> its
bytes and SHA-256. The objects themselves are listed in the catalog, which is among these files. A
manifest is written after all that it names.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaitforge.common.errors import DatasetError
from gaitforge.common.files import sha256_file, write_bytes_durably
from gaitforge.datasets.layout import OVERLAYS, PARTS, ROOT_FILE
from gaitforge.datasets.storage.integrity import store_files
from gaitforge.datasets.storage.store import PartStore

MANIFEST = "manifest.json"
VERSION = 1
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class ListedFile:
    """A file as the manifest has it."""

    size: int
    sha256: str


def manifest_text(files: Mapping[str, Path]) -> str:
    """The manifest of a store's files, name -> local file; objects of arrays are left out."""
    listed = {
        name: [path.stat().st_size, sha256_file(path)]
        for name, path in sorted(files.items())
        if not _is_object(name)
    }
    return json.dumps({"manifest": VERSION, "files": listed}, indent=0) + "\n"


def write_manifest(store: PartStore) -> Path:
    """Write a local store's manifest into it; DatasetError for a store that is not local."""
    files = store_files(store)
    path = store.path / MANIFEST
    write_bytes_durably(path, manifest_text(files).encode())
    return path


def read_manifest(content: bytes, address: str) -> dict[str, ListedFile]:
    """Name -> size and SHA-256 of the files in a manifest.

    Raises:
        DatasetError: it is damaged, of a newer gaitforge, or names a place outside of the store.
    """
    try:
        tree: Any = json.loads(content)
        version = tree["manifest"]
        files = {
            str(name): ListedFile(int(size), str(digest))
            for name, (size, digest) in tree["files"].items()
        }
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DatasetError(f"{address}: {MANIFEST} is damaged: {error!r:.100}") from error
    if version != VERSION:
        raise DatasetError(f"{address}: {MANIFEST} is of version {version!r:.20}, not {VERSION}")
    for name, listed in files.items():
        parts = name.split("/")
        if not all(parts) or any(part.startswith(".") for part in parts) or "\\" in name:
            raise DatasetError(f"{address}: {MANIFEST} names {name!r:.80}")
        if listed.size < 0 or not _SHA256.fullmatch(listed.sha256):
            raise DatasetError(f"{address}: {MANIFEST} has no size and SHA-256 of {name!r:.80}")
    if ROOT_FILE not in files:
        raise DatasetError(f"{address}: {MANIFEST} names no {ROOT_FILE}")
    return files


def _is_object(name: str) -> bool:
    """Whether a file is an array's object in a part's folder, also in that of an added field."""
    words = name.split("/")
    if words[0] == OVERLAYS:
        words = words[2:]
    return words[0] == PARTS and len(words) > 2
