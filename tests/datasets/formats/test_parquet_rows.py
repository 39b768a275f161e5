"""Ranges of a Parquet file's rows: what they cost, and that they are the file's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets import DatasetError
from gaitforge.datasets.formats.parquet_rows import BATCH_ROWS, ParquetRows

ROWS = 20_000


def write(path: Path, row_group_size: int) -> pa.Table:
    numbers = np.arange(ROWS)
    words = pa.array([f"w{number % 7}" for number in numbers]).dictionary_encode()
    table = pa.table({"a": numbers, "b": numbers / 2, "words": words})
    pq.write_table(table, path, row_group_size=row_group_size)
    return table


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of each batch or group that is decoded."""
    counts: list[int] = []
    batches, groups = pq.ParquetFile.iter_batches, pq.ParquetFile.read_row_groups

    def counted_batches(self: Any, *args: Any, **kwargs: Any) -> Iterator[pa.RecordBatch]:
        for batch in batches(self, *args, **kwargs):
            counts.append(batch.num_rows)
            yield batch

    def counted_groups(self: Any, *args: Any, **kwargs: Any) -> pa.Table:
        table = groups(self, *args, **kwargs)
        counts.append(table.num_rows)
        return table

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", counted_batches)
    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", counted_groups)
    return counts


def test_parts_of_one_row_group_cost_one_decoding_of_it(decoded: list[int], tmp_path: Path) -> None:
    table = write(tmp_path / "x.parquet", ROWS)
    rows = ParquetRows(tmp_path / "x.parquet")
    for first in range(0, ROWS, 500):
        part = rows.read(["a", "b"], first, first + 500)
        assert part.equals(table.select(["a", "b"]).slice(first, 500))
    assert sum(decoded) == ROWS


def test_two_threads_cost_at_most_two_decodings(decoded: list[int], tmp_path: Path) -> None:
    table = write(tmp_path / "x.parquet", ROWS)
    rows, together = ParquetRows(tmp_path / "x.parquet"), threading.Barrier(2)

    def read(first: int) -> bool:
        together.wait(60)
        return rows.read(["a"], first, first + 500).equals(table.select(["a"]).slice(first, 500))

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(read, range(0, ROWS, 500)))
    assert sum(decoded) <= 2 * ROWS + 4 * BATCH_ROWS


@pytest.mark.parametrize("row_group_size", [700, 7000, ROWS])
def test_any_range_in_any_order_is_the_files(row_group_size: int, tmp_path: Path) -> None:
    table = write(tmp_path / "x.parquet", row_group_size)
    rows = ParquetRows(tmp_path / "x.parquet")
    bounds = np.sort(np.random.default_rng(0).integers(0, ROWS + 1, (30, 2)), axis=1).tolist()
    for number, (first, stop) in enumerate([*bounds, [0, ROWS], [0, 0], [ROWS, ROWS]]):
        columns = ["words", "a"] if number % 3 else ["b"]
        part = rows.read(columns, first, stop)
        assert part.to_pydict() == table.select(columns).slice(first, stop - first).to_pydict()
    rows.close()
    assert rows.read(["a"], 5, 7).column("a").to_pylist() == [5, 6]


def test_rows_beyond_the_end_and_unknown_columns_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "x.parquet", ROWS)
    rows = ParquetRows(tmp_path / "x.parquet")
    with pytest.raises(DatasetError, match=r"x.parquet: rows 19999 to 20000 are wanted of 20000"):
        rows.read(["a"], ROWS - 1, ROWS + 1)
    with pytest.raises(DatasetError, match=r"x.parquet: c: the column is missing"):
        rows.read(["c"], 0, 1)
