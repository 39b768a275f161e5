"""The record of a source in the store that imported it, to notice when the source changes.

A source is identified by its path, and its content by a digest; the store keeps both in
``imports/<place>/<content>.json``. Part and episode ids come from the content alone, so without the
record a source with a few changed rows would be imported again beside its old version.
"""

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
    """A source as a store records it.

    Attributes:
        source: its path; name: the last part of it.
        format: one of ``formats.FORMATS``.
        place, content: digests of its path and of its content.
    """

    source: str
    name: str
    format: str
    place: str
    content: str

    @classmethod
    def of(cls, format_name: str, source: str, importer: Importer) -> "ImportedSource":
        """The source of an importer; one that is a name, not a path, has its first file's place."""
        path = Path(source) if Path(source).exists() else importer.files[0]
        place = f"{format_name} {path.resolve()}"
        digits = hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:_DIGITS]
        content = importer.identity[:CONTENT_DIGITS]
        return cls(source, Path(source).name, format_name, digits, content)

    def check_unchanged(self, address: str | os.PathLike[str]) -> None:
        """Raise DatasetError if the store imported another content of this source."""
        folder = f"{IMPORTS}/{self.place}"
        if is_bucket_url(address):
            known = [key.rpartition("/")[2] for key in Bucket(str(address)).list(f"{folder}/")]
        else:
            known = [path.name for path in Path(address, folder).glob("*.json")]
        if known and self._file not in known:
            raise DatasetError(
                f"store {address} holds another content of {self.source}, which was changed since "
                "its import; import it into a new store, or under another name if it is another"
            )

    def remember(self, address: str | os.PathLike[str]) -> None:
        """Write the record into a store; DatasetError if the disk or the storage refuses."""
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
