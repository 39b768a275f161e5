"""HDF5 for readers and writers: opening, checked reading, gzip chunks, and notes in a group.

The notes are the schema as JSON and the catalog as an Arrow stream.

Gzip-compressed HDF5 datasets are read with decompression outside HDF5's global lock. HDF5
decompresses under one lock per process, which halves the rate of an import with two threads. Here
only the read of the compressed bytes is under that lock.

HDF5 also inflates a chunk to whatever its bytes give, however small the stated size: a crafted
megabyte takes gigabytes. So a chunk is inflated to its stated size at most, here or before HDF5
reads it.

Foreign Arrow streams are checked for compression: gaitforge writes them without. A compressed
buffer may state any size, and a few bytes then take gigabytes. pyarrow does not tell whether a
batch is compressed, so the flatbuffer of each message is read here, as in
https://arrow.apache.org/docs/format/Columnar.html and Message.fbs of the same project.
"""

import json
import struct
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from itertools import combinations, product
from math import prod
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
from h5py import h5d, h5l, h5o  # pyright: ignore[reportAttributeAccessIssue] (compiled)

from gaitforge.common.errors import failures
from gaitforge.common.limits import is_plausible
from gaitforge.common.locks import has_locks
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.protocol import Importer
from gaitforge.datasets.formats.sources import stored_dtype
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import EpisodeSelection, final_of

# Chunks of gzip-compressed datasets.
_DEFLATE = h5py.h5z.FILTER_DEFLATE
_SHUFFLE = h5py.h5z.FILTER_SHUFFLE
_FLETCHER32 = h5py.h5z.FILTER_FLETCHER32
_KNOWN = ([_DEFLATE], [_SHUFFLE, _DEFLATE])
_FILTERS = (_DEFLATE, _SHUFFLE, _FLETCHER32, h5py.h5z.FILTER_SZIP, h5py.h5z.FILTER_LZF)
"""Filters that cannot make more of a chunk than it states, or whose chunks are checked here."""
_COUNTING = (h5py.h5z.FILTER_NBIT, h5py.h5z.FILTER_SCALEOFFSET)
"""Filters whose third setting is the number of values that they make."""
_ALL_FILTERS_USED = 0
_OVERHEAD_BYTES = 64
"""Most bytes that filters before gzip add to a chunk."""

MOST_CHUNK_BYTES = 1 << 28
"""Most bytes of a chunk of a smaller dataset."""


class ImplausibleSizeError(ValueError):
    """A dataset's stated sizes are not those of its bytes."""


def check_sizes(dataset: h5py.h5d.DatasetID) -> None:
    """ImplausibleSizeError for filters or stated sizes that no honest writer gives a dataset."""
    settings = dataset.get_create_plist()
    filters = _filters(settings)
    unknown = [code for code in filters if code not in _FILTERS + _COUNTING]
    behind = filters[filters.index(_DEFLATE) + 1 :] if _DEFLATE in filters else []
    if unknown or len(set(filters)) != len(filters) or set(behind) - {_FLETCHER32}:
        raise ImplausibleSizeError(f"it has the filters {filters}; store it with gzip alone")
    item_bytes = dataset.get_type().get_size()
    stated = dataset.get_space().get_simple_extent_npoints() * item_bytes
    if settings.get_layout() == h5py.h5d.CHUNKED:
        chunk_bytes = prod(settings.get_chunk()) * item_bytes
        for index, code in enumerate(filters):
            values = settings.get_filter(index)[2]
            if code in _COUNTING and values[2] != prod(settings.get_chunk()):
                raise ImplausibleSizeError("its filters are of chunks of another size")
        if chunk_bytes > max(MOST_CHUNK_BYTES, stated):
            raise ImplausibleSizeError(f"its chunks are of {chunk_bytes:,} bytes")


def check_held(dataset: h5py.h5d.DatasetID) -> None:
    """ImplausibleSizeError for a dataset that states far more bytes than it holds."""
    stated = dataset.get_space().get_simple_extent_npoints() * dataset.get_type().get_size()
    if not is_plausible(stated, 0):
        held = dataset.get_storage_size()
        if not is_plausible(stated, held):
            raise ImplausibleSizeError(f"it states {stated:,} bytes and holds {held:,}")


def read_range(dataset: h5py.Dataset, first: int, stop: int) -> np.ndarray:
    """Rows of a dataset; ImplausibleSizeError if it or a chunk is not as large as it states."""
    check_held(dataset.id)
    rows = inflated_rows(dataset, first, stop)
    if rows is not None:
        return rows
    check_chunks(dataset, first, stop)
    return dataset[first:stop]


