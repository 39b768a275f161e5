"""Catalog files, one Parquet file per part. The appearance of a part's file commits the part."""

import io
import os
import shutil
import threading
from collections.abc import Callable, Mapping
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
from gaitforge.datasets.catalog.catalog import Catalog, CommittedFile, Manifest
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.index import (
    MERGED_RATIO,
    CheckedFile,
    PartFiles,
    Segment,
    Stamp,
    check_plain,
    segment_name,
    segment_paths,
    stamp_of,
)
from gaitforge.datasets.layout import CACHE, CATALOG, MERGED_PREFIX
from gaitforge.datasets.schema import Schema

READ_THREADS = 4
INDEX_FROM = 16
"""Number of files missing from the index that adds them: reading one takes about 6 ms."""

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

    Its metadata has the CRC32C of the whole file, by which one look tells that nothing changed.
    Numbers are stored as they are: a dictionary of values that differ takes more bytes, and two
    thirds of the time to read them.
    """
    repeated = [field.name for field in table.schema if not pa.types.is_floating(field.type)]
    out = io.BytesIO()
    pq.write_table(
        table.replace_schema_metadata(
            manifest.to_metadata() | {CHECKSUM_KEY: _CHECKSUM + _NO_DIGITS}
        ),
        out,
        compression="lz4",
        write_page_checksum=True,
        write_statistics=False,
        use_dictionary=repeated,  # pyright: ignore[reportArgumentType] (the stub knows no list)
    )
    content = out.getvalue()
    offset = _checksum_place(content)
    path.write_bytes(content[:offset] + _file_checksum(content, offset) + content[offset + 8 :])
    fsync_path(path)


def is_as_written(content: bytes) -> bool:
    """Whether a catalog file has its own checksum; those of earlier versions have none."""
    offset = _checksum_place(content)
    return offset > 0 and content[offset : offset + 8] == _file_checksum(content, offset)


def _checksum_place(content: bytes) -> int:
    """Where the digits of a file's checksum are; not positive if there are none."""
    start = content.rfind(_CHECKSUM)
    return start + len(_CHECKSUM) if start > 0 else 0


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
        self._tables: dict[str, tuple[Stamp, CommittedFile]] = {}
        self._manifests: dict[str, tuple[Stamp, Manifest]] = {}
        self._lock = threading.Lock()
        self._known_columns: list[tuple[pq.ParquetSchema, pa.Schema]] = []
        self._segments: dict[tuple[str, Stamp], Segment] = {}
        self._seen: list[Path] = []
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
        read: list[CommittedFile] = []
        if damaged or len(outside) >= INDEX_FROM:
            files = self._checked_files(outside)
            if self._add(stamps, indexed, files):
                indexed, _ = self._indexed(stamps)
            else:
                read = [file for group in files for file in group.files.values()]
        left = (stem for stem in outside if stem not in indexed and not read)
        with ThreadPoolExecutor(READ_THREADS) as threads:
            read += threads.map(self._file, left)
        return Catalog(catalogs.collected_pieces([*indexed.values(), *read]), self._group_by)

    def update_index(self) -> bool:
        """Add what is missing to the index; False if it cannot be written: that costs time only."""
        return self._consistent(self._update)

    def _update(self, stamps: Mapping[str, Stamp]) -> bool:
        indexed, damaged = self._indexed(stamps)
        outside = [stem for stem in stamps if stem not in indexed]
        if not outside and not damaged:
            return bool(stamps)
        return self._add(stamps, indexed, self._checked_files(outside))

    def _indexed(self, stamps: Mapping[str, Stamp]) -> tuple[dict[str, CommittedFile], bool]:
        """Files whose rows the index has, in order, and whether one of its segments is damaged."""
        opened: dict[tuple[str, Stamp], Segment] = {}
        damaged = False
        self._seen = segment_paths(self.index_folder)
        for path in self._seen:
            try:
                key = path.name, stamp_of(path)
                segment = self._segments.get(key) or Segment(path, self.read_shown)
            except (OSError, DatasetError):
                if not os.path.lexists(path):  # another process has merged it
                    return self._indexed(stamps)
                damaged = True
                continue
            damaged |= not self._is_ours(segment)
            opened[key] = segment
        self._segments = {key: segment for key, segment in opened.items() if self._is_ours(segment)}
        copied = {
            stem: file
            for segment in self._segments.values()
            for stem, file in segment.files.items()
            if stamps.get(stem) == segment.stamps[stem]
        }
        return {stem: copied[stem] for stem in stamps if stem in copied}, damaged

    def _is_ours(self, segment: Segment) -> bool:
        """Whether a segment's files have this store's schema, and the columns that it needs."""
        columns = catalogs.STORE_COLUMNS | catalogs.required_columns(self._group_by)
        required = {(name, catalogs.stored_type(kind)) for name, kind in columns.items()}
        has_columns = required <= {(field.name, field.type) for field in segment.schema}
        schemas = {file.manifest.schema_hash for file in segment.files.values()}
        return has_columns and schemas == {self._schema_hash}

    def _add(
        self,
        stamps: Mapping[str, Stamp],
        indexed: Mapping[str, CommittedFile],
        outside: list[PartFiles],
    ) -> bool:
        """Write a segment for each of the files, with those of small segments; False if it fails.

        Segments of which nothing is left are removed.
        """
        if not stamps:
            return False
        kept = {id(file.source) for file in indexed.values()}
        written: set[str] = set()
        try:
            self.index_folder.mkdir(exist_ok=True)
            for files in outside:
                small, again = self._small(files, indexed)
                for more in self._checked_files(again):
                    checked = dict(sorted({**files.checked, **more.checked}.items()))
                    files = PartFiles(checked, self._address)
                name = segment_name({stem: file.stamp for stem, file in files.checked.items()})
                files.write(self.index_folder / name)
                written.add(name)
                kept -= small
            used = {segment.path.name for segment in self._segments.values() if id(segment) in kept}
            for path in (path for path in self._seen if path.name not in used | written):
                if path.is_dir():  # the folder is a cache: nothing else in it is kept
                    shutil.rmtree(path)
                path.unlink(missing_ok=True)
        except OSError:
            return False
        self._tables.clear()
        return True

    def _small(
        self, files: PartFiles, indexed: Mapping[str, CommittedFile]
    ) -> tuple[set[int], list[str]]:
        """Segments of few files that have the same columns as some new ones, and their files."""
        small: set[int] = set()
        again: list[str] = []
        for segment in sorted(self._segments.values(), key=lambda segment: len(segment.stamps)):
            stems = [stem for stem, file in indexed.items() if file.source is segment]
            most = MERGED_RATIO * (len(files.checked) + len(again))
            if segment.schema.equals(files.schema) and len(stems) <= max(
                most, len(segment.stamps) // 2
            ):
                small.add(id(segment))
                again += stems
        return small, again

    def _checked_files(self, stems: list[str]) -> list[PartFiles]:
        """Catalog files by their columns; DatasetError if one is damaged."""
        check_inside(self._root, map(self.path, stems))
        with ThreadPoolExecutor(READ_THREADS) as threads:
            checked = dict(zip(stems, threads.map(self._checked, stems), strict=True))
        groups: dict[int, dict[str, CheckedFile]] = {}
        for stem, file in checked.items():
            groups.setdefault(id(file.columns), {})[stem] = file
        return [PartFiles(files, self._address) for files in groups.values()]

    def _checked(self, stem: str) -> CheckedFile:
        """A catalog file that is whole: by its checksum, or else by the digest of its rows."""
        path = self.path(stem)
        stamp = self._stamp(stem)
        with self._damage_named(stem):
            content = read_current(path)[0]
        if not is_as_written(content):
            self.read_shown(stem)
        with self._damage_named(stem):
            metadata = pq.read_metadata(pa.BufferReader(content))
            check_parquet("its table", metadata, len(content))
            manifest = _described(stem, metadata.metadata)
            _check_episodes(metadata.num_rows, manifest)
            self._check_schema(manifest)
            return CheckedFile(path, stamp, manifest, self._plain_columns(metadata.schema))

    def _plain_columns(self, stored: pq.ParquetSchema) -> pa.Schema:
        """The columns of a file, checked; the same object for all files that have the same."""
        with self._lock:
            for known, columns in self._known_columns:
                if known.equals(stored):
                    return columns
            columns = stored.to_arrow_schema().remove_metadata()
            required = catalogs.STORE_COLUMNS | catalogs.required_columns(self._group_by)
            _check_columns(columns, required)
            check_plain(columns)
            self._known_columns.append((stored, columns))
            return columns

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
            _check_episodes(table.num_rows, manifest)
            if episodes_digest(table) != manifest.episodes_digest:
                raise DatasetError("its rows are not the ones that were committed")
            _check_columns(table.schema, catalogs.STORE_COLUMNS | catalogs.REQUIRED_COLUMNS)
        return manifest, table.replace_schema_metadata(None)

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


def _read_table(path: Path) -> pa.Table:
    with pq.ParquetFile(path, page_checksum_verification=True) as stored:
        check_parquet("its table", stored.metadata, path.stat().st_size)
        return stored.read(use_threads=False)


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
