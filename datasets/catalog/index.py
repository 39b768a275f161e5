"""The catalog index: a copy of all catalog files in one, for fast queries of a few columns.

It is only a cache: it records name, size and modification time of the files it copied and is used
for those that are unchanged. It is replaced atomically and can be deleted at any time. Times are
only compared for equality, so clocks do not matter.

The file is a Parquet file followed by the CRC32C of all its bytes: the checksums that Parquet has
cover the values, but not the names of the columns and where the values lie.
"""

import json
import os
import struct
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import google_crc32c
import pyarrow as pa
import pyarrow.parquet as pq

from datasets.catalog.catalog import CODED, CommittedFile, coded, stored_type
from datasets.catalog.manifest import Manifest, canonical_json
from datasets.errors import DatasetError
from datasets.files import fsync_path, replace_durably

Stamp = tuple[int, int]
"""Size in bytes, and modification time in ns."""

INDEX_KEY = b"gaitforge_index"
CRC = struct.Struct("<I")
FILES_AT_ONCE = 64
"""Catalog files held in memory while an index is built; also the files of one row group."""

BUILD_THREADS = 2


class CatalogIndex:
    """An open index file; its rows stay the same when another one replaces it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with pa.memory_map(os.fspath(path)) as memory:
            content = memory.read_buffer()
        length = content.size - CRC.size
        if length < 1 or CRC.pack(google_crc32c.value(content[:length])) != content[length:]:
            raise DatasetError(f"the catalog index {path} is damaged; delete it, and it is rebuilt")
        self._file = pq.ParquetFile(pa.BufferReader(content[:length]))
        record = json.loads((self._file.metadata.metadata or {})[INDEX_KEY])
        self.schema: pa.Schema = self._file.schema_arrow.remove_metadata()
        self.stamps: dict[str, Stamp] = {
            stem: (size, modified) for stem, (size, modified) in record["stamps"].items()
        }
        self._manifests: list[dict[str, object]] = record["manifests"]
        self._identity = _identity(path)
        self._lock = threading.Lock()

    @classmethod
    def load(cls, path: Path) -> "CatalogIndex | None":
        """Open an index; None if there is none, or it is damaged."""
        try:
            return cls(path)
        except (OSError, DatasetError):
            return None

    def is_replaced(self) -> bool:
        """Whether another file has the path now."""
        return _identity(self._path) not in (None, self._identity)

    def files(self) -> dict[str, CommittedFile]:
        """Stem -> the copied catalog file."""
        files, first = {}, 0
        for stem, tree in zip(self.stamps, self._manifests, strict=True):
            manifest = Manifest.from_json(tree)
            files[stem] = CommittedFile(stem, manifest, self, first)
            first += manifest.episodes
        return files

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column."""
        with self._lock:
            return self._file.read(columns=[name], use_threads=False).column(0)


def build_index(
    path: Path,
    stamps: Mapping[str, Stamp],
    plain_schema: pa.Schema,
    read: Callable[[str], tuple[Manifest, pa.Table]],
) -> None:
    """Write an index of the catalog files in ``stamps``, ``FILES_AT_ONCE`` in memory at a time.

    ``plain_schema`` has the columns of all files; ``read`` gives a file's commit record and
    episodes. OSError if the folder cannot be written, DatasetError if a file is damaged.
    """
    stems = list(stamps)
    schema = pa.schema([(each.name, stored_type(each.type)) for each in plain_schema])
    text = [each.name for each in schema if each.type == CODED]
    manifests: list[dict[str, object]] = []
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
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
                tables = [schema.empty_table(), *(coded(table) for _, table in group)]
                joined = pa.concat_tables(tables, promote_options="permissive").unify_dictionaries()
                writer.write_table(joined, row_group_size=max(1, joined.num_rows))
            record = {"stamps": stamps, "manifests": manifests}
            writer.add_key_value_metadata({INDEX_KEY: canonical_json(record)})
        with open(temporary, "r+b") as written:
            written.write(CRC.pack(google_crc32c.value(written.read())))
        fsync_path(temporary)
        replace_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
