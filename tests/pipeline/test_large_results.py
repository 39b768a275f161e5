"""Results of any number of rows are printed in the memory of a few."""

import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gaitforge.datasets import open_store
from gaitforge.datasets.catalog.rows import ROWS_AT_ONCE, Records
from gaitforge.pipeline.terminal import cell, show_result, table
from tests.datasets.making import small_store

ROWS = 50_000


def test_a_table_tells_small_numbers_apart_and_escapes_what_is_no_text() -> None:
    values = [0.0002, 0.0003, 0.25, -0.0, 1234.5, 1e300, float("nan"), [0.0, 0.0002]]
    shown = ["0.0002", "0.0003", "0.250", "0.000", "1,234", "1e+300", "nan", "[0.000, 0.0002]"]
    assert [cell(value) for value in values] == shown
    rows = [{"task": "pick\nup", "n": 1}, {"task": "\x1b]0;title\x07 Über", "n": 2}]
    assert table(rows).splitlines()[2:] == [
        "pick\\nup               1",
        "\\x1b]0;title\\x07 Über  2",
    ]
    unbroken = "5\u00a0±\u00a02"
    assert cell(unbroken) == unbroken


def made(count: int) -> Records:
    def make(first: int, stop: int) -> list[dict[str, object]]:
        return [
            {"episode": f"e-{n:07d}", "return": n / 3, "fell": None} for n in range(first, stop)
        ]

    return Records(count, make)


@pytest.mark.parametrize("count", [0, 1, 2, ROWS_AT_ONCE, ROWS_AT_ONCE + 1])
@pytest.mark.parametrize("as_json", [False, True])
def test_they_are_printed_as_a_list_is(
    count: int, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    records, rows = made(count), list(made(count))
    assert len(rows) == count == len(records)
    show_result(records, records, as_json, "a line")
    wanted = json.dumps(rows, indent=1) if as_json else f"{table(rows)}\na line"
    assert capsys.readouterr().out == wanted + "\n"
    assert records[:3] == rows[:3]
    assert records[::-1] == rows[::-1]
    if count:
        assert (records[-1], records[0]) == (rows[-1], rows[0])
    with pytest.raises(IndexError):
        records[count]


@pytest.mark.parametrize("as_json", [False, True])
def test_memory_does_not_grow_with_the_rows(as_json: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    records = made(ROWS)
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr("sys.stdout", nowhere)
        tracemalloc.start()
        try:
            show_result(records, records, as_json)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 11_500_000  # a list of them takes 14 and 23 MB


def test_groups_and_lists_are_those_of_a_plain_loop(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    parts = [rng.integers(1, 4, 40).tolist() for _ in range(3)]
    selection = open_store(small_store(tmp_path / "s", parts).path).select()
    rows = selection.episodes().to_pylist()
    for names in ((), ("episode",), ("level", "skill"), ("skill", "friction"), ("success",)):
        groups: dict[tuple[object, ...], list[dict[str, Any]]] = {}
        for row in rows:
            groups.setdefault(tuple(row[name] for name in names), []).append(row)
        found = list(selection.grouped(names))
        assert [tuple(row[name] for name in names) for row in found] == sorted(groups)
        for row in found:
            own = groups[tuple(row[name] for name in names)]
            assert row["episodes"] == len(own)
            assert row["return"] == pytest.approx(np.mean([each["return"] for each in own]))
    listed = list(selection.listed(7, "return desc", ("friction",)))
    best = sorted(rows, key=lambda row: -row["return"])[:7]
    assert [row["friction"] for row in listed] == [row["friction"] for row in best]
