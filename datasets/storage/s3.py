"""A store on S3-compatible object storage, and the operations on a bucket that it needs (obstore).

Object storage has no rename and no lock, but conditional writes (S3 since 2024): a PUT with
`If-None-Match: *` creates an object, or changes nothing if one of that name exists. All objects
of a store are written that way, so none is ever replaced.

Objects have the names of the local files, so other Zarr readers open the store in place. Writing a
part differs:

1. The part is written to a local scratch folder by the same code as a local one.
2. Its objects are created under their final names (`Bucket.create`). An equal object, left by an
   earlier attempt or by another writer of the same plan, counts as written; a different one ends
   the attempt. So no writer changes an object that another one relies on.
3. The catalog file is created last: this PUT is the commit, and only one writer succeeds.

A reader mirrors the small files (root, catalog, tags), on which queries run, and fetches an array's
objects when they are first read. They are checked against their recorded SHA-256 and stay in the
mirror, which processes may share. There a part's folder is also named after its objects: where
another store is put at the address, those of the old one are never taken for those of the new one.
"""

import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gaitforge.common.errors import (
    DatasetError,
    StorageError,
    disk_failures,
    failures,
    missing_package,
)
from gaitforge.common.extensions import extension, extension_names
from gaitforge.common.files import cache_folder, is_hidden, join_inside, temporary_file, visible
from gaitforge.datasets.catalog.catalog import (
    Catalog,
    Location,
    Manifest,
    PartRecord,
    check_agreement,
)
from gaitforge.datasets.layout import ABOUT, CATALOG, EDITS, OVERLAYS, PARTS, ROOT_FILE, TAGS
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.integrity import field_folders, store_files, used_stems
from gaitforge.datasets.storage.parts import ArrayReader
from gaitforge.datasets.storage.records import (
    RootRecord,
    Tag,
    plain_plan,
    read_root,
    read_tag,
    write_skeleton,
)
from gaitforge.datasets.storage.store import PartStore

_URL = re.compile(r"s3:/{1,2}(?P<bucket>[A-Za-z0-9._-]+)/+(?P<prefix>[^/?#][^?#]*?)/*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")

_STORE_SCHEME = "store_scheme"
"""Kind of extensions: a URL's scheme -> a class like `Bucket`, which may be read only."""

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
    """Whether an address is s3://bucket/prefix, or of a scheme of an installed package.

    DatasetError for another URL.
    """
    scheme = _SCHEME.match(str(address))
    if scheme is not None and scheme[1] != "s3" and extension(_STORE_SCHEME, scheme[1]) is None:
        others = "".join(f", {name}://" for name in extension_names(_STORE_SCHEME))
        raise DatasetError(
            f"a store cannot be at {scheme[1]}://; allowed: a folder, or s3://bucket/prefix{others}"
        )
    return scheme is not None


def bucket_at(url: str) -> "Bucket":
    """The objects at an address for which `is_bucket_url` holds."""
    scheme = _SCHEME.match(url)
    added = extension(_STORE_SCHEME, scheme[1]) if scheme is not None else None
    return Bucket(url) if added is None else added.load()(url)


def local_folder(address: object) -> Path:
    """A store's folder, or that of the mirror of a store on object storage."""
    return bucket_at(str(address)).mirror if is_bucket_url(address) else Path(str(address))


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
        name = hashlib.sha256(f"{self.endpoint} {self.url}".encode()).hexdigest()[:16]
        return cache_folder() / name

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


GRACE_S = 24 * 3600.0
"""Age from which `gc` removes uncommitted objects, in seconds."""

PARALLEL_REQUESTS = 8

_ROOT_FILES = (ROOT_FILE, f"{PARTS}/{ROOT_FILE}")


