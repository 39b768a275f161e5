"""Catalog files: one Parquet file per part, whose appearance commits the part."""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError, failures
from gaitforge.common.files import check_inside, fsync_path
from gaitforge.common.liveness import again_if_stale
from gaitforge.common.sizes import check_parquet
from gaitforge.datasets.catalog import catalog as catalogs
from gaitforge.datasets.catalog.catalog import Catalog, CommittedFile
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.index import CatalogIndex, Stamp, build_index
from gaitforge.datasets.catalog.manifest import Manifest
from gaitforge.datasets.layout import CACHE, CATALOG, MERGED_PREFIX
from gaitforge.datasets.schema import Schema

READ_THREADS = 4
INDEX_FROM = 16
"""Number of files missing from the index that rebuilds it: reading one takes about 6 ms."""

Read = TypeVar("Read")

_UNREADABLE = (OSError, UnicodeDecodeError, pa.ArrowException)
"""What pyarrow raises on a damaged file; the second for damaged column names."""

INDEX_FILE = "episodes.index"
SUFFIX = ".parquet"


def write_catalog_file(path: Path, table: pa.Table, manifest: Manifest) -> None:
    """Write and flush a catalog file; renaming it into the catalog commits the part."""
    pq.write_table(
        table.replace_schema_metadata(manifest.to_metadata()),
        path,
        compression="zstd",
        write_page_checksum=True,
    )
    fsync_path(path)


