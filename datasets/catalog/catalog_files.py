"""Catalog files, one Parquet file per part, and the catalog index, a copy of all of them in one.

The appearance of a part's catalog file commits the part.

The index is for fast queries of a few columns. It is only a cache: it records name, size and
modification time of the files it copied and is used for those that are unchanged. It is replaced
atomically and can be deleted at any time. Times are only compared for equality, so clocks do not
matter.

The index's file is a Parquet file, the CRC32C of each column chunk in it, and the CRC32C of its
footer and of those: Parquet's own checksums leave out names, places and page headers. A chunk is
checked when it is read, because reading all of a large index takes longer than a query.
"""

import contextlib
import json
import mmap
import os
import shutil
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError, failures
from gaitforge.common.files import check_inside, fsync_path, replace_durably, temporary_file
from gaitforge.common.limits import check_parquet
from gaitforge.common.locks import again_if_stale
from gaitforge.datasets.catalog import catalog as catalogs
from gaitforge.datasets.catalog.catalog import (
    CODED,
    Catalog,
    CommittedFile,
    LaterParsed,
    Manifest,
    canonical_json,
    coded,
    stored_type,
)
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.layout import CACHE, CATALOG, MERGED_PREFIX
from gaitforge.datasets.schema import Schema

# The catalog index.
ReadFile = Callable[[str], tuple[Manifest, pa.Table]]
"""Reads the commit record and the episodes of a catalog file."""

Stamp = tuple[int, int]
"""Size in bytes, and modification time in ns."""

PARSED_LATER = ("objects", "arrays")
"""Entries that are most of a commit record's text; a query does not need them."""

_UNREADABLE_INDEX = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    struct.error,
    pa.ArrowException,
)
"""What reading wrong content raises."""

INDEX_KEY = b"gaitforge_index"
END = struct.Struct("<II")
"""The number of column chunks, and the CRC32C of the Parquet footer and the chunks' CRC32Cs."""

FILES_AT_ONCE = 64
"""Catalog files of one row group; those of the next are read while one is written."""

BUILD_THREADS = 2


class CatalogIndex:
    """An open index file; its rows stay the same when another one replaces it."""

    def __init__(self, path: Path, read: ReadFile) -> None:
        self._path = path
        self._read = read
        self.damage = f"the catalog index {path} is damaged; delete it, and it is rebuilt"
        self._lock = threading.Lock()
        try:
            self._identity = _identity(path)
            again_if_stale(path, lambda: self._open(path))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except _UNREADABLE_INDEX as error:
            raise DatasetError(self.damage) from error

    def _open(self, path: Path) -> None:
        with open(path, "rb") as opened:
            self._mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._content = pa.py_buffer(self._mapped)
        end = self._content.size - END.size
        count, crc = END.unpack(self._content[end:])
        length = end - 4 * count
        footer = _footer_start(self._content[: max(0, length)])
        if count < 1 or footer < 1 or google_crc32c.value(self._content[footer:end]) != crc:
            raise ValueError("its end has another checksum")
        self._sums = np.frombuffer(self._content[length:end], "<u4")
        self._file = pq.ParquetFile(pa.BufferReader(self._content[:length]))
        check_parquet(str(path), self._file.metadata, length)
        record = json.loads((self._file.metadata.metadata or {})[INDEX_KEY])
        self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
        self.stamps: dict[str, Stamp] = {
            stem: (size, modified) for stem, (size, modified) in record["stamps"].items()
        }
        self._manifests: list[dict[str, Any]] = record["manifests"]
        rows = sum(file.manifest.episodes for file in self.files().values())
        if rows != self._file.metadata.num_rows:
            raise ValueError("its rows are not those of its records")

    @classmethod
    def load(cls, path: Path, read: ReadFile) -> "CatalogIndex | None":
        """Open an index; None if there is none, or it is damaged."""
        try:
            return cls(path, read)
        except (OSError, DatasetError):
            return None

    def is_replaced(self) -> bool:
        """Whether another file has the path now."""
        return _identity(self._path) not in (None, self._identity)

    def files(self) -> dict[str, CommittedFile]:
        """Stem -> the copied catalog file."""
        files = {}
        first = 0
        for stem, tree in zip(self.stamps, self._manifests, strict=True):
            manifest = Manifest.from_json({**tree, "objects": {}})
            objects, arrays = (LaterParsed(tree[name]) for name in PARSED_LATER)
            members = tuple(replace(member, objects=objects) for member in manifest.members)
            manifest = replace(manifest, objects=objects, arrays=arrays, members=members)
            files[stem] = CommittedFile(stem, manifest, self, first)
            first += manifest.episodes
        return files

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column; from the catalog files if the index's are damaged."""
        try:
            return self.stored_column(name)
        except DatasetError:
            if not self.is_replaced():
                with contextlib.suppress(OSError):
                    self._path.unlink()  # so that it is built again
            return _joined(pa.schema([self.schema.field(name)]), self._of_files(name)).column(0)

    def stored_column(self, name: str) -> pa.ChunkedArray:
        """All values of one column as they lie in the index; DatasetError if they are damaged."""
        with self._lock:
            try:
                if not self._is_whole(name):
                    raise ValueError("its bytes have another checksum")
                column = self._file.read(columns=[name], use_threads=False).column(0)
                self._mapped.madvise(mmap.MADV_DONTNEED)  # else a whole large file stays in memory
                return column
            except _UNREADABLE_INDEX as error:
                raise DatasetError(self.damage) from error

    def _of_files(self, name: str) -> Iterator[pa.Table]:
        """A column as the catalog files have it; DatasetError if they are not as they were."""
        for stem, tree in zip(self.stamps, self._manifests, strict=True):
            manifest, table = self._read(stem)
            if manifest.episodes_digest != tree["episodes_digest"]:
                raise DatasetError(self.damage)
            yield coded(table.select([name] if name in table.column_names else []))

    def _is_whole(self, name: str) -> bool:
        """Whether a column's bytes are those that were written."""
        metadata = self._file.metadata
        index = self.schema.get_field_index(name)
        sums = self._sums[index :: metadata.num_columns].tolist()
        chunks = (_chunk(metadata, group, index) for group in range(metadata.num_row_groups))
        return sums == [google_crc32c.value(self._content[chunk]) for chunk in chunks]


