"""Reading gzip-compressed HDF5 datasets with decompression outside HDF5's global lock.

HDF5 decompresses under one lock per process, which halves the rate of an import with two threads.
Here only the read of the compressed bytes is under that lock.
"""

import zlib
from itertools import product
from typing import Any

import h5py
import numpy as np

_DEFLATE, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
_KNOWN = ([_DEFLATE], [_SHUFFLE, _DEFLATE])
_ALL_FILTERS_USED = 0


def inflated_rows(dataset: h5py.Dataset, first: int, stop: int) -> np.ndarray | None:
    """Rows of a dataset; None where HDF5 itself has to read it.

    Handles gzip with or without byte shuffle, if all chunks exist.
    """
    settings, chunks = dataset.id.get_create_plist(), dataset.chunks
    filters = [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]
    if filters not in _KNOWN or chunks is None:
        return None
    rows = np.empty((stop - first, *dataset.shape[1:]), dataset.dtype)
    heights = range(first // chunks[0] * chunks[0], stop, chunks[0])
    across = map(range, [0] * (len(chunks) - 1), dataset.shape[1:], chunks[1:])
    try:
        for start in product(heights, *across):
            used, packed = dataset.id.read_direct_chunk(start)
            if used != _ALL_FILTERS_USED:
                return None
            content: Any = zlib.decompress(packed)
            if _SHUFFLE in filters:
                planes = np.frombuffer(content, np.uint8).reshape(dataset.dtype.itemsize, -1)
                content = np.ascontiguousarray(planes.T)
            _place(rows, np.frombuffer(content, dataset.dtype).reshape(chunks), start, first)
    except (OSError, RuntimeError, ValueError, zlib.error):
        return None  # missing or damaged: HDF5 fills it in, or says what is wrong
    return rows


def _place(rows: np.ndarray, chunk: np.ndarray, start: tuple[int, ...], first: int) -> None:
    """Copy the overlap of a chunk and the wanted rows; the last chunk of an axis exceeds it."""
    top = start[0] - first
    skipped = max(0, -top)
    part = chunk[skipped : len(rows) - top]
    sides = (slice(low, low + size) for low, size in zip(start[1:], chunk.shape[1:], strict=True))
    target = rows[(slice(top + skipped, top + skipped + len(part)), *sides)]
    target[...] = part[(slice(None), *(slice(0, size) for size in target.shape[1:]))]