def read_whole(dataset: h5py.Dataset) -> Any:
    """All values of a dataset, as `read_range`; a scalar is one value."""
    check_held(dataset.id)
    if not dataset.shape:
        return dataset[()]
    check_chunks(dataset, 0, len(dataset))
    return dataset[()]


def inflated_rows(dataset: h5py.Dataset, first: int, stop: int) -> np.ndarray | None:
    """Rows of a dataset; None where HDF5 itself has to read it.

    Handles gzip with or without byte shuffle, if all chunks exist. ImplausibleSizeError as
    `read_range`.
    """
    chunks = dataset.chunks
    filters = _filters(dataset.id.get_create_plist())
    if filters not in _KNOWN or chunks is None:
        return None
    rows = np.empty((stop - first, *dataset.shape[1:]), dataset.dtype)
    try:
        for start in _chunk_starts(dataset, first, stop):
            used, packed = dataset.id.read_direct_chunk(start)
            if used != _ALL_FILTERS_USED:
                return None
            content: Any = _inflated(packed, prod(chunks) * dataset.dtype.itemsize)
            if _SHUFFLE in filters:
                planes = np.frombuffer(content, np.uint8).reshape(dataset.dtype.itemsize, -1)
                content = np.ascontiguousarray(planes.T)
            _copy_chunk(rows, np.frombuffer(content, dataset.dtype).reshape(chunks), start, first)
    except ImplausibleSizeError:
        raise
    except (OSError, RuntimeError, ValueError, zlib.error):
        return None  # missing or damaged: HDF5 fills it in, or says what is wrong
    return rows


def _filters(settings: Any) -> list[int]:
    return [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]


def _chunk_starts(dataset: h5py.Dataset, first: int, stop: int) -> Iterator[tuple[int, ...]]:
    """The first index of each chunk that has some of the rows."""
    chunks: tuple[int, ...] = dataset.chunks or ()
    heights = range(first // chunks[0] * chunks[0], stop, chunks[0])
    across = map(range, [0] * (len(chunks) - 1), dataset.shape[1:], chunks[1:])
    return product(heights, *across)


def _inflated(packed: bytes, size: int) -> bytes:
    """A chunk's bytes, at most its stated `size`; ImplausibleSizeError if there are more."""
    content = zlib.decompressobj().decompress(packed, size + 1)
    if len(content) > size:
        raise ImplausibleSizeError(f"a chunk holds more than the {size:,} bytes that it states")
    return content


def check_chunks(dataset: h5py.Dataset, first: int, stop: int) -> None:
    """ImplausibleSizeError if HDF5 would inflate a chunk of the rows beyond its stated size."""
    filters = _filters(dataset.id.get_create_plist())
    chunks = dataset.chunks
    if chunks is None or _DEFLATE not in filters:
        return
    skipped = 1 << filters.index(_DEFLATE)
    size = prod(chunks) * dataset.dtype.itemsize + _OVERHEAD_BYTES
    for start in _chunk_starts(dataset, first, stop):
        try:
            used, packed = dataset.id.read_direct_chunk(start)
        except (OSError, RuntimeError, ValueError):
            continue  # missing or damaged: HDF5 fills it in, or says what is wrong
        if not used & skipped:
            try:
                _inflated(packed, size)
            except zlib.error:
                continue


def _copy_chunk(rows: np.ndarray, chunk: np.ndarray, start: tuple[int, ...], first: int) -> None:
    """Copy the overlap of a chunk and the wanted rows; the last chunk of an axis exceeds it."""
    top = start[0] - first
    skipped = max(0, -top)
    part = chunk[skipped : len(rows) - top]
    sides = (slice(low, low + size) for low, size in zip(start[1:], chunk.shape[1:], strict=True))
    target = rows[(slice(top + skipped, top + skipped + len(part)), *sides)]
    target[...] = part[(slice(None), *(slice(0, size) for size in target.shape[1:]))]


# The check of foreign Arrow streams.
_DICTIONARY_BATCH = 2
_RECORD_BATCH = 3
"""Kinds of a message's header that hold buffers."""
_KIND = 1
_HEADER = 2
"""Places of fields in the table Message."""
_DATA = 1
"""Place of the record batch in the table DictionaryBatch."""
_COMPRESSION = 3
"""Place of a field in the table RecordBatch."""


def check_uncompressed(stream: pa.Buffer) -> None:
    """ValueError for a stream with compressed batches."""
    for message in pa.ipc.MessageReader.open_stream(stream):
        try:
            is_compressed = _is_compressed(message.metadata.to_pybytes())
        except (struct.error, IndexError):
            raise ValueError("a message of the Arrow stream is damaged") from None
        if is_compressed:
            raise ValueError("the Arrow stream is compressed; write it without compression")


def _is_compressed(flatbuffer: bytes) -> bool:
    message = _following(flatbuffer, 0)
    kind = _field_position(flatbuffer, message, _KIND)
    header = _field_position(flatbuffer, message, _HEADER)
    if not kind or not header:
        return False
    batch = _following(flatbuffer, header)
    if flatbuffer[kind] == _DICTIONARY_BATCH:
        data = _field_position(flatbuffer, batch, _DATA)
        return bool(
            data and _field_position(flatbuffer, _following(flatbuffer, data), _COMPRESSION)
        )
    return flatbuffer[kind] == _RECORD_BATCH and bool(
        _field_position(flatbuffer, batch, _COMPRESSION)
    )


def _following(flatbuffer: bytes, at: int) -> int:
    """Where the table lies whose distance is stored at a place."""
    [distance] = struct.unpack_from("<I", flatbuffer, at)
    return at + distance


def _field_position(flatbuffer: bytes, table: int, field: int) -> int:
    """Where a table's field lies; 0 if the table has none."""
    [back] = struct.unpack_from("<i", flatbuffer, table)
    description = table - back  # two sizes of two bytes, then the fields' distances
    [size] = struct.unpack_from("<H", flatbuffer, description)
    entry = 4 + 2 * field
    if entry + 2 > size:
        return 0
    [distance] = struct.unpack_from("<H", flatbuffer, description + entry)
    return table + distance if distance else 0


# Opening, checked reading, and notes.
SCHEMA_NOTE = "schema"
EPISODES_NOTE = "episodes"

_LINKS = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "an external link"}


