"""The catalog's index: catalog files copied into few large files, for queries of a few columns.

The index is a set of segments. A segment has the rows of some catalog files, and of each its name,
size, modification time and commit record. It is used for the files that are unchanged. Times are
only compared for equality, so clocks do not matter. New parts get a new segment, with which small
ones are merged. Segments never change: they appear and are removed as a whole, and all of them can
be deleted at any time.

A segment is blocks of rows, each of which has a chunk for each of its columns: an Arrow stream of
one array. Its record says where the chunks are, and has their CRC32Cs. A chunk is checked when it
is read, because reading all of a large segment takes longer than a query.
"""

import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c
import pyarrow as pa

from gaitforge.common.errors import DatasetError, failures
from gaitforge.common.files import fsync_path, replace_durably, temporary_file
from gaitforge.common.locks import again_if_stale
from gaitforge.datasets.catalog.catalog import (
    PART_ID,
    CommittedFile,
    LaterParsed,
    Manifest,
    Source,
    canonical_json,
    common_schema,
)

Stamp = tuple[int, int]
"""Size in bytes, and modification time in ns."""

ReadColumns = Callable[[str, Stamp, list[str]], pa.Table]
"""Reads some columns, those that it has, of a catalog file that has the stamp."""

SUFFIX = ".index"

BLOCK_ROWS = 1 << 16
"""Rows after which a block ends; those of one are in memory when it is written."""

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

_KEY = b"gaitforge_index"
_END = struct.Struct("<QI")
"""Length and CRC32C of the record, an Arrow schema with metadata, that is before it."""


class PartFiles:
    """The rows of catalog files, of which columns are read when they are used; `held` has some."""

    def __init__(
        self,
        stamps: Mapping[str, Stamp],
        manifests: Mapping[str, Manifest],
        schema: pa.Schema,
        read: ReadColumns,
        held: Sequence[pa.Table] = (),
    ) -> None:
        self.schema = schema
        self._held = _joined(held)
        self.files = _committed(manifests, self)
        self._stamps = stamps
        self._read = read

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column; DatasetError if a file is absent, changed or damaged."""
        if name in self._held.column_names:
            return self._held[name]
        tables = (self._read(stem, stamp, [name]) for stem, stamp in self._stamps.items())
        return _joined(tables, [self.schema.field(name)]).column(0)


class Segment:
    """An open file of the index; its rows stay the same when the file is removed."""

    def __init__(self, path: Path, read: ReadColumns) -> None:
        self.path = path
        self._read = read
        self.damage = f"the catalog index {path} is damaged; delete it, and it is rebuilt"
        try:
            again_if_stale(path, self._open)
        except (FileNotFoundError, NotADirectoryError):
            raise
        except _UNREADABLE as error:
            raise DatasetError(self.damage) from error

    def _open(self) -> None:
        self._file = pa.OSFile(str(self.path))
        end = self._file.size() - _END.size
        length, crc = _END.unpack(self._file.read_at(_END.size, max(0, end)))
        content = self._file.read_at(length, end - length) if length < end else b""
        if google_crc32c.value(content) != crc:
            raise ValueError("its end has another checksum")
        schema = pa.ipc.read_schema(pa.py_buffer(content))
        record = json.loads((schema.metadata or {})[_KEY])
        self.schema: pa.Schema = schema.remove_metadata()
        self._blocks: list[dict[str, tuple[int, int, int]]] = record["blocks"]
        self._rows: list[int] = record["rows"]
        self.stamps: dict[str, Stamp] = {
            stem: (size, modified) for stem, (size, modified) in record["stamps"].items()
        }
        manifests = map(_recorded, record["manifests"])
        self.files = _committed(dict(zip(self.stamps, manifests, strict=True)), self)

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column; from the catalog files if the segment's are damaged."""
        try:
            chunks = [self._chunk(number, name) for number in range(len(self._blocks))]
        except DatasetError:
            with suppress(OSError):
                self.path.unlink()  # so that it is written again
            manifests = {stem: file.manifest for stem, file in self.files.items()}
            return PartFiles(self.stamps, manifests, self.schema, self._read).column(name)
        return pa.chunked_array(chunks, self.schema.field(name).type)

    def _chunk(self, number: int, name: str) -> pa.Array:
        """The values of one column in a block; DatasetError if they are damaged."""
        kind = self.schema.field(name).type
        rows = self._rows[number]
        if name not in self._blocks[number]:
            return pa.nulls(rows, kind)
        start, length, crc = self._blocks[number][name]
        try:
            content = self._file.read_at(length, start)
            if google_crc32c.value(content) != crc:
                raise ValueError("its bytes have another checksum")
            options = pa.ipc.IpcReadOptions(use_threads=False)
            [batch] = pa.ipc.open_stream(pa.py_buffer(content), options=options)
            values = batch.column(0)
            values.validate(full=True)  # a checksum alone does not keep numbers inside
            if len(values) != rows:
                raise ValueError("it has other rows")
            return values if values.type == kind else values.cast(kind)
        except _UNREADABLE as error:
            raise DatasetError(self.damage) from error

    def rows_of_files(self) -> Iterator[tuple[CommittedFile, pa.Table]]:
        """Each catalog file and its rows here, a block at once; DatasetError if damaged."""
        files = iter(self.files.values())
        for number, rows in enumerate(self._rows):
            chunks = [self._chunk(number, name) for name in self.schema.names]
            block = pa.Table.from_arrays(chunks, schema=self.schema)
            first = 0
            while first < rows:
                file = next(files)
                yield file, block.slice(first, file.manifest.episodes)
                first += file.manifest.episodes


