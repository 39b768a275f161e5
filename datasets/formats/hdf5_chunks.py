"""Reading gzip-compressed HDF5 datasets with decompression outside HDF5's global lock.

HDF5 decompresses under one lock per process, which halves the rate of an import with two threads.
Here only the read of the compressed bytes is under that lock.

HDF5 also inflates a chunk to whatever its bytes give, however small the stated size: a crafted
megabyte takes gigabytes. So a chunk is inflated to its stated size at most, here or before HDF5
reads it.
"""

import zlib
from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

import h5py
import numpy as np

from gaitforge.common.sizes import is_plausible

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
            _place(rows, np.frombuffer(content, dataset.dtype).reshape(chunks), start, first)
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


def _place(rows: np.ndarray, chunk: np.ndarray, start: tuple[int, ...], first: int) -> None:
    """Copy the overlap of a chunk and the wanted rows; the last chunk of an axis exceeds it."""
    top = start[0] - first
    skipped = max(0, -top)
    part = chunk[skipped : len(rows) - top]
    sides = (slice(low, low + size) for low, size in zip(start[1:], chunk.shape[1:], strict=True))
    target = rows[(slice(top + skipped, top + skipped + len(part)), *sides)]
    target[...] = part[(slice(None), *(slice(0, size) for size in target.shape[1:]))]