def open_hdf5(path: Path) -> h5py.File:
    """Open a file for reading; refuses one whose links or arrays can lead to other files.

    Otherwise an untrusted file could put other files of this machine into an import.
    """
    if not path.is_file():
        sources.refuse(path, "", "is a folder; give a file" if path.is_dir() else "no such file")
    status = path.stat()
    _check_own_data(path, (status.st_ino, status.st_ctime_ns, status.st_size))
    try:
        return _open(path)
    except OSError as error:
        sources.refuse_unreadable(path, "HDF5", error)


def top_names(path: Path) -> list[str]:
    """Names in the root of an HDF5 file; none if it cannot be read. No link is followed."""
    if not path.is_file() or not h5py.is_hdf5(path):
        return []
    try:
        with _open(path) as file:
            return list(file)
    except (OSError, RuntimeError):
        return []


def _open(path: Path) -> h5py.File:
    """Open a file, with HDF5's own lock against writers where the file system has locks."""
    # None is HDF5's default. It would end, or wait for ever, where there are none.
    locking = None if has_locks(path) else False
    return h5py.File(path, "r", locking=locking)


@cache  # MoCapAct's files are opened again for every part
def _check_own_data(path: Path, stamp: tuple[int, ...]) -> None:
    """Refuse all links but hard ones, virtual datasets and external storage.

    Low level: h5py's other calls take several times as long, and a file may have 10^6 objects.
    """
    names: list[bytes] = []

    def kind_of_link(name: bytes, link: h5l.LinkInfo) -> str | None:
        names.append(name)  # opened later: h5py takes no exception in here
        return None if link.type == h5l.TYPE_HARD else _LINKS.get(link.type, "a user-defined link")

    def kind_of_array(name: bytes) -> str | None:
        item = h5o.open(file.id, name)
        if not isinstance(item, h5d.DatasetID):
            return None
        settings = item.get_create_plist()
        if settings.get_layout() == h5d.VIRTUAL:
            return "a virtual dataset"
        if settings.get_external_count():
            return "a dataset in external files"
        try:
            check_sizes(item)
        except ImplausibleSizeError as error:
            sources.refuse(path, name.decode(errors="replace"), str(error))
        return None

    try:
        file = _open(path)
    except OSError as error:
        sources.refuse_unreadable(path, "HDF5", error)
    with file, sources.damage_named(path):
        kind = file.id.links.visit(kind_of_link, info=True)
        kinds = [(names[-1], kind)] if kind else ((name, kind_of_array(name)) for name in names)
        for name, kind in kinds:
            if kind:
                problem = f"is {kind}, which can lead to other files"
                key = name.decode(errors="replace")
                sources.refuse(path, key, f"{problem}; store the data itself under this key")


