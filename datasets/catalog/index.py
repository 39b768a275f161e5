"""The catalog index: a copy of all catalog files in one, for fast queries of a few columns.

It is only a cache: it records name, size and modification time of the files it copied and is used
for those that are unchanged. It is replaced atomically and can be deleted at any time. Times are
only compared for equality, so clocks do not matter.

The file is a Parquet file, the CRC32C of each column chunk in it, and the CRC32C of its footer
and of those: Parquet's own checksums leave out names, places and page headers. A chunk is
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
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError
from gaitforge.common.files import fsync_path, replace_durably, temporary_file
from gaitforge.common.liveness import again_if_stale
from gaitforge.common.sizes import check_parquet
from gaitforge.datasets.catalog.catalog import CODED, CommittedFile, coded, stored_type
from gaitforge.datasets.catalog.manifest import LaterParsed, Manifest, canonical_json

ReadFile = Callable[[str], tuple[Manifest, pa.Table]]
"""Reads the commit record and the episodes of a catalog file."""

Stamp = tuple[int, int]
"""Size in bytes, and modification time in ns."""

PARSED_LATER = ("objects", "arrays")
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
        except _UNREADABLE as error:
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
            except _UNREADABLE as error:
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
