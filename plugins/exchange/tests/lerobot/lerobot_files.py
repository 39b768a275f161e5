"""LeRobot datasets in a test: their first files, and how to read one."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DATA, EPISODES = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"


def read(path: Path) -> pa.Table:
    """A Parquet file, without what its folders' names would add."""
    return pq.ParquetFile(path).read()


def tree(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
