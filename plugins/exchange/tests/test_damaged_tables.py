"""Damaged columns and metadata of LeRobot's and Minari's folders: refused by name, or imported."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gaitforge.datasets.formats import find_format
from gaitforge.datasets.formats.transfer.exporting import export_selection
from tests.datasets.formats.format_stores import plain_store, random_episodes
from tests.datasets.formats.test_damage import check_refused_or_whole


def columns_with_damage(table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """Every column removed, and replaced by another type, missing values or numbers in turn."""
    rows = table.num_rows
    others = [
        pa.array(["a"] * rows),
        pa.array(np.full(rows, np.nan)),
        pa.array([None] * rows, pa.int64()),
        pa.array([-7] * rows),
        pa.array([[1.5]] * rows),
    ]
    for at, key in enumerate(table.column_names):
        yield key, table.remove_column(at)
        yield key, table.set_column(at, key, others[at % len(others)])


@pytest.mark.parametrize("folder", ["data", "meta/episodes"])
def test_damaged_columns(folder: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    store = plain_store(tmp_path / "s", random_episodes(4))
    options = {"notes": False, "episode_stats": False}
    export_selection("lerobot", store.select(), source, options)
    path = source / folder / "chunk-000/file-000.parquet"
    table = pq.ParquetFile(path).read()
    required = {*table.column_names} - {"index", "timestamp", "tasks"}
    required -= {each for each in table.column_names if each.startswith(("meta/", "data/"))}
    for key, damaged_table in columns_with_damage(table):
        pq.write_table(damaged_table, path)
        refusal = check_refused_or_whole("lerobot", source, tmp_path)
        same_type = damaged_table.schema.equals(table.schema)
        is_cast = key == "next.reward" and key in damaged_table.column_names  # of -7 and of [1.5]
        if key in required and not same_type and not is_cast:
            assert refusal, key


VALUES = (None, -1, "x", [[1]], {"a": 1}, 10**400, float("nan"))


@pytest.mark.parametrize(
    ("name", "file"), [("lerobot", "meta/info.json"), ("minari", "data/metadata.json")]
)
def test_damaged_metadata(name: str, file: str, tmp_path: Path) -> None:
    """Keys removed, and replaced by values of every kind, in turn and two levels deep."""
    if missing := find_format(name).missing:
        pytest.skip(f"{', '.join(missing)} not installed: extras")
    source = tmp_path / "source"
    store = plain_store(tmp_path / "s", [(3, "truncated"), (4, "terminated")])
    export_selection(name, store.select(), source, {"notes": False})
    tree = json.loads((source / file).read_text())
    first = next(iter(tree["features"])) if "features" in tree else ""
    for parent in [(), *([("features",), ("features", first)] if first else [])]:
        level = tree
        for key in parent:
            level = level[key]
        for number, (key, kept) in enumerate(list(level.items())):
            del level[key]
            if number % 2:
                level[key] = VALUES[number % len(VALUES)]
            (source / file).write_text(json.dumps(tree))
            check_refused_or_whole(name, source, tmp_path)
            level[key] = kept