class BucketStore(PartStore):
    """A dataset on object storage at `url`; `path` is the local mirror."""

    def __init__(
        self, bucket: Bucket, mirror: Path, record: RootRecord, tag: Tag | None = None
    ) -> None:
        super().__init__(mirror, record, tag, bucket.url)
        self.url = bucket.url
        self._bucket = bucket

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        schema: Schema,
        plan: Mapping[str, Any] | None = None,
        cache: Path | None = None,
    ) -> Self:
        """Create a store at the URL `path`, or open an existing one with an equal schema.

        `cache` is the folder of the mirror, by default below the user's cache folder.
        DatasetError for another schema, or a storage that fails or ignores conditions on writes.
        """
        bucket = bucket_at(str(path))
        record = RootRecord(schema, plain_plan(plan))
        if bucket.read(ROOT_FILE) is None:
            _write_root(bucket, record)
        store = cls.open(bucket.url, cache=cache)
        store.check_schema(schema)
        return store

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], tag: str | None = None, cache: Path | None = None
    ) -> Self:
        """Open the store at the URL `path`; as `PartStore.open`, and `cache` as in `create`."""
        bucket = bucket_at(str(path))
        mirror = cache or bucket.mirror
        for key in _ROOT_FILES:
            content = bucket.read(key)
            if content is None:
                raise DatasetError(f"no store at {bucket.url}; give the URL of an existing store")
            _keep(mirror / key, content)
        if (about := bucket.read(ABOUT)) is not None:
            _keep(mirror / ABOUT, about)
        else:
            (mirror / ABOUT).unlink(missing_ok=True)
        _refresh(bucket, mirror)
        kept = None if tag is None else read_tag(mirror, tag, bucket.url)
        return cls(bucket, mirror, read_root(mirror, bucket.url), kept)

    @property
    def full_address(self) -> str:
        """The store's URL."""
        return self.url

    def refresh(self, *, anew: bool = False) -> None:
        """Bring the mirror's catalog and tags up to date (`anew`: fetch all again)."""
        _refresh(self._bucket, self.path, anew)

    def children(self, folder: str = "") -> list[str]:
        """As `PartStore.children`, of the storage and not of the mirror."""
        return self._bucket.children(folder)

    def object_sizes(self, stem: str) -> dict[str, int]:
        """As `PartStore.object_sizes`, of the storage and not of the mirror."""
        prefix = f"{PARTS}/{stem}/"
        listing = self._bucket.list(prefix)
        return {key.removeprefix(prefix): entry.size for key, entry in listing.items()}

    def object_sha256(self, stem: str, name: str) -> str:
        """As `PartStore.object_sha256`, of the storage and not of the mirror."""
        content = self._bucket.read(f"{PARTS}/{stem}/{name}") or b""
        return hashlib.sha256(content).hexdigest()

    def write_part(
        self,
        part_id: str,
        steps: Mapping[str, npt.ArrayLike],
        episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table,
        per_episode: Mapping[str, npt.ArrayLike] | None = None,
    ) -> PartRecord:
        """As `PartStore.write_part`; written to a temporary folder and then uploaded.

        Object storage has no lock: of writers that add a column at the same time with types that do
        not agree, all may commit if none sees the other's part. `verify` names such parts.
        """
        self.check_writable()
        if part_id in self.parts():
            return self.files.find(part_id).record
        with tempfile.TemporaryDirectory(prefix="gaitforge-part-") as folder:
            scratch = PartStore.create(Path(folder, "store.zarr"), self.schema)
            scratch.address = f"{self.url} through {scratch.path}"
            scratch.write_part(part_id, steps, episodes, per_episode)
            self.check_columns(scratch.collected())
            _send_objects(self._bucket, scratch, part_id)
            self.check_columns(scratch.collected())  # of parts that others committed meanwhile
            _commit_part(self._bucket, scratch, part_id)
        self.refresh()
        return self.files.find(part_id).record

    def check_columns(self, added: Catalog) -> None:
        """DatasetError if episodes' columns do not agree with those of the storage's parts now."""
        if present := self._undamaged_catalog():
            with failures(f"store {self.url}"):
                check_agreement(present, added)

    def tag(self, name: str) -> Tag:
        """As `PartStore.tag`; of two writers of one name, one succeeds."""
        tag = super().tag(name)
        path = self.path / TAGS / f"{name}.json"
        created = self._bucket.create_equal(f"{TAGS}/{path.name}", path.read_bytes())
        _refresh(self._bucket, self.path)
        if not created:
            raise DatasetError(
                f"tag {name} of {self.url} exists with other content, and tags never change: give "
                "another name"
            )
        return tag

    def gc(self, grace_s: float = GRACE_S) -> list[str]:
        """Remove uncommitted objects older than `grace_s` seconds, and replaced parts.

        Only its age tells whether an uncommitted object is still being written.
        """
        self.check_writable()
        used = {location.folder for location in self.catalog().locations.values()}
        replaced = [stem for stem in self.files.stamps() if stem not in used]
        removed = [f"{CATALOG}/{stem}.parquet" for stem in replaced]
        self._bucket.delete(removed)
        newest: dict[str, int] = {}
        keys: dict[str, list[str]] = {}
        for key, listed in self._bucket.list(f"{PARTS}/").items():
            folder = key.split("/")[1]
            if "/" in key.removeprefix(f"{PARTS}/") and folder not in used:
                newest[folder] = max(newest.get(folder, 0), listed.modified_ns)
                keys.setdefault(folder, []).append(key)
        # Not by this machine's clock: ahead of the storage's, it would remove what others write.
        now_ns = self._bucket.now_ns() if newest else 0
        for folder, modified_ns in newest.items():
            if folder in replaced or (now_ns - modified_ns) / 1e9 >= grace_s:
                self._bucket.delete(keys[folder])
                removed.append(f"{PARTS}/{folder}")
        _refresh(self._bucket, self.path)
        return removed

    def part_folder(self, manifest: Manifest, location: Location) -> Path:
        """As `PartStore.part_folder`, in the mirror; a part of other content has another one."""
        return super().part_folder(manifest, location) / manifest.objects_hash[:32]

    def array_reader(self, catalog: Catalog, part_id: str, field: str) -> ArrayReader:
        """As `PartStore.array_reader`; fetches the array's objects that the mirror lacks."""
        self.schema.field(field)
        manifest = catalog.manifests[part_id]
        location = catalog.locations[part_id]
        names = [name for name in manifest.objects if name.startswith(f"{field}/")]
        folder = self.part_folder(manifest, location).relative_to(self.path).as_posix()
        for name in names:
            copy = join_inside(self.path, f"{folder}/{name}")
            if copy.is_file() and copy.stat().st_size == manifest.objects[name][0]:
                with suppress(OSError):  # its use, by which a bounded mirror chooses what to keep
                    os.utime(copy)
                continue
            content = self._bucket.read(f"{PARTS}/{location.folder}/{name}")
            if content is None:
                latest = self.catalog()
                if latest.locations.get(part_id, location) != location:  # merged since then
                    return self.array_reader(latest, part_id, field)
                raise DatasetError(f"part {part_id} of {self.url}: object {name} is missing")
            if hashlib.sha256(content).hexdigest() != manifest.objects[name][1]:
                raise DatasetError(
                    f"part {part_id} of {self.url}: object {name} does not have its recorded "
                    "SHA-256"
                )
            _keep(copy, content)
        return super().array_reader(catalog, part_id, field)


