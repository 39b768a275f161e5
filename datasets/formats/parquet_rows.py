"""Rows of Parquet files as NumPy arrays and back: checked, and a range of rows at a time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datasets.formats.sources import refuse, refuse_unreadable


class ParquetRows:
    """A Parquet file that is read by ranges of rows; holds its footer, not the open file.

    Raises:
        DatasetError: not such a file, or a truncated one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if not path.is_file():
            refuse(path, "", "no such file")
        try:
            with pq.ParquetFile(path) as file:
                self._metadata = file.metadata
                self.schema: pa.Schema = file.schema_arrow
        except (OSError, pa.ArrowException) as error:
            refuse_unreadable(path, "Parquet", error)
        groups = range(self._metadata.num_row_groups)
        rows = [self._metadata.row_group(group).num_rows for group in groups]
        self._ends = np.cumsum([0, *rows])

    @property
    def num_rows(self) -> int:
        """Rows of the file."""
        return int(self._ends[-1])

    def read(self, columns: Sequence[str], first: int, stop: int) -> pa.Table:
        """Rows first .. stop - 1 of some columns.

        Raises:
            DatasetError: a column is not there, the rows end before, or the file is damaged.
        """
        for name in columns:
            if name not in self.schema.names:
                refuse(self.path, name, "the column is missing")
        if stop > self.num_rows:
            refuse(self.path, "", f"rows {first} to {stop - 1} are wanted of {self.num_rows}")
        low = int(np.searchsorted(self._ends, first, side="right")) - 1
        high = int(np.searchsorted(self._ends, stop, side="left"))
        try:
            with pq.ParquetFile(self.path, metadata=self._metadata) as file:
                table = file.read_row_groups(list(range(low, high)), list(columns))
        except (OSError, pa.ArrowException) as error:
            refuse_unreadable(self.path, "Parquet", error)
        return table.slice(first - int(self._ends[low]), stop - first).combine_chunks()


def to_rows(
    path: Path,
    key: str,
    column: pa.ChunkedArray,
    shape: tuple[int, ...],
    dtype: str,
    first: int = 0,
) -> np.ndarray:
    """A column as (N, *shape); lists may be of fixed size or not.

    ``first`` is the first row's number in the file, for messages.

    Raises:
        DatasetError: missing values, lists of another length, another type, or numbers that are
            not finite; it names the file and the column.
    """
    rows = len(column)
    values: pa.Array = pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([])
    for size in shape:
        if values.null_count:
            refuse(path, key, "a value is missing")
        if not is_list(values.type):
            refuse(path, key, f"type {values.type} is not {size} numbers of {dtype}")
        inner = values.flatten()
        lengths = (
            np.array([values.type.list_size])
            if pa.types.is_fixed_size_list(values.type)
            else np.diff(values.offsets.to_numpy())
        )
        if len(values) and not (lengths == size).all():
            refuse(path, key, f"a row holds {int(lengths[lengths != size][0])} values, not {size}")
        values = inner
    if values.null_count:
        refuse(path, key, "a value is missing")
    if arrow_dtype(values.type) != dtype:
        refuse(path, key, f"type {values.type} is not {dtype}")
    array = np.asarray(values.to_numpy(zero_copy_only=False), dtype).reshape(rows, *shape)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argwhere(~np.isfinite(array))[0][0])
        refuse(path, key, f"row {first + row} is not finite")
    return array


def is_list(kind: pa.DataType) -> bool:
    """Whether values of a type are lists."""
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def arrow_dtype(kind: pa.DataType) -> str:
    """NumPy's name of a type of numbers; "" for any other."""
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
