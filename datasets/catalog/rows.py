"""Rows of tables: Arrow columns as NumPy arrays, records as dicts, and results as a Parquet file.

Arrow columns go to NumPy and back through their buffers. Arrow's own conversions import pandas if
it is installed, which takes longer than a whole query.

Rows of a result are dicts, made when they are read: a list of millions takes gigabytes.

Query results can be written as a Parquet file.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import disk_failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.datasets.layout import check_outside_stores

_DTYPES = {pa.from_numpy_dtype(kind): np.dtype(kind) for kind in "bhilBHILfd"}
"""Arrow type of numbers -> NumPy's."""


def to_numpy(column: pa.ChunkedArray, rows: np.ndarray | None = None) -> np.ndarray:
    """Values of a column of numbers or bools; ValueError if some are missing.

    rows: ascending rows (K,) of which values are wanted; None for all.
    """
    if column.null_count:
        raise ValueError("the column has missing values")
    values = [array_to_numpy(chunk) for chunk in column.chunks]
    if rows is not None:  # of each chunk: to join all of them takes longer than a query
        ends = np.cumsum([0, *map(len, values)])
        bounds = np.searchsorted(rows, ends)
        spans = zip(values, ends[:-1], bounds[:-1], bounds[1:], strict=True)
        values = [chunk[rows[low:high] - first] for chunk, first, low, high in spans]
    return np.concatenate(values) if values else np.zeros(0, _DTYPES.get(column.type, np.bool_))


def array_to_numpy(array: pa.Array) -> np.ndarray:
    """Values of an array of numbers or bools; anything where a value is missing."""
    buffer = array.buffers()[1]
    if buffer is None:
        return np.zeros(0, _DTYPES.get(array.type, np.bool_))
    start = array.offset
    stop = array.offset + len(array)
    if pa.types.is_boolean(array.type):
        return _bits(buffer, start, stop)
    return np.frombuffer(buffer, _DTYPES[array.type])[start:stop]


def valid_rows(array: pa.Array) -> np.ndarray:
    """(rows,) bool: where an array has a value."""
    buffer = array.buffers()[0]
    if buffer is None or not array.null_count:
        return np.ones(len(array), bool)
    return _bits(buffer, array.offset, array.offset + len(array))


def _bits(buffer: pa.Buffer, start: int, stop: int) -> np.ndarray:
    bits = np.frombuffer(buffer, np.uint8)
    return np.unpackbits(bits, count=stop, bitorder="little")[start:].astype(bool)


def from_numpy(values: np.ndarray) -> pa.Array:
    """An int64 Arrow array that shares the values of an int64 NumPy array."""
    return pa.Array.from_buffers(pa.int64(), len(values), [None, pa.py_buffer(values)])


Record = dict[str, Any]
ROWS_AT_ONCE = 1 << 14


class Records(Sequence[Record]):
    """`count` rows; `make(first, stop)` makes some of them."""

    def __init__(self, count: int, make: Callable[[int, int], list[Record]]) -> None:
        self._count = count
        self._make = make

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> list[Record]: ...
    def __getitem__(self, index: int | slice) -> Record | list[Record]:
        if isinstance(index, slice):
            first, stop, step = index.indices(self._count)
            return self._make(first, max(first, stop))[::step] if step > 0 else list(self)[index]
        position = range(self._count)[index]
        return self._make(position, position + 1)[0]

    def __iter__(self) -> Iterator[Record]:
        for chunk in self.chunks():
            yield from chunk

    def chunks(self) -> Iterator[list[Record]]:
        """The rows in order, some thousands at a time."""
        for first in range(0, self._count, ROWS_AT_ONCE):
            yield self._make(first, min(first + ROWS_AT_ONCE, self._count))


def write_parquet(
    rows: Sequence[Mapping[str, object]] | pa.Table, path: str | os.PathLike[str]
) -> None:
    """Write groups (`describe`, `query`) or episodes (`Selection.episodes`) atomically.

    Without groups, the file has no columns. DatasetError if it cannot be written.
    """
    table = rows if isinstance(rows, pa.Table) else _table(rows)
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    with disk_failures(f"cannot write {path}"):
        write_bytes_durably(check_outside_stores(Path(path)), buffer.getvalue().to_pybytes())


def _table(rows: Sequence[Mapping[str, object]]) -> pa.Table:
    chunks = rows.chunks() if isinstance(rows, Records) else [list(rows)]
    tables = [pa.Table.from_pylist(chunk) for chunk in chunks] or [pa.table({})]
    return pa.concat_tables(tables, promote_options="permissive")
