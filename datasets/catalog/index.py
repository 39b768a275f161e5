"""The catalog's index: catalog files copied into few large files, for queries of a few columns.

The index is a set of segments. A segment is one Parquet file with the rows of some catalog files
that have the same columns. It records name, size and modification time of each file and its commit
record, and is used for the files that are unchanged. Times are only compared for equality, so
clocks do not matter. New parts get a new segment, into which small ones are merged. Segments never
change: they appear and are removed as a whole, and all of them can be deleted at any time.

Behind the Parquet file are the CRC32C of each column chunk in it, and the CRC32C of its footer and
of those: Parquet's own checksums leave out names, places and page headers. A chunk is checked when
it is read, because reading all of a large segment takes longer than a query.

DuckDB reads the catalog files and writes the segments. `PartFiles` reads the columns from the
catalog files, where no segment can be written.
"""

import glob
import hashlib
import json
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError
from gaitforge.common.files import fsync_path, replace_durably, temporary_file
from gaitforge.common.limits import check_parquet
from gaitforge.common.locks import again_if_stale
from gaitforge.datasets.catalog.catalog import (
    PART_ID,
    CommittedFile,
    LaterParsed,
    Manifest,
    Source,
    canonical_json,
    coded,
    stored_type,
)

if TYPE_CHECKING:
    import duckdb

Stamp = tuple[int, int]
"""Size in bytes, and modification time in ns."""

ReadFile = Callable[[str], tuple[Manifest, pa.Table]]
"""Reads the commit record and the episodes of a catalog file."""

SUFFIX = ".index"

ROW_GROUP = 1 << 15
"""Rows that DuckDB gathers before it writes them; with four times as many a build takes longer."""

GROUPS_AT_ONCE = 4
"""Row groups that are in memory while a query goes through the rows: new memory takes time."""

MOST_IN_DICTIONARY = 100
"""Distinct values of a column in a row group that are written once each."""

MERGED_RATIO = 2
"""A segment of up to so many times the new files is written again with them, so few are left."""

_PARSED_LATER = ("objects", "arrays")
"""Entries that are most of a commit record's text; a query does not need them."""

_UNREADABLE = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    struct.error,
    pa.ArrowException,
)
"""What reading wrong content raises."""

_INDEX_KEY = b"gaitforge_index"
_END = struct.Struct("<II")
"""The number of column chunks, and the CRC32C of the Parquet footer and the chunks' CRC32Cs."""

_SQL_TYPES = {
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.string(): "VARCHAR",
}
"""Types of a catalog's columns."""


@dataclass(frozen=True)
class CheckedFile:
    """A catalog file whose rows are known to be the committed ones; `columns` are plain types."""

    path: Path
    stamp: Stamp
    manifest: Manifest
    columns: pa.Schema


class PartFiles:
    """The rows of catalog files that have the same columns, read by DuckDB when they are used."""

    def __init__(self, files: Mapping[str, CheckedFile], address: str) -> None:
        self.checked = dict(files)
        self._address = address
        plain = next(iter(files.values())).columns
        self.schema = pa.schema([(field.name, stored_type(field.type)) for field in plain])
        self._plain = plain

    @cached_property
    def files(self) -> dict[str, CommittedFile]:
        """Stem -> the catalog file."""
        return _committed({stem: file.manifest for stem, file in self.checked.items()}, self)

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column; DatasetError if a file is absent or changed."""
        import duckdb  # slow to import

        try:
            with self._connection([]) as connection:
                read = connection.sql(self._select([name])).to_arrow_table()
            self._check_unchanged()
        except (OSError, duckdb.Error) as error:
            raise DatasetError(
                f"the catalog files of {self._address} changed while they were read: {error}"
            ) from error
        return coded(read).column(0)

    def write(self, path: Path) -> None:
        """Write a segment of the files; OSError if that fails."""
        import duckdb  # slow to import

        stamps = {stem: file.stamp for stem, file in self.checked.items()}
        manifests = list[dict[str, object]]()
        for tree in (file.manifest.to_json() for file in self.checked.values()):
            manifests.append(tree | {name: json.dumps(tree[name]) for name in _PARSED_LATER})
        record = canonical_json({"stamps": stamps, "manifests": manifests}).decode()
        options = (
            f"FORMAT parquet, COMPRESSION uncompressed, ROW_GROUP_SIZE {ROW_GROUP}, "
            f"DICTIONARY_SIZE_LIMIT {MOST_IN_DICTIONARY}, USE_TMP_FILE false, "
            "WRITE_BLOOM_FILTER false, "
            f"KV_METADATA {{{_INDEX_KEY.decode()}: {_text(record)}}}"
        )
        with temporary_file(path) as temporary:
            try:
                with self._connection([path.parent]) as connection:
                    rows = self._select(self._plain.names)
                    connection.execute(f"COPY ({rows}) TO {_text(str(temporary))} ({options})")
                self._check_unchanged()
            except duckdb.Error as error:
                raise OSError(str(error)) from error
            with open(temporary, "r+b") as written:
                written.write(sums_and_end(written))
            fsync_path(temporary)
            replace_durably(temporary, path)

    def _connection(self, folders: list[Path]) -> "duckdb.DuckDBPyConnection":
        """DuckDB that can touch the files' folders and `folders`, and nothing else."""
        import duckdb

        from gaitforge.datasets.catalog.conditions import SETTINGS

        access = "enable_external_access"
        settings = {name: value for name, value in SETTINGS.items() if name != access}
        connection = duckdb.connect(":memory:", config=settings)
        used = {str(path) for path in [*folders, *(f.path.parent for f in self.checked.values())]}
        allowed = sorted(used | {glob.escape(path) for path in used})
        connection.execute(f"SET allowed_directories = {_list(allowed)}")
        connection.execute("SET temp_directory = ''")
        connection.execute(f"SET {access} = false")
        connection.execute("SET lock_configuration = true")
        return connection

    def _select(self, names: Sequence[str]) -> str:
        """SQL for columns of all files, in the files' order, which DuckDB keeps."""
        columns = [
            f'CAST("{name}" AS {_SQL_TYPES[self._plain.field(name).type]}) AS "{name}"'
            for name in (name.replace('"', '""') for name in names)
        ]
        paths = [glob.escape(str(file.path)) for file in self.checked.values()]
        return f"SELECT {', '.join(columns)} FROM read_parquet({_list(paths)})"

    def _check_unchanged(self) -> None:
        for file in self.checked.values():
            if stamp_of(file.path) != file.stamp:
                raise OSError(f"{file.path} changed")


