"""Which sources a store holds, so that one that has changed since its import is noticed.

A source is known again by its place, and its content by a digest; a store keeps a small record of
both for each import, ``imports/<place>/<content>.json``. Parts and episodes take their names from
the content alone, so without the record a source with a few rows changed would be taken for one
more source, and the store would hold nearly every episode twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from datasets.errors import DatasetError
from datasets.files import create_durably, fsync_path
from datasets.formats.interface import Importer
from datasets.formats.sources import CONTENT_DIGITS
from datasets.storage.s3.bucket import Bucket, is_bucket_url

IMPORTS = "imports"
_DIGITS = 16


@dataclass(frozen=True)
class ImportedSource:
    """A source as a store remembers it.

    Attributes:
        source: what messages call it; name: its last part, for people who read the record.
        format: one of ``formats.FORMATS``.
        place: digits that name where it lies; content: that name its content.
    """

    source: str
    name: str
    format: str
    place: str
    content: str

    @classmethod
    def of(cls, format_name: str, source: str, importer: Importer) -> ImportedSource:
        """A source that a reader has opened: a path, or a name that the reader knows.

        The place of a source that is no path is that of its first file.
        """
        path = Path(source) if Path(source).exists() else importer.files[0]
        place = f"{format_name} {path.resolve()}"
        digits = hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
        content = importer.identity[:CONTENT_DIGITS]
        return cls(source, Path(source).name, format_name, digits, content)

    def check_unchanged(self, address: str | os.PathLike[str]) -> None:
        """Refuse a source of which the store holds another content.

        Raises:
            DatasetError: it does, or the storage refuses.
        """
        folder = f"{IMPORTS}/{self.place}"
        if is_bucket_url(address):
            known = [key.rpartition("/")[2] for key in Bucket(str(address)).list(f"{folder}/")]
        else:
            known = [path.name for path in Path(address, folder).glob("*.json")]
        if known and self._file not in known:
            raise DatasetError(
                f"store {address} holds another content of {self.source}, which was changed since "
                "it was imported; import it into a new store, or under another name if it is "
                "another source"
            )

    def remember(self, address: str | os.PathLike[str]) -> None:
        """Keep the record in a store; again, it changes nothing.

        Raises:
            DatasetError: the disk or the storage refuses.
        """
        folder = f"{IMPORTS}/{self.place}"
        tree = {"format": self.format, "source": self.name, "content": self.content}
        body = json.dumps(tree, indent=1).encode()
        if is_bucket_url(address):
            Bucket(str(address)).create(f"{folder}/{self._file}", body)
            return
        path = Path(address, folder)
        try:
            path.mkdir(parents=True, exist_ok=True)
            create_durably(path / self._file, body)
            for changed in (path.parent, Path(address)):
                fsync_path(changed)
        except OSError as error:
            raise DatasetError(f"cannot write to store {address}: {error.strerror}") from error

    @property
    def _file(self) -> str:
        return f"{self.content[:_DIGITS]}.json"
