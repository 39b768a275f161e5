"""Chunks of a compressed HDF5 dataset, inflated by the thread that asks.

HDF5 inflates under one lock for the whole process, which is what an import of gzip-compressed files
would then wait for: half as many bytes a second on two cores. Here only the read of the compressed
bytes is under that lock.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from itertools import product
from typing import Any

import h5py
import numpy as np

_DEFLATE, _SHUFFLE = h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE
_KNOWN = ([_DEFLATE], [_SHUFFLE, _DEFLATE])
_ALL_FILTERS_USED = 0


def inflated_rows(dataset: h5py.Dataset, first: int, stop: int) -> np.ndarray | None:
    """Rows of a dataset, or None where HDF5 itself has to read it.

    That is so unless all its chunks are there, compressed with gzip and perhaps byte-shuffled.
    """
    filters, chunks = _filters(dataset), dataset.chunks
    if filters not in _KNOWN or chunks is None:
        return None
    rows = np.empty((stop - first, *dataset.shape[1:]), dataset.dtype)
    try:
        for start in _chunk_starts(dataset.shape, chunks, first, stop):
            used, packed = dataset.id.read_direct_chunk(start)
            if used != _ALL_FILTERS_USED:
                return None
            content: Any = zlib.decompress(packed)
            if _SHUFFLE in filters:
                planes = np.frombuffer(content, np.uint8).reshape(dataset.dtype.itemsize, -1)
                content = np.ascontiguousarray(planes.T)
            chunk = np.frombuffer(content, dataset.dtype).reshape(chunks)
            _place(rows, chunk, start, first)
    except (OSError, RuntimeError, ValueError, zlib.error):
        return None  # absent or damaged: HDF5 fills it in, or says what is wrong
    return rows


def _filters(dataset: h5py.Dataset) -> list[int]:
    settings = dataset.id.get_create_plist()
    return [settings.get_filter(i)[0] for i in range(settings.get_nfilters())]


def _chunk_starts(
    shape: tuple[int, ...], chunks: tuple[int, ...], first: int, stop: int
) -> Iterator[tuple[int, ...]]:
    height = chunks[0]
    across = (range(0, size, step) for size, step in zip(shape[1:], chunks[1:], strict=True))
    return product(range(first // height * height, stop, height), *across)


def _place(rows: np.ndarray, chunk: np.ndarray, start: tuple[int, ...], first: int) -> None:
    """Copy what a chunk and the wanted rows share; the last chunk of an axis reaches beyond it."""
    top = start[0] - first
    skipped = max(0, -top)
    part = chunk[skipped : len(rows) - top]
    where = slice(top + skipped, top + skipped + len(part))
    sides = tuple(
        slice(low, low + size) for low, size in zip(start[1:], chunk.shape[1:], strict=True)
    )
    target = rows[(where, *sides)]
    target[...] = part[(slice(None), *(slice(0, size) for size in target.shape[1:]))]