class Segment:
    """An open file of the index; its rows stay the same when the file is removed."""

    def __init__(self, path: Path, read: ReadFile) -> None:
        self.path = path
        self._read = read
        self.damage = f"the catalog index {path} is damaged; delete it, and it is rebuilt"
        self._lock = threading.Lock()
        try:
            again_if_stale(path, self._open)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except _UNREADABLE as error:
            raise DatasetError(self.damage) from error

    def _open(self) -> None:
        with open(self.path, "rb") as opened:
            self._mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        self._content = pa.py_buffer(self._mapped)
        end = self._content.size - _END.size
        count, crc = _END.unpack(self._content[end:])
        length = end - 4 * count
        footer = _footer_start(self._content[: max(0, length)])
        if count < 1 or footer < 1 or google_crc32c.value(self._content[footer:end]) != crc:
            raise ValueError("its end has another checksum")
        self._sums = np.frombuffer(self._content[length:end], "<u4")
        stored = pa.BufferReader(self._content[:length])
        metadata = pq.read_metadata(stored)
        check_parquet(str(self.path), metadata, length)
        kinds = metadata.schema.to_arrow_schema()
        text = [f.name for f in kinds if stored_type(f.type) != f.type]
        self._file = pq.ParquetFile(stored, metadata=metadata, read_dictionary=text)
        self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
        sizes = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
        self._ends = np.cumsum(sizes, dtype=np.int64)
        record = json.loads((metadata.metadata or {})[_INDEX_KEY])
        self.stamps: dict[str, Stamp] = {
            stem: (size, modified) for stem, (size, modified) in record["stamps"].items()
        }
        manifests = map(_recorded, record["manifests"])
        self.files = _committed(dict(zip(self.stamps, manifests, strict=True)), self)
        if sum(file.manifest.episodes for file in self.files.values()) != metadata.num_rows:
            raise ValueError("its rows are not those of its records")

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column; from the catalog files if the segment's are damaged."""
        try:
            return self.stored_column(name)
        except DatasetError:
            with suppress(OSError):
                self.path.unlink()  # so that it is written again
            empty = pa.schema([self.schema.field(name)]).empty_table()
            joined = pa.concat_tables([empty, *self._of_files(name)], promote_options="permissive")
            return joined.column(0)

    def _of_files(self, name: str) -> Iterator[pa.Table]:
        """A column as the catalog files have it; DatasetError if they are not as they were."""
        for stem, file in self.files.items():
            manifest, table = self._read(stem)
            if manifest.episodes_digest != file.manifest.episodes_digest:
                raise DatasetError(self.damage)
            yield coded(table.select([name] if name in table.column_names else []))

    def stored_column(self, name: str) -> pa.ChunkedArray:
        """All values of one column as they lie in the segment; DatasetError if damaged."""
        column = self._stored([name], range(self._file.num_row_groups)).column(0)
        self._mapped.madvise(mmap.MADV_DONTNEED)  # else a whole large file stays in memory
        return column

    def _stored(self, names: list[str], groups: Sequence[int]) -> pa.Table:
        """Columns of some row groups; DatasetError if they are damaged."""
        with self._lock:
            try:
                self._check([self.schema.get_field_index(name) for name in names], groups)
                read = self._file.read_row_groups(list(groups), columns=names, use_threads=False)
                return read.select(names)
            except _UNREADABLE as error:
                raise DatasetError(self.damage) from error

    def batches(self, names: list[str], first: int, count: int) -> Iterator[pa.Table]:
        """Columns of some rows in order, `GROUPS_AT_ONCE` row groups at a time, as by `column`."""
        stop = first + count
        begins = np.append(0, self._ends[:-1])
        used = np.flatnonzero((self._ends > first) & (begins < stop)).tolist()
        for groups in (used[i : i + GROUPS_AT_ONCE] for i in range(0, len(used), GROUPS_AT_ONCE)):
            low = int(begins[groups[0]])
            try:
                table = self._stored(names, groups)
            except DatasetError:
                whole = [self.column(name) for name in names]  # from the catalog files
                table = pa.Table.from_arrays(whole, names=names)
                yield table.slice(max(first, low), stop - max(first, low))
                return
            begin = max(first, low)
            yield table.slice(begin - low, stop - begin)

    def rows_of_files(self) -> Iterator[tuple[CommittedFile, pa.Table]]:
        """Each catalog file and its rows here, some row groups at once; DatasetError if damaged."""
        held = self.schema.empty_table()
        groups = iter(range(self._file.num_row_groups))
        for file in self.files.values():
            while held.num_rows < file.manifest.episodes:
                group = self._stored(self.schema.names, [next(groups)])
                held = pa.concat_tables([held, group])
            yield file, held.slice(0, file.manifest.episodes)
            held = held.slice(file.manifest.episodes)

    def _check(self, columns: Iterable[int], groups: Iterable[int]) -> None:
        """ValueError unless the columns' bytes are those that were written."""
        metadata = self._file.metadata
        for group, column in product(groups, columns):
            crc = google_crc32c.value(self._content[_chunk(metadata, group, column)])
            if crc != self._sums[group * metadata.num_columns + column]:
                raise ValueError("its bytes have another checksum")


