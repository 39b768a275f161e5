"""Ranges of a Parquet file's rows: they are the file's."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import DatasetError
from gaitforge.plugins.exchange.lerobot.parquet_rows import ParquetRows

ROWS = 20_000


def write(path: Path, row_group_size: int) -> pa.Table:
    numbers = np.arange(ROWS)
    words = pa.array([f"w{number % 7}" for number in numbers]).dictionary_encode()
    table = pa.table({"a": numbers, "b": numbers / 2, "words": words})
    pq.write_table(table, path, row_group_size=row_group_size)
    return table


@pytest.mark.parametrize("row_group_size", [700, 7000, ROWS])
def test_any_range_in_any_order_is_the_files(row_group_size: int, tmp_path: Path) -> None:
    table = write(tmp_path / "x.parquet", row_group_size)
    rows = ParquetRows(tmp_path / "x.parquet")
    bounds = np.sort(np.random.default_rng(0).integers(0, ROWS + 1, (30, 2)), axis=1).tolist()
    for number, (first, stop) in enumerate([*bounds, [0, ROWS], [0, 0], [ROWS, ROWS]]):
        columns = ["words", "a"] if number % 3 else ["b"]
        part = rows.read(columns, first, stop)
        assert part.to_pydict() == table.select(columns).slice(first, stop - first).to_pydict()


def test_rows_beyond_the_end_and_unknown_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", ROWS)
    rows = ParquetRows(tmp_path / "x.parquet")
    with pytest.raises(DatasetError, match=r"x.parquet: rows 19999 to 20000 are wanted of 20000"):
        rows.read(["a"], ROWS - 1, ROWS + 1)
    with pytest.raises(DatasetError, match=r"x.parquet: c: the column is missing"):
        rows.read(["c"], 0, 1)