def write_segment(
    path: Path, stamps: Mapping[str, Stamp], rows: Iterable[tuple[Manifest, pa.Table]]
) -> None:
    """Write a segment of catalog files, whose tables have text coded; OSError if that fails."""
    manifests: list[dict[str, object]] = []
    sizes: list[int] = []
    blocks: list[dict[str, tuple[int, int, int]]] = []
    schemas: dict[pa.Schema, None] = {}
    with temporary_file(path) as temporary:
        with open(temporary, "wb") as written:
            for records, block in _blocks(rows):
                for tree in (manifest.to_json() for manifest in records):
                    later = {name: json.dumps(tree[name]) for name in _PARSED_LATER}
                    manifests.append(tree | later)
                sizes.append(block.num_rows)
                schemas[block.schema] = None
                columns = zip(block.column_names, block.columns, strict=True)
                blocks.append({name: _write_chunk(written, values) for name, values in columns})
            names = ("stamps", "manifests", "rows", "blocks")
            record = dict(zip(names, (stamps, manifests, sizes, blocks), strict=True))
            schema = common_schema(schemas).with_metadata({_KEY: canonical_json(record)})
            content = schema.serialize()
            written.write(content)
            written.write(_END.pack(content.size, google_crc32c.value(content)))
        fsync_path(temporary)
        replace_durably(temporary, path)


def _blocks(
    rows: Iterable[tuple[Manifest, pa.Table]],
) -> Iterator[tuple[list[Manifest], pa.Table]]:
    """Whole files of some `BLOCK_ROWS` rows, and their rows; a text has one dictionary."""
    manifests: list[Manifest] = []
    tables: list[pa.Table] = []
    for manifest, table in rows:
        manifests.append(manifest)
        tables.append(table)
        if sum(manifest.episodes for manifest in manifests) >= BLOCK_ROWS:
            yield manifests, _joined(tables)
            manifests, tables = [], []
    if tables:
        yield manifests, _joined(tables)


def _joined(tables: Iterable[pa.Table], fields: Sequence[pa.Field] = ()) -> pa.Table:
    """The rows of all tables, a text with one dictionary; DatasetError if types disagree."""
    with failures("the parts' catalog columns do not agree", pa.ArrowException):
        empty = pa.schema(fields).empty_table()
        joined = pa.concat_tables([empty, *tables], promote_options="permissive")
        return joined.unify_dictionaries()


def _write_chunk(written: BinaryIO, column: pa.ChunkedArray) -> tuple[int, int, int]:
    """Write one array; offset, bytes and CRC32C of what was written."""
    schema = pa.schema([("", column.type)])
    out = pa.BufferOutputStream()
    with pa.ipc.new_stream(out, schema) as stream:
        stream.write_batch(pa.record_batch([column.combine_chunks()], schema=schema))
    content = out.getvalue()
    start = written.tell()
    written.write(content)
    return start, content.size, google_crc32c.value(content)


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


def segment_path(folder: Path, stamps: Mapping[str, Stamp]) -> Path:
    """The path of the segment of catalog files: the same whoever writes it."""
    return folder / f"{hashlib.sha256(canonical_json(stamps)).hexdigest()[:16]}{SUFFIX}"


def segment_paths(folder: Path) -> list[Path]:
    """The index's files in order of their names, also those of earlier versions."""
    with suppress(OSError):  # a cache that cannot be read is none
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(SUFFIX))
    return []


def stamp_of(path: Path | str) -> Stamp:
    """Size and time of a file."""
    status = again_if_stale(path, lambda: os.stat(path))
    return status.st_size, status.st_mtime_ns