def build_index(
    path: Path, stamps: Mapping[str, Stamp], plain_schema: pa.Schema, read: ReadFile
) -> None:
    """Write an index of the catalog files in `stamps`; twice `FILES_AT_ONCE` are in memory.

    `plain_schema` has the columns of all files. OSError if the folder cannot be written,
    DatasetError if a file is damaged.
    """
    stems = list(stamps)
    schema = pa.schema([(field.name, stored_type(field.type)) for field in plain_schema])
    text = [field.name for field in schema if field.type == CODED]
    manifests: list[dict[str, object]] = []
    with temporary_file(path) as temporary:
        with (
            pq.ParquetWriter(
                temporary,
                schema,
                compression="lz4",
                write_statistics=False,
                use_dictionary=text,  # pyright: ignore[reportArgumentType] (the stub knows no list)
            ) as writer,
            ThreadPoolExecutor(BUILD_THREADS) as threads,
        ):
            ahead = threads.map(read, stems[:FILES_AT_ONCE])
            for stop in range(FILES_AT_ONCE, len(stems) + FILES_AT_ONCE, FILES_AT_ONCE):
                group = list(ahead)
                ahead = threads.map(read, stems[stop : stop + FILES_AT_ONCE])
                for tree in (manifest.to_json() for manifest, _ in group):
                    later = {name: json.dumps(tree[name]) for name in PARSED_LATER}
                    manifests.append(tree | later)
                joined = _joined(schema, (coded(table) for _, table in group))
                joined = joined.unify_dictionaries()
                writer.write_table(joined, row_group_size=max(1, joined.num_rows))
            record = {"stamps": stamps, "manifests": manifests}
            writer.add_key_value_metadata({INDEX_KEY: canonical_json(record)})
        with open(temporary, "r+b") as written:
            written.write(sums_and_end(written))
        fsync_path(temporary)
        if path.is_dir():  # the folder is a cache: nothing in it is kept
            shutil.rmtree(path)
        replace_durably(temporary, path)


def _joined(schema: pa.Schema, tables: Iterable[pa.Table]) -> pa.Table:
    return pa.concat_tables([schema.empty_table(), *tables], promote_options="permissive")


def sums_and_end(written: BinaryIO) -> bytes:
    """The bytes after the Parquet file in an index; leaves the file at its end."""
    metadata = pq.read_metadata(written)
    sums = list[int]()
    for position in product(range(metadata.num_row_groups), range(metadata.num_columns)):
        chunk = _chunk(metadata, *position)
        written.seek(chunk.start)
        sums.append(google_crc32c.value(written.read(chunk.stop - chunk.start)))
    written.seek(-metadata.serialized_size - 8, os.SEEK_END)  # see `_footer_start`
    footer = written.read()
    behind = np.array(sums, "<u4").tobytes()
    return behind + END.pack(len(sums), google_crc32c.value(footer + behind))


def _chunk(metadata: pq.FileMetaData, group: int, index: int) -> slice:
    """The byte range of a column in one row group."""
    column = metadata.row_group(group).column(index)
    start = column.dictionary_page_offset or column.data_page_offset
    return slice(start, start + column.total_compressed_size)


def _footer_start(parquet: pa.Buffer) -> int:
    """Offset of a Parquet file's footer; its length and a mark of 4 bytes follow it."""
    return parquet.size - 8 - int.from_bytes(parquet[-8:-4], "little")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = again_if_stale(path, path.stat)
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Catalog files.
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
