"""Catalog files, one Parquet file per part. The appearance of a part's file commits the part."""

import io
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import TypeVar

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError, failures
from gaitforge.common.files import check_inside, fsync_path
from gaitforge.common.limits import check_parquet
from gaitforge.common.locks import again_if_stale, read_current
from gaitforge.datasets.catalog import catalog as catalogs
from gaitforge.datasets.catalog.catalog import Catalog, CommittedFile, Manifest, coded
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.index import (
    PartFiles,
    Segment,
    Stamp,
    segment_path,
    segment_paths,
    stamp_of,
    write_segment,
)
from gaitforge.datasets.layout import CACHE, CATALOG, MERGED_PREFIX
from gaitforge.datasets.schema import Schema

READ_THREADS = 2
FILES_AT_ONCE = 16
"""Catalog files whose rows are read before the next are: memory that is used again is fast."""

INDEX_FROM = 16
"""Number of files missing from the index that adds them: reading one takes about 3 ms."""

MERGED_RATIO = 2
"""A segment of up to so many times the new files is written again with them, so few are left."""

Read = TypeVar("Read")

_UNREADABLE = (OSError, UnicodeDecodeError, pa.ArrowException)
"""What pyarrow raises on a damaged file; the second for damaged column names."""

SUFFIX = ".parquet"

CHECKSUM_KEY = b"gaitforge_crc32c"
_CHECKSUM = b"CRC32C of this file without these digits: "
_NO_DIGITS = b"00000000"
"""Stands for the digits of a file's checksum while it is computed."""


def write_catalog_file(path: Path, table: pa.Table, manifest: Manifest) -> None:
    """Write and flush a catalog file; renaming it into the catalog commits the part.

    Its metadata has the CRC32C of the whole file, which tells faster than the rows' digest that
    nothing changed. Numbers are stored as they are: a dictionary of values that differ takes more
    bytes, and two thirds of the time to read them.
    """
    repeated = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    metadata = manifest.to_metadata() | {CHECKSUM_KEY: _CHECKSUM + _NO_DIGITS}
    out = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(metadata),
        out,
        compression="lz4",
        write_page_checksum=True,
        write_statistics=False,
        use_dictionary=repeated,  # pyright: ignore[reportArgumentType] (the stub knows no list)
    )
    content = out.getvalue()
    offset = content.rfind(_CHECKSUM) + len(_CHECKSUM)
    path.write_bytes(content[:offset] + _file_checksum(content, offset) + content[offset + 8 :])
    fsync_path(path)


def is_as_written(content: bytes) -> bool:
    """Whether a catalog file has its own checksum; those of earlier versions have none."""
    start = content.rfind(_CHECKSUM)
    offset = start + len(_CHECKSUM)
    return start > 0 and content[offset : offset + 8] == _file_checksum(content, offset)


def _file_checksum(content: bytes, offset: int) -> bytes:
    shared = pa.py_buffer(content)  # slices of bytes are copies
    crc = google_crc32c.extend(google_crc32c.value(shared[:offset]), _NO_DIGITS)
    return b"%08x" % google_crc32c.extend(crc, shared[offset + len(_NO_DIGITS) :])