def push_store(store: PartStore, url: str) -> list[str]:
    """Copy a local store to a URL, as `integrity.store_files` lists it; what is there is not sent.

    All objects are sent before the first part is committed, so that readers see few intermediate
    states. Returns the stems of the catalog files committed now.

    Raises DatasetError if the store is not local or lacks an object, another schema or other
    content is there, or the storage fails.
    """
    store.check_local("push a local store")
    edits = store.log.names()
    target = BucketStore.create(url, store.schema, store.plan)
    edits_there = target.log.names()
    if edits_there != edits[: len(edits_there)]:
        raise DatasetError(f"{target.url} has other edits; push to a new address")
    committed = set(target.files.stamps())
    stems = [stem for stem in used_stems(store) if stem not in committed]
    if stems:
        target.check_columns(store.collected())
    for step in (_send_objects, _commit_part):
        for stem in stems:
            step(target._bucket, store, stem)
    for folder in field_folders(store):
        push_store(store.overlay(folder), f"{target.url}/{OVERLAYS}/{folder}")
    for name, path in store_files(store).items():
        sent = name in _ROOT_FILES or name.partition("/")[0] in (PARTS, OVERLAYS, CATALOG)
        if not sent and not target._bucket.create_equal(name, path.read_bytes()):
            raise DatasetError(f"{url} has another {name}; delete that object to send this store's")
    return stems


