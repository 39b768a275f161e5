"""Parquet columns as NumPy arrays and back, a range of rows at a time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.limits import check_parquet
from gaitforge.datasets.formats.sources import check_finite, refuse, refuse_unreadable

BATCH_ROWS = 4096
"""Rows that are decoded at a time."""

_BUFFER_BYTES = 1 << 20


class ParquetRows:
    """A Parquet file that several threads read by ranges of rows; open only while one is read.

    A row group can only be decoded from its start, so one that is much larger than the ranges costs
    time. One batch beside the range is in memory.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            refuse(path, "", "no such file")
        try:
            # pyarrow takes a relative path with a colon in its first component for a URL.
            with pq.ParquetFile(path.absolute()) as file:
                self._metadata = file.metadata
                self.schema: pa.Schema = file.schema_arrow
        except (OSError, UnicodeDecodeError, pa.ArrowException) as error:  # also of column names
            refuse_unreadable(path, "Parquet", error)
        check_parquet(str(path), self._metadata, path.stat().st_size)
        groups = range(self._metadata.num_row_groups)
        rows = [self._metadata.row_group(group).num_rows for group in groups]
        self._ends = np.cumsum([0, *rows])

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return int(self._ends[-1])

    def read(self, columns: Sequence[str], first: int, stop: int) -> pa.Table:
        """Rows first .. stop - 1 of some columns."""
        for name in columns:
            if name not in self.schema.names:
                refuse(self.path, name, "the column is missing")
        if stop > self.num_rows:
            refuse(self.path, "", f"rows {first} to {stop - 1} are wanted of {self.num_rows}")
        groups = np.flatnonzero((self._ends[1:] > first) & (self._ends[:-1] < stop)).tolist()
        batches = []
        row = int(self._ends[groups[0]]) if groups else 0
        try:
            with pq.ParquetFile(
                self.path.absolute(), metadata=self._metadata, buffer_size=_BUFFER_BYTES
            ) as file:
                for batch in file.iter_batches(BATCH_ROWS, groups, list(columns)):
                    low = max(first - row, 0)
                    high = min(stop - row, batch.num_rows)
                    if low < high:
                        batches.append(batch.slice(low, high - low))
                    row += batch.num_rows
                    if row >= stop:
                        break
        except (OSError, pa.ArrowException) as error:
            refuse_unreadable(self.path, "Parquet", error)
        kinds = pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_batches(batches, kinds).unify_dictionaries().combine_chunks()

    def read_integers(self, columns: Sequence[str]) -> dict[str, np.ndarray]:
        """Column -> (N,) int64 of the whole file."""
        table = self.read(columns, 0, self.num_rows)
        return {name: to_rows(self.path, name, table.column(name), (), "int64") for name in columns}


def to_rows(
    path: Path,
    key: str,
    column: pa.ChunkedArray,
    shape: tuple[int, ...],
    dtype: str,
    first: int = 0,
) -> np.ndarray:
    """A column as (N, *shape) of NumPy's `dtype`; lists may be of fixed size or not.

    A list of one may stand for its number and the other way round, and numbers may be of another
    dtype, if `dtype` holds all of them exactly. Messages name `path` and `key`; `first` is
    the number of the first row in the file.
    """
    rows = len(column)
    values: pa.Array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([])
    depth = _depth(values.type)
    missing = depth - len(shape)
    sizes = (*shape, *[1] * missing) if missing >= 0 else [size for size in shape if size != 1]
    if len(sizes) != depth and rows:
        refuse(path, key, f"type {values.type} is not of shape {shape} and {dtype}")
    for size in sizes:
        if values.null_count:
            refuse(path, key, "a value is missing")
        inner = values.flatten()
        lengths = (
            np.array([values.type.list_size])
            if pa.types.is_fixed_size_list(values.type)
            else np.diff(values.offsets.to_numpy())
        )
        if len(values) and (wrong := lengths[lengths != size]).size:
            refuse(path, key, f"a row holds {wrong[0]} values, not {size}")
        values = inner
    if values.null_count:
        refuse(path, key, "a value is missing")
    stored = arrow_dtype(values.type)
    if not stored:
        refuse(path, key, f"type {values.type} is not {dtype}")
    array = np.asarray(values.to_numpy(zero_copy_only=False), stored).reshape(rows, *shape)
    array = _exactly(path, key, array, dtype, first)
    check_finite(path, key, array, first)
    return array


def _exactly(path: Path, key: str, array: np.ndarray, dtype: str, first: int) -> np.ndarray:
    """The same numbers in another dtype; DatasetError if it does not hold one of them."""
    if array.dtype == dtype:
        return array
    with np.errstate(invalid="ignore", over="ignore"):
        cast = array.astype(dtype)
        same = (cast.astype(array.dtype) == array) | ((array != array) & (cast != cast))
    if not same.all():
        at = tuple(np.argwhere(~same)[0])
        problem = f"row {first + at[0]} has {array[at]}, which {dtype} does not hold exactly"
        refuse(path, key, f"{problem}; declare the dtype {array.dtype}, or store {dtype}")
    return cast


def _depth(kind: pa.DataType) -> int:
    return 1 + _depth(kind.value_type) if is_list(kind) else 0


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    types = pa.types
    return types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)


def arrow_dtype(kind: pa.DataType) -> str:
    """NumPy's name of a numeric type; "" for any other."""
    if pa.types.is_boolean(kind):
        return "bool"
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        return ""
    return np.dtype(kind.to_pandas_dtype()).name


def to_arrow(array: np.ndarray) -> pa.Array:
    """(N, *shape) as numbers, lists of fixed size, or lists of lists for more axes."""
    if array.ndim == 2:
        values = pa.array(np.ascontiguousarray(array).reshape(-1))
        return pa.FixedSizeListArray.from_arrays(values, array.shape[1])
    return to_lists(array)


def to_lists(array: np.ndarray) -> pa.Array:
    """(N, *shape) as lists of any size, of lists for more axes."""
    values = pa.array(np.ascontiguousarray(array).reshape(-1))
    for size in reversed(array.shape[1:]):
        offsets = np.arange(0, len(values) + 1, size, dtype=np.int32)
        values = pa.ListArray.from_arrays(pa.array(offsets), values)
    return values
