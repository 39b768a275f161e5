"""The catalog index: a copy of all catalog files in one, for fast queries of a few columns.

It is only a cache: it records name, size and modification time of the files it copied and is used
for those that are unchanged. It is replaced atomically and can be deleted at any time. Times are
only compared for equality, so clocks do not matter.

The file is a Parquet file followed by the CRC32C of all its bytes: the checksums that Parquet has
cover the values, but not the names of the columns and where the values lie.
"""

import contextlib
import json
import os
import shutil
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from datasets.catalog.catalog import CODED, CommittedFile, coded, stored_type
from datasets.catalog.manifest import Manifest, canonical_json
from datasets.errors import DatasetError
from datasets.files import fsync_path, replace_durably, temporary_file

Stamp = tuple[int, int]
"""Size in bytes, and modification time in ns."""

ReadFile = Callable[[str], tuple[Manifest, pa.Table]]
"""Gives the commit record and the episodes of a catalog file."""

_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException)
"""What reading wrong content raises."""

INDEX_KEY = b"gaitforge_index"
CRC = struct.Struct("<I")
FILES_AT_ONCE = 64
"""Catalog files held in memory while an index is built; also the files of one row group."""

BUILD_THREADS = 2


class CatalogIndex:
    """An open index file; its rows stay the same when another one replaces it."""

    def __init__(self, path: Path, read: ReadFile | None = None) -> None:
        self._path, self._read = path, read
        self._identity = _identity(path)
        self._lock = threading.Lock()
        self._anew: pa.Table | None = None
        try:
            with pa.memory_map(os.fspath(path)) as memory:
                content = memory.read_buffer()
            length = content.size - CRC.size
            if length < 1 or CRC.pack(google_crc32c.value(content[:length])) != content[length:]:
                raise ValueError("its checksum is not that of its bytes")
            self._file = pq.ParquetFile(pa.BufferReader(content[:length]))
            record = json.loads((self._file.metadata.metadata or {})[INDEX_KEY])
            self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
            self.stamps: dict[str, Stamp] = {
                stem: (size, modified) for stem, (size, modified) in record["stamps"].items()
            }
            manifests = [Manifest.from_json(tree) for tree in record["manifests"]]
            if [each.part_id for each in manifests] != list(self.stamps):
                raise ValueError("its records are not those of its files")
            if sum(each.episodes for each in manifests) != self._file.metadata.num_rows:
                raise ValueError("its rows are not those of its records")
        except (FileNotFoundError, NotADirectoryError):
            raise
        except _UNREADABLE as error:
            raise self._damage(error) from error
        self._manifests = manifests

    @classmethod
    def load(cls, path: Path, read: ReadFile | None = None) -> "CatalogIndex | None":
        """Open an index; None if there is none, or it is damaged.

        Columns that turn out to be damaged are read from the catalog files, by ``read``.
        """
        try:
            return cls(path, read)
        except (OSError, DatasetError):
            return None

    def _damage(self, error: Exception) -> DatasetError:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        return DatasetError(
            f"the catalog index {self._path} is damaged ({reason}); delete it, and it is rebuilt"
        )

    def is_replaced(self) -> bool:
        """Whether another file has the path now."""
        return _identity(self._path) not in (None, self._identity)

    def files(self) -> dict[str, CommittedFile]:
        """Stem -> the copied catalog file."""
        files, first = {}, 0
        for stem, manifest in zip(self.stamps, self._manifests, strict=True):
            files[stem] = CommittedFile(stem, manifest, self, first)
            first += manifest.episodes
        return files

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column."""
        with self._lock:
            rows = self._anew
            if rows is None:
                try:
                    return self._file.read(columns=[name], use_threads=False).column(0)
                except _UNREADABLE as error:
                    if self._read is None:
                        raise self._damage(error) from error
                    with contextlib.suppress(OSError):
                        self._path.unlink()  # the next reader rebuilds it
                    rows = _joined([self._read(stem)[1] for stem in self.stamps], self.schema)
                    self._anew = rows
            return rows.column(name)


def build_index(
    path: Path,
    stamps: Mapping[str, Stamp],
    plain_schema: pa.Schema,
    read: ReadFile,
) -> None:
    """Write an index of the catalog files in ``stamps``, ``FILES_AT_ONCE`` in memory at a time.

    ``plain_schema`` has the columns of all files; ``read`` gives a file's commit record and
    episodes. OSError if the folder cannot be written, DatasetError if a file is damaged.
    """
    stems = list(stamps)
    schema = pa.schema([(each.name, stored_type(each.type)) for each in plain_schema])
    text = [each.name for each in schema if each.type == CODED]
    manifests: list[dict[str, object]] = []
    with temporary_file(path) as temporary:
        with (
            pq.ParquetWriter(
                temporary,
                schema,
                compression="lz4",
                use_dictionary=text,  # pyright: ignore[reportArgumentType] (the stub knows no list)
            ) as writer,
            ThreadPoolExecutor(BUILD_THREADS) as threads,
        ):
            for first in range(0, len(stems), FILES_AT_ONCE):
                group = list(threads.map(read, stems[first : first + FILES_AT_ONCE]))
                manifests += [manifest.to_json() for manifest, _ in group]
                rows = _joined([table for _, table in group], schema)
                writer.write_table(rows, row_group_size=max(1, rows.num_rows))
            record = {"stamps": stamps, "manifests": manifests}
            writer.add_key_value_metadata({INDEX_KEY: canonical_json(record)})
        with open(temporary, "r+b") as written:
            written.write(CRC.pack(google_crc32c.value(written.read())))
        fsync_path(temporary)
        if path.is_dir():  # the folder is a cache: nothing in it is kept
            shutil.rmtree(path)
        replace_durably(temporary, path)


def _joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    """The tables end to end with the columns of ``schema``, text coded."""
    coded_tables = [schema.empty_table(), *map(coded, tables)]
    return pa.concat_tables(coded_tables, promote_options="permissive").unify_dictionaries()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
