"""The operations on object storage that a store needs, over obstore.

Object storage has no rename and no lock, but conditional writes (S3 since 2024): a PUT with
`If-None-Match: *` creates an object, or changes nothing if one of that name exists. All objects
of a store are written that way, so none is ever replaced.
"""

import hashlib
import os
import re
import secrets
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gaitforge.common.errors import DatasetError, StorageError, failures, missing_package
from gaitforge.common.files import is_hidden

_URL = re.compile(r"s3:/{1,2}(?P<bucket>[A-Za-z0-9._-]+)/+(?P<prefix>[^/?#][^?#]*?)/*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")

_PROBE = ".conditional-write"
"""An object that is created twice; hidden, so that it is no data if it stays."""

_conditional: set[tuple[str, str]] = set()
"""Endpoint and bucket of the storages that honour conditions, as far as this process knows."""


@dataclass(frozen=True)
class Listed:
    """An object in a listing: bytes, and modification time (ns since 1970)."""

    size: int
    modified_ns: int


def is_bucket_url(address: object) -> bool:
    """Whether an address is s3://bucket/prefix, not a local path; DatasetError for another URL."""
    scheme = _SCHEME.match(str(address))
    if scheme is not None and scheme[1] != "s3":
        raise DatasetError(
            f"a store cannot be at {scheme[1]}://; allowed: a folder, or s3://bucket/prefix"
        )
    return scheme is not None


def local_folder(address: object) -> Path:
    """A store's folder, or that of the mirror of a store on object storage."""
    return Bucket(str(address)).mirror if is_bucket_url(address) else Path(str(address))


class Bucket:
    """The objects below one prefix of a bucket; methods raise StorageError if the storage fails.

    Endpoint, region and credentials come from the usual environment variables
    (`AWS_ENDPOINT_URL`, `AWS_REGION`, `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, …).
    DatasetError if obstore is not installed, or `url` is not `s3://bucket/prefix`.
    """

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if match is None:  # it may hold keys, so it is not shown
            raise DatasetError(
                "not a store's URL; use s3://bucket/path/of/the/store, with keys and options in "
                "the environment (AWS_ACCESS_KEY_ID, ...)"
            )
        try:
            import obstore
            from obstore.store import S3Store
        except ImportError as error:
            raise DatasetError(missing_package(url, "obstore", "s3")) from error
        self.url = f"s3://{match['bucket']}/{match['prefix']}"
        self.endpoint = os.environ.get("AWS_ENDPOINT_URL", "")
        options: Any = {"allow_http": self.endpoint.startswith("http://")}
        self._name = match["bucket"]
        self._objects: Any = obstore
        self._store = S3Store(match["bucket"], prefix=match["prefix"], client_options=options)
        self._refused = obstore.exceptions.BaseError
        self._exists = obstore.exceptions.AlreadyExistsError

    @property
    def mirror(self) -> Path:
        """Folder of the store's mirror: below `XDG_CACHE_HOME`, or `~/.cache`."""
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(f"{self.endpoint} {self.url}".encode()).hexdigest()[:16]
        return home / "gaitforge" / name

    def children(self, folder: str) -> list[str]:
        """Names directly below `folder` that are not hidden, sorted; a folder's ends in "/"."""
        with self._failures("cannot be listed"):
            level = self._objects.list_with_delimiter(self._store, prefix=folder or None)
        folders = [f"{path.rstrip('/')}/" for path in level["common_prefixes"]]
        paths = [*folders, *(entry["path"] for entry in level["objects"])]
        names = [re.sub(".*/(?=.)", "", path) for path in paths]
        return sorted(name for name in names if not is_hidden(name))

    def list(self, prefix: str) -> dict[str, Listed]:
        """Key -> size and time of each object below `prefix` that is not hidden, sorted."""
        objects: dict[str, Listed] = {}
        with self._failures("cannot be listed"):
            for page in self._objects.list(self._store, prefix=prefix):
                for entry in page:
                    modified_ns = _nanoseconds(entry["last_modified"])
                    objects[entry["path"]] = Listed(entry["size"], modified_ns)
        return {key: objects[key] for key in sorted(objects) if not is_hidden(key)}

    def read(self, key: str) -> bytes | None:
        """An object's content; None if there is none of this name."""
        with self._failures(f"{key} cannot be read"), suppress(FileNotFoundError):
            return bytes(self._objects.get(self._store, key).bytes())
        return None

    def create(self, key: str, content: bytes) -> bool:
        """Create an object atomically; False, and nothing changed, if it exists.

        DatasetError if the storage ignores the condition, as this process's first write finds out.
        """
        bucket = self.endpoint, self._name
        if bucket not in _conditional:
            self._check_condition()
            _conditional.add(bucket)
        return self._create(key, content)

    def _check_condition(self) -> None:
        """DatasetError if a second creation of a hidden object succeeds, too."""
        # One that is there already proves it: of a writer that may not delete, or that died.
        if not self._create(_PROBE, b""):
            return
        refused = not self._create(_PROBE, b"")
        with suppress(StorageError):
            self.delete([_PROBE])
        if not refused:
            raise DatasetError(
                f"{self.url}: the storage ignores 'If-None-Match: *' on writes, so two writers "
                "could commit the same part; use a storage that honours it"
            )

    def now_ns(self) -> int:
        """The time by the storage's own clock, which stamps its objects (ns since 1970)."""
        key = f".now-{secrets.token_hex(8)}"
        with self._failures("its clock cannot be read"):
            self._objects.put(self._store, key, b"", use_multipart=False)
            try:
                modified = self._objects.head(self._store, key)["last_modified"]
            finally:
                self._objects.delete(self._store, [key])
        return _nanoseconds(modified)

    def _create(self, key: str, content: bytes) -> bool:
        with self._failures(f"{key} cannot be written"), suppress(self._exists):
            self._objects.put(self._store, key, content, mode="create", use_multipart=False)
            return True
        return False

    def create_equal(self, key: str, content: bytes) -> bool:
        """As `create`, but True also if an equal object exists."""
        return self.create(key, content) or self.read(key) == content

    def delete(self, keys: Iterable[str]) -> None:
        """Remove objects; absent ones are ignored."""
        with self._failures("objects cannot be removed"), suppress(FileNotFoundError):
            self._objects.delete(self._store, list(keys))

    def _failures(self, problem: str) -> AbstractContextManager[None]:
        return failures(f"{self.url}: {problem}", self._refused, OSError, error=StorageError)


def _nanoseconds(modified: datetime) -> int:
    """A time of an object in ns since 1970, to the milliseconds that storages keep."""
    return round(modified.timestamp() * 1e3) * 1_000_000