def _recorded(tree: dict[str, Any]) -> Manifest:
    """A commit record of a segment, most of which is parsed when it is used."""
    objects, arrays = LaterParsed(tree["objects"]), LaterParsed(tree["arrays"])
    if tree.get("members"):
        manifest = Manifest.from_json({**tree, "objects": {}})
        members = tuple(replace(member, objects=objects) for member in manifest.members)
        return replace(manifest, objects=objects, arrays=arrays, members=members)
    if not PART_ID.fullmatch(tree["part_id"]):
        raise ValueError(f"{tree['part_id']!a:.100} is no part's name")
    return Manifest(**{**tree, "objects": objects, "arrays": arrays})


def _committed(manifests: Mapping[str, Manifest], source: Source) -> dict[str, CommittedFile]:
    """Stem -> the catalog file, whose rows follow each other in a source."""
    files = {}
    first = 0
    for stem, manifest in manifests.items():
        files[stem] = CommittedFile(stem, manifest, source, first)
        first += manifest.episodes
    return files


def check_plain(columns: pa.Schema) -> None:
    """DatasetError for columns of other types or names than those that are committed."""
    for field in columns:
        if field.type not in _SQL_TYPES:
            raise DatasetError(f"column {field.name} has type {field.type}")
    if len({name.lower() for name in columns.names}) != len(columns.names):
        raise DatasetError("its columns differ in upper and lower case only")


def segment_name(stamps: Mapping[str, Stamp]) -> str:
    """The name of the segment of catalog files: the same whoever writes it."""
    return f"episodes-{hashlib.sha256(canonical_json(stamps)).hexdigest()[:16]}{SUFFIX}"


def segment_paths(folder: Path) -> list[Path]:
    """The index's files in order of their names, also those of earlier versions."""
    with suppress(OSError):  # a cache that cannot be read is none
        return sorted(
            folder / name
            for name in os.listdir(folder)
            if name.startswith("episodes") and name.endswith(SUFFIX)
        )
    return []


def stamp_of(path: Path | str) -> Stamp:
    """Size and time of a file."""
    status = again_if_stale(path, lambda: os.stat(path))
    return status.st_size, status.st_mtime_ns


def sums_and_end(written: BinaryIO) -> bytes:
    """The bytes after the Parquet file in a segment; leaves the file at its end."""
    metadata = pq.read_metadata(written)
    sums = list[int]()
    for position in product(range(metadata.num_row_groups), range(metadata.num_columns)):
        chunk = _chunk(metadata, *position)
        written.seek(chunk.start)
        sums.append(google_crc32c.value(written.read(chunk.stop - chunk.start)))
    written.seek(-metadata.serialized_size - 8, os.SEEK_END)  # see `_footer_start`
    footer = written.read()
    behind = np.array(sums, "<u4").tobytes()
    return behind + _END.pack(len(sums), google_crc32c.value(footer + behind))


def _chunk(metadata: pq.FileMetaData, group: int, index: int) -> slice:
    """The byte range of a column in one row group."""
    column = metadata.row_group(group).column(index)
    start = column.dictionary_page_offset or column.data_page_offset
    return slice(start, start + column.total_compressed_size)


def _footer_start(parquet: pa.Buffer) -> int:
    """Offset of a Parquet file's footer; its length and a mark of 4 bytes follow it."""
    return parquet.size - 8 - int.from_bytes(parquet[-8:-4], "little")


def _text(value: str) -> str:
    """SQL of a text."""
    return "'" + value.replace("'", "''") + "'"


def _list(values: Sequence[str]) -> str:
    return f"[{', '.join(map(_text, values))}]"