class CatalogFolder:
    """The committed catalog files of a store, read again only when they change.

    Every part must have the `schema`; messages call the store `address`.
    """

    def __init__(self, root: Path, schema: Schema, address: str) -> None:
        self._root = root
        self._address = address
        self._schema_hash = schema.hash
        self._group_by = schema.group_by
        self._tables: dict[str, tuple[Stamp, CommittedFile]] = {}
        self._manifests: dict[str, tuple[Stamp, Manifest]] = {}
        self._index: CatalogIndex | None = None
        self._catalog: Catalog | None = None
        self._catalog_stamps: Mapping[str, Stamp] | None = None

    @property
    def index_path(self) -> Path:
        """The index: a cache of the catalog files."""
        return self._root / CACHE / INDEX_FILE

    def path(self, stem: str) -> Path:
        """Path of a catalog file."""
        return self._root / CATALOG / f"{stem}{SUFFIX}"

    def stamps(self) -> dict[str, Stamp]:
        """Stem -> (bytes, modification time in ns) of every catalog file, sorted by stem.

        A compaction adds the merged file before it removes the others, but one directory listing
        made meanwhile may show neither. Two equal listings cannot: parts never come back.
        """
        stems = self._stems()
        folder = self._root / CATALOG
        while True:
            stamps: dict[str, Stamp] = {}
            with suppress(FileNotFoundError):
                stamps = {stem: _stamp_of(f"{folder}/{stem}{SUFFIX}") for stem in stems}
            before = stems
            stems = self._stems()
            if stems == before == list(stamps):
                return stamps

    def _stems(self) -> list[str]:
        names = (name for name in os.listdir(self._root / CATALOG) if not name.startswith("."))
        return sorted(name.removesuffix(SUFFIX) for name in names if name.endswith(SUFFIX))

    def _consistent(self, read: Callable[[Mapping[str, Stamp]], Read]) -> Read:
        """Result of `read` for the current stamps; repeated if a compaction removed files."""
        while True:
            stamps = self.stamps()
            try:
                return read(stamps)
            except DatasetError:
                if self.stamps() == stamps:
                    raise

    def part_ids(self) -> list[str]:
        """Ids of the committed parts as collected, sorted; reads only merged files."""
        return sorted(self._consistent(self._collected_ids))

    def _collected_ids(self, stamps: Mapping[str, Stamp]) -> set[str]:
        merged = {stem for stem in stamps if stem.startswith(MERGED_PREFIX)}
        members = (member.part_id for stem in merged for member in self.manifest(stem).collected)
        return (stamps.keys() - merged).union(members)

    def manifest(self, stem: str) -> Manifest:
        """Commit record of a catalog file; DatasetError if absent, damaged, of another schema."""
        stamp = self._stamp(stem)
        entry = self._manifests.get(stem)
        if entry is None or entry[0] != stamp:
            path = self.path(stem)
            with self._damage_named(stem):
                metadata = again_if_stale(path, lambda: pq.read_schema(path)).metadata
                manifest = _described(stem, metadata)
            self._check_schema(manifest)
            entry = self._manifests[stem] = (stamp, manifest)
        return entry[1]

    def find(self, part_id: str) -> Manifest:
        """Commit record of a part as collected; DatasetError if it is not committed."""

        def search(stamps: Mapping[str, Stamp]) -> Manifest:
            for stem in (name for name in stamps if name.startswith(MERGED_PREFIX)):
                for manifest in self.manifest(stem).collected:
                    if manifest.part_id == part_id:
                        return manifest
            return self.manifest(part_id)

        return self._consistent(search)

    def catalog(self) -> Catalog:
        """All committed episodes; DatasetError if a file is damaged or of another schema."""
        return self._consistent(self._catalog_at)

    def _catalog_at(self, stamps: Mapping[str, Stamp]) -> Catalog:
        if self._catalog is None or stamps != self._catalog_stamps:
            self._catalog = self._read_all(stamps)
            self._catalog_stamps = stamps
        return self._catalog

    def _read_all(self, stamps: Mapping[str, Stamp]) -> Catalog:
        outside = self._outside_index(stamps)
        damaged = self._index is None and os.path.lexists(self.index_path)
        if (damaged or len(outside) >= INDEX_FROM) and self.rebuild_index():
            outside = self._outside_index(stamps)
        indexed = self._index.files() if self._index is not None else {}
        with ThreadPoolExecutor(READ_THREADS) as threads:
            read = list(threads.map(self._file, outside))
        kept = [indexed[stem] for stem in stamps if stem not in outside]
        return Catalog(catalogs.collected_pieces([*kept, *read]), self._group_by)

    def rebuild_index(self) -> bool:
        """Write the index again; False if it cannot be written, which costs only time."""
        return self._consistent(self._index_at)

    def _index_at(self, stamps: Mapping[str, Stamp]) -> bool:
        if not stamps:
            return False
        try:
            self.index_path.parent.mkdir(exist_ok=True)
            columns = catalogs.common_schema({self.columns(stem) for stem in stamps})
            build_index(self.index_path, stamps, columns, self.read_shown)
        except OSError:
            return False
        self._index = None
        self._tables.clear()
        return True

    def columns(self, stem: str) -> pa.Schema:
        """Names and types of one catalog file's columns; DatasetError if it is damaged."""
        with self._damage_named(stem):
            return pq.read_schema(self.path(stem)).remove_metadata()

    def read(self, stem: str) -> tuple[Manifest, pa.Table]:
        """Commit record and episodes of one catalog file; DatasetError if it is damaged."""
        path = self.path(stem)
        check_inside(self._root, [path])
        with self._damage_named(stem):
            table = again_if_stale(path, lambda: _read_table(path))
            manifest = _described(stem, table.schema.metadata)
            if table.num_rows != manifest.episodes:
                raise DatasetError(f"{table.num_rows} episodes, recorded {manifest.episodes}")
            if episodes_digest(table) != manifest.episodes_digest:
                raise DatasetError("its rows are not the ones that were committed")
            _check_columns(table, catalogs.STORE_COLUMNS | catalogs.REQUIRED_COLUMNS)
        return manifest, table.replace_schema_metadata(None)

    def _outside_index(self, stamps: Mapping[str, Stamp]) -> list[str]:
        if self._index is None:
            self._index = self._opened_index()
        index_stamps = self._index.stamps if self._index is not None else {}
        outside = [stem for stem, stamp in stamps.items() if index_stamps.get(stem) != stamp]
        if outside and self._index is not None and self._index.is_replaced():
            self._index = None  # another process has built a newer one
            return self._outside_index(stamps)
        return outside

    def _opened_index(self) -> CatalogIndex | None:
        """The index; None if there is none, or it is damaged or another store's."""
        index = CatalogIndex.load(self.index_path, self.read_shown)
        if index is None:
            return None
        columns = catalogs.STORE_COLUMNS | catalogs.required_columns(self._group_by)
        required = {(name, catalogs.stored_type(kind)) for name, kind in columns.items()}
        has_columns = required <= {(field.name, field.type) for field in index.schema}
        schemas = {file.manifest.schema_hash for file in index.files().values()}
        return index if has_columns and schemas == {self._schema_hash} else None

    def _file(self, stem: str) -> CommittedFile:
        stamp = self._stamp(stem)
        entry = self._tables.get(stem)
        if entry is None or entry[0] != stamp:
            manifest, table = self.read_shown(stem)
            file = CommittedFile(stem, manifest, catalogs.coded(table), 0)
            entry = self._tables[stem] = stamp, file
        return entry[1]

    def read_shown(self, stem: str) -> tuple[Manifest, pa.Table]:
        """As `read`; DatasetError if it is of another schema or lacks a required column."""
        manifest, table = self.read(stem)
        self._check_schema(manifest)
        with self._damage_named(stem):
            _check_columns(table, catalogs.required_columns(self._group_by))
        return manifest, table

    def _stamp(self, stem: str) -> Stamp:
        try:
            return _stamp_of(self.path(stem))
        except FileNotFoundError as error:
            raise DatasetError(f"no part {stem} in {self._address}") from error

    def _damage_named(self, stem: str) -> AbstractContextManager[None]:
        address = f"{self._address}/{CATALOG}/{stem}{SUFFIX}"
        problem = f"part {stem}: catalog file {address} is damaged"
        return failures(problem, *_UNREADABLE, DatasetError)

    def _check_schema(self, manifest: Manifest) -> None:
        if manifest.schema_hash != self._schema_hash:
            raise DatasetError(f"part {manifest.part_id} of {self._address} has another schema")


def _read_table(path: Path) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as stored:
        check_parquet("its table", stored.metadata, path.stat().st_size)
        return stored.read(use_threads=False)


def _stamp_of(path: Path | str) -> Stamp:
    status = again_if_stale(path, lambda: os.stat(path))
    return status.st_size, status.st_mtime_ns


def _described(stem: str, metadata: Mapping[bytes, bytes] | None) -> Manifest:
    manifest = Manifest.from_metadata(metadata or {})
    if manifest.part_id != stem:
        raise DatasetError(f"it describes part {manifest.part_id}")
    return manifest


def _check_columns(table: pa.Table, required: Mapping[str, pa.DataType]) -> None:
    kinds = dict(zip(table.schema.names, table.schema.types, strict=True))
    for name, kind in required.items():
        if kinds.get(name) != kind:
            raise DatasetError(f"column {name} is absent or not of type {kind}")