def datasets_of(group: h5py.Group) -> dict[str, h5py.Dataset]:
    """Path below the group -> dataset, sorted."""
    datasets: dict[str, h5py.Dataset] = {}

    def visit(name: str, item: h5py.HLObject) -> None:
        if isinstance(item, h5py.Dataset):
            datasets[name] = item

    group.visititems(visit)
    return dict(sorted(datasets.items()))


def dataset_at(group: h5py.Group, key: str) -> h5py.Dataset:
    """The dataset at a key; KeyError where there is none."""
    item = group[key]
    if not isinstance(item, h5py.Dataset):
        raise KeyError(f"{key} is not a dataset")
    return item


def check_readable(group: h5py.Group) -> None:
    """ImplausibleSizeError for arrays of a group that are not as large as they state.

    For a group that another library reads.
    """
    for dataset in datasets_of(group).values():
        check_held(dataset.id)
        if dataset.shape:
            check_chunks(dataset, 0, len(dataset))


def read_rows(path: Path, dataset: h5py.Dataset, key: str, first: int, stop: int) -> np.ndarray:
    """Rows of a numeric dataset in a dtype of the store."""
    with sources.damage_named(path, key, f"rows {first} to {stop - 1} cannot be read"):
        rows = read_range(dataset, first, stop)
    rows = np.ascontiguousarray(rows, stored_dtype(rows.dtype))
    sources.check_finite(path, key, rows, first)
    return rows


class Hdf5Importer(Importer):
    """Reads one file, which stays open; `_open` sets what the base class names."""

    def __init__(self, source: str, options: Any) -> None:
        self._path = Path(source)
        self._options = options
        self._file = open_hdf5(self._path)
        with ExitStack() as undo, sources.damage_named(self._path):
            undo.callback(self._file.close)
            self._open()
            undo.pop_all()

    @abstractmethod
    def _open(self) -> None: ...

    def close(self) -> None:
        """See `protocol.Importer`."""
        self._file.close()


def unlike_following(following: np.ndarray, obs: np.ndarray) -> np.ndarray:
    """(T - 1,) whether the observation after a row's step, (T, *shape), is not the next row's."""
    bits = f"u{obs.itemsize}"
    differ = following[:-1].view(bits) != obs[1:].view(bits)
    return differ.any(axis=tuple(range(1, differ.ndim)))


def next_holds_final(schema: Schema, name: str) -> bool:
    """Whether an array of next observations holds `final_obs`: they are alike, and `name` is free.

    `name` is the field's that would have the array's key.
    """
    if "final_obs" not in schema.names("episode") or name in schema.names():
        return False
    return final_of(schema, "final_obs") is not None


def keys_clash(keys: list[str]) -> bool:
    """Whether two keys are the same, or one is the group that another is in."""
    return any(f"{b}/".startswith(f"{a}/") for a, b in combinations(sorted(keys), 2))


def packing(compression: str) -> str | None:
    """h5py's name of a compression."""
    return None if compression == "none" else compression


def write_notes(group: h5py.Group, selection: EpisodeSelection) -> None:
    """Store a selection's schema and catalog rows in an empty group."""
    table = selection.episodes().drop_columns(["part", "start"])
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    group.attrs["about"] = "schema: JSON; episodes: an Arrow IPC stream, a row an episode"
    group.create_dataset(SCHEMA_NOTE, data=json.dumps(selection.schema.to_json()))
    group.create_dataset(EPISODES_NOTE, data=np.frombuffer(sink.getvalue(), np.uint8))


def read_notes(path: Path, group: h5py.Group) -> tuple[Schema, pa.Table]:
    """The schema and the catalog rows that `write_notes` stored."""
    kinds = KeyError, ValueError, TypeError, OSError, pa.ArrowException
    with failures(f"{path}: {group.name}: gaitforge's notes are damaged", *kinds):
        schema = Schema.from_json(json.loads(read_whole(dataset_at(group, SCHEMA_NOTE))))
        stream = pa.py_buffer(read_whole(dataset_at(group, EPISODES_NOTE)).tobytes())
        check_uncompressed(stream)
        with pa.ipc.open_stream(stream) as reader:
            table = reader.read_all()
        table.validate(full=True)  # damaged offsets may point outside the buffers
        return schema, table