def _send_objects(bucket: Bucket, source: PartStore, stem: str) -> None:
    """Upload the objects of one of a local store's part folders, or compare existing ones.

    Raises DatasetError if one exists with other content or cannot be read here.
    """
    prefix = f"{PARTS}/{stem}/"
    listing = bucket.list(prefix)

    def send(name: str) -> bool:
        with disk_failures(f"part {stem} of {source.address}: object {name} cannot be read"):
            content = join_inside(source.path, prefix + name).read_bytes()
        key = prefix + name
        return bucket.read(key) == content if key in listing else bucket.create_equal(key, content)

    names = sorted(source.files.manifest(stem).objects)
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as threads:
        sent = list(threads.map(send, names))
    for name in (name for name, is_equal in zip(names, sent, strict=True) if not is_equal):
        _refuse_commit(bucket, stem, f"object {name} is there with other content")


def _commit_part(bucket: Bucket, source: PartStore, stem: str) -> None:
    """Commit the uploaded objects, unless another writer has; DatasetError if one is absent."""
    listing = bucket.list(f"{PARTS}/{stem}/")
    for name in sorted(source.files.manifest(stem).objects):
        if f"{PARTS}/{stem}/{name}" not in listing:
            _refuse_commit(bucket, stem, f"object {name} was removed")
    bucket.create(f"{CATALOG}/{stem}.parquet", source.files.path(stem).read_bytes())


def _refuse_commit(bucket: Bucket, stem: str, problem: str) -> None:
    """Raise the problem of a commit, unless the part was committed meanwhile."""
    if bucket.read(f"{CATALOG}/{stem}.parquet") is None:
        raise DatasetError(
            f"part {stem} was not committed to {bucket.url}: {problem}; `gc` removes "
            "uncommitted objects"
        )


def _write_root(bucket: Bucket, record: RootRecord) -> None:
    with tempfile.TemporaryDirectory(prefix="gaitforge-root-") as folder:
        local = Path(folder, "store.zarr")
        write_skeleton(local, record)
        contents = {key: (local / key).read_bytes() for key in reversed(_ROOT_FILES)}
    for key, content in contents.items():  # the root file comes last: it makes the store
        bucket.create(key, content)


def _refresh(bucket: Bucket, mirror: Path, anew: bool = False) -> None:
    """Bring the mirror's catalog, tags and edits to the state of the storage; `anew`: fetch all.

    A copy gets its object's size and time, so that the catalog index stays valid.
    """
    listing: dict[str, Listed] = {}
    for folder in (CATALOG, TAGS, EDITS):
        with _mirroring(mirror / folder):
            (mirror / folder).mkdir(parents=True, exist_ok=True)
        # Listed before the bucket: what another process mirrors meanwhile is newer.
        copies = visible(mirror / folder)
        listing |= bucket.list(f"{folder}/")
        for path in copies:
            if f"{folder}/{path.name}" not in listing:
                path.unlink(missing_ok=True)

    def fetch(key: str) -> None:
        content = bucket.read(key)
        if content is not None:
            _keep(join_inside(mirror, key), content, listing[key].modified_ns)

    stale = [key for key, entry in listing.items() if anew or not _is_copy(mirror / key, entry)]
    with ThreadPoolExecutor(PARALLEL_REQUESTS) as threads:
        list(threads.map(fetch, stale))


def _is_copy(path: Path, listed: Listed) -> bool:
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    return (status.st_size, status.st_mtime_ns) == (listed.size, listed.modified_ns)


def _keep(path: Path, content: bytes, modified_ns: int | None = None) -> None:
    """Write a copy into the mirror atomically; threads and processes may do so at once."""
    with _mirroring(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_file(path) as temporary:
            temporary.write_bytes(content)
            if modified_ns is not None:
                os.utime(temporary, ns=(modified_ns, modified_ns))
            os.replace(temporary, path)


def _mirroring(folder: Path) -> AbstractContextManager[None]:
    advice = "; set XDG_CACHE_HOME to a folder that can be written"
    return disk_failures(f"cannot keep copies of a remote store in {folder}", advice)
