"""The record of a source in the store that imported it, to notice when the source changes.

A source is identified by its path, and its content by a digest; the store keeps both in
`imports/<place>/<content>.json`. Part and episode ids come from the content alone, so without the
record a source with a few changed rows would be imported again beside its old version.

What a source holds beside its episodes (`Importer.metadata`) is kept in
`imports/metadata/<tag>.<format>` after its SHA-256; the tag begins the ids of the source's parts.
"""

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaitforge.common.errors import DatasetError, disk_failures
from gaitforge.common.files import create_durably, fsync_path
from gaitforge.datasets.dataset import open_store
from gaitforge.datasets.formats.protocol import Importer
from gaitforge.datasets.formats.sources import CONTENT_DIGITS
from gaitforge.datasets.layout import IMPORTS
from gaitforge.datasets.selection import EpisodeSelection, load_selection
from gaitforge.datasets.storage.s3 import bucket_at, is_bucket_url, local_folder
from gaitforge.datasets.storage.store import PartStore

_DIGITS = 16
_DIGEST_BYTES = 32
_MOST_CHARACTERS = 80
"""Longest name of a source's selection that stays as it is."""


@dataclass(frozen=True)
class ImportedSource:
    """A source as a store records it.

    Attributes:
        source: its path; name: the last part of it.
        format: one of `formats.FORMATS`.
        place, content: digests of its path and of its content.
        tag: digest of its content and the options; begins the ids of its parts.
        metadata: see `Importer`.
    """

    source: str
    name: str
    format: str
    place: str
    content: str
    tag: str
    metadata: bytes

    @classmethod
    def of(cls, format_name: str, source: str, importer: Importer) -> "ImportedSource":
        """The source of an importer; for a name instead of a path, `place` is of its first file."""
        path = Path(source) if Path(source).exists() else importer.files[0]
        location = f"{format_name} {path.resolve()}"
        digits = hashlib.sha256(location.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
        content = importer.identity[:CONTENT_DIGITS]
        tag = hashlib.sha256(f"{format_name} {importer.identity}".encode()).hexdigest()[:12]
        name = Path(source).name
        return cls(source, name, format_name, digits, content, tag, importer.metadata)

    def check_unchanged(self, address: str | os.PathLike[str]) -> None:
        """Raise DatasetError if the store imported another content of this source."""
        folder = f"{IMPORTS}/{self.place}"
        if is_bucket_url(address):
            records = [key.rpartition("/")[2] for key in bucket_at(str(address)).list(f"{folder}/")]
        else:
            records = [path.name for path in Path(address, folder).glob("*.json")]
        if records and self._file not in records:
            raise DatasetError(
                f"store {address} holds another content of {self.source}, which was changed since "
                "its import; import it into a new store, or under another name if it is another"
            )

    def remember(self, address: str | os.PathLike[str]) -> None:
        """Write the record into a store; DatasetError if the disk or the storage refuses."""
        tree = {"format": self.format, "source": self.name, "content": self.content}
        body = json.dumps(tree, indent=1).encode()
        if self.metadata:
            digest = hashlib.sha256(self.metadata).digest()
            _create(address, _metadata_key(self.tag, self.format), digest + self.metadata)
        _create(address, f"{IMPORTS}/{self.place}/{self._file}", body)

    @property
    def _file(self) -> str:
        return f"{self.content[:_DIGITS]}.json"


def imported_metadata(selection: EpisodeSelection, format_name: str) -> list[bytes]:
    """The different `Importer.metadata` of the sources that a selection's episodes are from.

    Raises DatasetError for damaged ones.
    """
    address = selection.store.full_address
    entries = []
    for tag in sorted({part_id.partition("-")[0] for part_id, _ in selection.rows_by_part()}):
        key = _metadata_key(tag, format_name)
        content = _read(address, key)
        if content is None:
            continue
        digest = content[:_DIGEST_BYTES]
        metadata = content[_DIGEST_BYTES:]
        if hashlib.sha256(metadata).digest() != digest:
            raise DatasetError(f"{key} of {address} is damaged; remove it to export without it")
        entries.append(metadata)
    return list(dict.fromkeys(entries))


def save_selections(address: str | os.PathLike[str], selections: Mapping[str, np.ndarray]) -> None:
    """Save a source's selections beside the store (or its mirror): `STORE.selections/NAME.json`.

    A name that no file may have gets other characters and a digest.
    `selections` is name -> ids of episodes; those that a file there has stay in it, unless they
    were dropped since.
    """
    if not selections:
        return
    store = open_store(address)
    folder = _selections_folder(address)
    everything = store.select()
    with disk_failures(f"cannot write to {folder}"):
        folder.mkdir(exist_ok=True)
    for name, ids in selections.items():
        path = folder / f"{_plain(name)}.json"
        chosen = np.isin(everything.episode_ids(), ids)
        if path.exists():
            chosen |= np.isin(everything.rows, load_selection(store, path, edited=True).rows)
        everything.with_rows(everything.rows[chosen]).save(path)


def check_selections(store: PartStore, selections: Mapping[str, np.ndarray]) -> None:
    """DatasetError if `save_selections` could not add to a file that it would write."""
    for name in selections:
        path = _selections_folder(store.full_address) / f"{_plain(name)}.json"
        if path.exists():
            load_selection(store, path, edited=True)


def _selections_folder(address: str | os.PathLike[str]) -> Path:
    store_path = local_folder(address)
    return store_path.with_name(f"{store_path.name}.selections")


def _plain(name: str) -> str:
    """A name that a file may have. Different names stay different."""
    plain = re.sub(r"[^A-Za-z0-9_.-]|^[.]", "_", name)
    if plain == name and 0 < len(name) <= _MOST_CHARACTERS:
        return name
    digest = hashlib.sha256(name.encode(errors="surrogateescape")).hexdigest()
    return f"{plain[:_MOST_CHARACTERS]}-{digest[:8]}"


def _metadata_key(tag: str, format_name: str) -> str:
    return f"{IMPORTS}/metadata/{tag}.{format_name}"


def _read(address: str, key: str) -> bytes | None:
    if is_bucket_url(address):
        return bucket_at(address).read(key)
    path = Path(address, key)
    return path.read_bytes() if path.is_file() else None


def _create(address: str | os.PathLike[str], key: str, body: bytes) -> None:
    """Write a file or object of a store, unless it exists."""
    if is_bucket_url(address):
        bucket_at(str(address)).create(key, body)
        return
    path = Path(address, key)
    with disk_failures(f"cannot write to store {address}"):
        path.parent.mkdir(parents=True, exist_ok=True)
        create_durably(path, body)
        for changed in (path.parent.parent, Path(address)):
            fsync_path(changed)
