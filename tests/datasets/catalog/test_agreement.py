"""Columns that cannot be one are refused before a commit; `verify` finds those of old stores."""

from itertools import combinations_with_replacement
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import DatasetError, Store, merge_stores, open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.datasets.formats.transfer.importing import import_source
from tests.datasets.formats import rows_format
from tests.datasets.making import part_input, small_schema, write_unchecked

VALUES: dict[str, list[Any]] = {
    "bool": [True, False],
    "text": ["good", "bad"],
    "whole": [1, 2**53],
    "large": [-(2**53) - 1, 2],
    "float": [0.5, 2.0],
}
JOINABLE = {("whole", "large"), ("whole", "float")}


def rated(values: list[Any], first: int = 0, name: str = "rank") -> dict[str, Any]:
    given = part_input([2, 3], first)
    return {**given, "episodes": {**given["episodes"], name: values}}


def store_of(path: Path, values: list[Any], first: int = 0, name: str = "rank") -> Store:
    store = open_store(Store.create(path, small_schema()).path)
    store.write_part(f"part-{first}", **rated(values, first, name))
    return store


@pytest.mark.parametrize(("before", "after"), list(combinations_with_replacement(VALUES, 2)))
def test_a_commit_is_refused_where_reading_would_fail(
    tmp_path: Path, before: str, after: str
) -> None:
    old = store_of(tmp_path / "old", VALUES[before])
    write_unchecked(old, "later", rated(VALUES[after], 10))
    store = store_of(tmp_path / "s", VALUES[before])
    info = store.info()
    if before == after or (before, after) in JOINABLE:
        store.write_part("later", **rated(VALUES[after], 10))
        for each in (old, open_store(store.path)):
            assert each.verify() == []
            ranks = each.select().episodes("rank").column(0).to_pylist()
            assert set(ranks) == {*VALUES[before], *VALUES[after]}
        return
    with pytest.raises(DatasetError, match="column rank has"):
        store.write_part("later", **rated(VALUES[after], 10))
    assert open_store(store.path).info() == info
    with pytest.raises(DatasetError):
        open_store(old.path).select().episodes("rank")
    faults = old.verify()
    assert any(fault.startswith("part part-0: column rank has ") for fault in faults), faults


@pytest.mark.parametrize("other", [("rank", "text"), ("rank", "large"), ("Rank", "float")])
def test_no_way_into_a_store_takes_columns_that_do_not_agree(
    tmp_path: Path, other: tuple[str, str]
) -> None:
    name, kind = other
    store = store_of(tmp_path / "s", VALUES["float"])
    second = store_of(tmp_path / "b", VALUES[kind], 10, name)
    info = store.info()
    with pytest.raises(DatasetError, match=r"column '?[rR]ank"):
        store.write_part("later", **rated(VALUES[kind], 20, name))
    with pytest.raises(DatasetError, match=r"cannot be merged: column '?[rR]ank"):
        merge_stores(store, second, tmp_path / "merged")
    with rows_format.registered():
        export_selection("rows", second.select(), tmp_path / "rows")
        with pytest.raises(DatasetError, match=r"does not fit store .*column '?[rR]ank"):
            import_source("rows", tmp_path / "rows", store.path)
    assert open_store(store.path).info() == info
    assert open_store(store.path).verify() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "rows", "s"]


def test_a_whole_number_that_a_column_of_floats_cannot_hold_is_not_noted(tmp_path: Path) -> None:
    store = store_of(tmp_path / "s", VALUES["float"])
    store.select().annotate({"rank": 2**53})
    with pytest.raises(DatasetError, match=r"whole numbers of up to 2\*\*53"):
        store.select().annotate({"rank": 2**53 + 1})