class CatalogFolder:
    """The committed catalog files of a store, read again only when they change.

    Every part must have the `schema`; messages call the store `address`.
    """

    def __init__(self, root: Path, schema: Schema, address: str) -> None:
        self._root = root
        self._address = address
        self._schema_hash = schema.hash
        self._group_by = schema.group_by
        columns = catalogs.STORE_COLUMNS | catalogs.required_columns(schema.group_by)
        self._stored = {name: catalogs.stored_type(kind) for name, kind in columns.items()}
        self._tables: dict[str, tuple[Stamp, CommittedFile]] = {}
        self._manifests: dict[str, tuple[Stamp, Manifest]] = {}
        self._segments: dict[tuple[str, Stamp], Segment] = {}
        self._seen: list[Path] = []
        self._checked = pa.schema([])
        self._catalog: Catalog | None = None
        self._catalog_stamps: Mapping[str, Stamp] | None = None

    @property
    def index_folder(self) -> Path:
        """Folder of the index: a cache of the catalog files."""
        return self._root / CACHE

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
                stamps = {stem: stamp_of(f"{folder}/{stem}{SUFFIX}") for stem in stems}
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
        indexed, damaged = self._indexed(stamps)
        outside = [stem for stem in stamps if stem not in indexed]
        is_late = len(outside) >= INDEX_FROM
        if (damaged or is_late) and self._write_index(stamps, indexed, outside):
            indexed, _ = self._indexed(stamps)
            outside = [stem for stem in stamps if stem not in indexed]
        if len(outside) >= INDEX_FROM:
            read = self._unindexed({stem: stamps[stem] for stem in outside})
        else:
            with ThreadPoolExecutor(READ_THREADS) as threads:
                read = list(threads.map(self._file, outside))
        return Catalog(catalogs.collected_pieces([*indexed.values(), *read]), self._group_by)

    def update_index(self) -> bool:
        """Add what is missing to the index; False if it cannot be written: that costs time only."""
        return self._consistent(self._update)

    def _update(self, stamps: Mapping[str, Stamp]) -> bool:
        indexed, damaged = self._indexed(stamps)
        outside = [stem for stem in stamps if stem not in indexed]
        if not outside and not damaged:
            return bool(stamps)
        return self._write_index(stamps, indexed, outside)

    def _indexed(self, stamps: Mapping[str, Stamp]) -> tuple[dict[str, CommittedFile], bool]:
        """Files whose rows the index has, in order, and whether one of its segments is damaged."""
        opened: dict[tuple[str, Stamp], Segment] = {}
        damaged = False
        self._seen = segment_paths(self.index_folder)
        for path in self._seen:
            try:
                key = path.name, stamp_of(path)
                segment = self._segments.get(key) or Segment(path, self.read_columns)
            except (OSError, DatasetError):
                if not os.path.lexists(path):  # another process has merged it
                    return self._indexed(stamps)
                damaged = True
                continue
            if self._is_ours(segment):
                opened[key] = segment
            else:
                damaged = True
        self._segments = opened
        copied = {
            stem: file
            for segment in opened.values()
            for stem, file in segment.files.items()
            if stamps.get(stem) == segment.stamps[stem]
        }
        return {stem: copied[stem] for stem in stamps if stem in copied}, damaged

    def _is_ours(self, segment: Segment) -> bool:
        """Whether a segment's files have this store's schema, and the columns that it needs."""
        kinds = {field.name: field.type for field in segment.schema}
        has_columns = kinds.items() >= self._stored.items()
        schemas = {file.manifest.schema_hash for file in segment.files.values()}
        return has_columns and schemas == {self._schema_hash}

    def _write_index(
        self, stamps: Mapping[str, Stamp], indexed: Mapping[str, CommittedFile], outside: list[str]
    ) -> bool:
        """Write a segment of some files and those of small segments; False if that fails.

        What else is in the index is removed.
        """
        if not stamps:
            return False
        kept: set[Path] = set()
        written = set(outside)
        for segment in sorted(self._segments.values(), key=lambda segment: len(segment.stamps)):
            used = [stem for stem, file in indexed.items() if file.source is segment]
            if len(used) > MERGED_RATIO * len(written):
                kept.add(segment.path)
            else:
                written.update(used)
        chosen = {stem: stamp for stem, stamp in stamps.items() if stem in written}
        try:
            self.index_folder.mkdir(exist_ok=True)
            if chosen:
                path = segment_path(self.index_folder, chosen)
                write_segment(path, chosen, self._all_rows(list(chosen)))
                kept.add(path)
            for path in (path for path in self._seen if path not in kept):
                if path.is_dir():  # the folder is a cache: nothing else in it is kept
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
        except OSError:
            return False
        self._tables.clear()
        return True

    def _all_rows(self, stems: list[str]) -> Iterator[tuple[Manifest, pa.Table]]:
        """As `_rows`, of each file, a few of which are in memory."""
        check_inside(self._root, map(self.path, stems))
        with ThreadPoolExecutor(READ_THREADS) as threads:
            for first in range(0, len(stems), FILES_AT_ONCE):
                yield from threads.map(self._rows, stems[first : first + FILES_AT_ONCE])

    def _unindexed(self, stamps: Mapping[str, Stamp]) -> list[CommittedFile]:
        """Files of which only the columns of every store are in memory, as there is no index."""
        manifests: dict[str, Manifest] = {}
        schemas: dict[pa.Schema, None] = {}
        held: list[pa.Table] = []
        for stem, (manifest, table) in zip(stamps, self._all_rows(list(stamps)), strict=True):
            manifests[stem] = manifest
            schemas[table.schema] = None
            held.append(table.select([*self._stored]))
        schema = catalogs.common_schema(schemas)
        files = PartFiles(stamps, manifests, schema, self.read_columns, held)
        return [*files.files.values()]

    def read_columns(self, stem: str, stamp: Stamp, names: list[str]) -> pa.Table:
        """Those columns that a file has, text coded; DatasetError unless it is as it was."""
        if self._stamp(stem) != stamp:
            raise DatasetError(f"part {stem} of {self._address} changed while it was read")
        path = self.path(stem)
        with self._damage_named(stem):
            return coded(again_if_stale(path, lambda: _read_table(path, stamp[0], names)))

    def columns(self, stem: str) -> pa.Schema:
        """Names and types of one catalog file's columns; DatasetError if it is damaged."""
        with self._damage_named(stem):
            return pq.read_schema(self.path(stem)).remove_metadata()

    def read(self, stem: str) -> tuple[Manifest, pa.Table]:
        """Commit record and episodes of one catalog file; DatasetError if it is damaged."""
        path = self.path(stem)
        check_inside(self._root, [path])
        with self._damage_named(stem):
            table = again_if_stale(path, lambda: _read_table(path, path.stat().st_size))
            manifest = _described(stem, table.schema.metadata)
            _check_episodes(table.num_rows, manifest)
            if episodes_digest(table) != manifest.episodes_digest:
                raise DatasetError("its rows are not the ones that were committed")
            _check_columns(table.schema, catalogs.STORE_COLUMNS | catalogs.REQUIRED_COLUMNS)
        return manifest, table.replace_schema_metadata(None)

    def _file(self, stem: str) -> CommittedFile:
        stamp = self._stamp(stem)
        entry = self._tables.get(stem)
        if entry is None or entry[0] != stamp:
            check_inside(self._root, [self.path(stem)])
            manifest, table = self._rows(stem)
            entry = self._tables[stem] = stamp, CommittedFile(stem, manifest, table, 0)
        return entry[1]

    def _rows(self, stem: str) -> tuple[Manifest, pa.Table]:
        """As `read_shown`, text coded; by the file's checksum where it has one, which is faster."""
        with self._damage_named(stem):
            content, _ = read_current(self.path(stem))
        if not is_as_written(content):
            manifest, table = self.read_shown(stem)
            return manifest, coded(table)
        with self._damage_named(stem):
            text = [field.name for field in self._checked if field.type == catalogs.CODED]
            table = _read_table(pa.BufferReader(content), len(content), text=text)
            manifest = _described(stem, table.schema.metadata)
            _check_episodes(table.num_rows, manifest)
            self._check_schema(manifest)
            table = self._known(table.replace_schema_metadata(None))
        return manifest, table

    def _known(self, table: pa.Table) -> pa.Table:
        """Rows with text coded; their columns are checked unless the file before had the same."""
        if not table.schema.equals(self._checked):
            table = coded(table)
            _check_columns(table.schema, self._stored)
            self._checked = table.schema
        return table

    def read_shown(self, stem: str) -> tuple[Manifest, pa.Table]:
        """As `read`; DatasetError if it is of another schema or lacks a required column."""
        manifest, table = self.read(stem)
        self._check_schema(manifest)
        with self._damage_named(stem):
            _check_columns(table.schema, catalogs.required_columns(self._group_by))
        return manifest, table

    def _stamp(self, stem: str) -> Stamp:
        try:
            return stamp_of(self.path(stem))
        except FileNotFoundError as error:
            raise DatasetError(f"no part {stem} in {self._address}") from error

    def _damage_named(self, stem: str) -> AbstractContextManager[None]:
        address = f"{self._address}/{CATALOG}/{stem}{SUFFIX}"
        problem = f"part {stem}: catalog file {address} is damaged"
        return failures(problem, *_UNREADABLE, DatasetError)

    def _check_schema(self, manifest: Manifest) -> None:
        if manifest.schema_hash != self._schema_hash:
            raise DatasetError(f"part {manifest.part_id} of {self._address} has another schema")


