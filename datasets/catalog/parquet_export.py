"""Query results as a Parquet file."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import disk_failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.datasets.catalog.records import Records
from gaitforge.datasets.layout import check_outside_stores


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