def _read_table(
    source: Path | pa.BufferReader,
    held: int,
    names: Sequence[str] | None = None,
    text: Sequence[str] = (),
) -> pa.Table:
    """Columns of a catalog file of `held` bytes (None: all), of which `text` may be coded."""
    try:
        opened = pq.ParquetFile(source, read_dictionary=text, page_checksum_verification=True)
    except KeyError:  # the file lacks one of them
        opened = pq.ParquetFile(source, page_checksum_verification=True)
    with opened as stored:
        check_parquet("its table", stored.metadata, held)
        columns = None if names is None else [n for n in names if n in stored.schema_arrow.names]
        return stored.read(columns=columns, use_threads=False)


def _described(stem: str, metadata: Mapping[bytes, bytes] | None) -> Manifest:
    manifest = Manifest.from_metadata(metadata or {})
    if manifest.part_id != stem:
        raise DatasetError(f"it describes part {manifest.part_id}")
    return manifest


def _check_episodes(rows: int, manifest: Manifest) -> None:
    if rows != manifest.episodes:
        raise DatasetError(f"{rows} episodes, recorded {manifest.episodes}")


def _check_columns(columns: pa.Schema, required: Mapping[str, pa.DataType]) -> None:
    kinds = dict(zip(columns.names, columns.types, strict=True))
    for name, kind in required.items():
        if kinds.get(name) != kind:
            raise DatasetError(f"column {name} is absent or not of type {kind}")
