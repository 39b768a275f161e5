"""`gaitforge dataset` does what the Python methods do, and says what is wrong in one line."""

import json
from pathlib import Path

import pytest

from gaitforge.datasets import Selection, open_store
from tests.datasets.making import small_store
from tests.pipeline.command_line import Run, assert_refused

PARTS = [(5, 1, 9), (30, 14)]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return small_store(tmp_path / "s.zarr", PARTS).path


def test_edits_are_logged_with_their_arguments_and_compared(run: Run, store: Path) -> None:
    assert run("tag", store, "v1").code == 0
    made = run("dataset", "drop", store, "--where", "length < 5", "--reason", "short", "--json")
    assert json.loads(made.out)["episodes"] == 4
    noted = run("dataset", "annotate", store, "--skill", "run", "note=limps", "n=3", "ok=true")
    assert noted.code == 0
    assert run("dataset", "trim", store, "--skill", "crawl", "--tail", "2").code == 0
    log = json.loads(run("dataset", "log", store, "--json").out)
    assert [each["kind"] for each in log] == ["drop", "annotate", "trim"]
    assert log[0]["arguments"] == {"where": "length < 5", "reason": "short"}
    assert log[0]["origin"]["store"] == open_store(store, tag="v1").info().hash
    rows = open_store(store).select(skill="run").episodes().to_pylist()
    assert [(row["note"], row["n"], row["ok"]) for row in rows] == [("limps", 3, True)]
    found = json.loads(run("dataset", "diff", store, "v1", "--json").out)
    assert (found["added"], found["dropped"], found["changed"]) == (0, 1, 2)
    back = json.loads(run("dataset", "diff", store, "v1", "v1", "--json").out)
    assert back["groups"] == []
    assert "1 episode dropped" in run("dataset", "diff", store, "v1").out


def test_merge_and_split_make_stores_and_selections(run: Run, store: Path, tmp_path: Path) -> None:
    assert run("dataset", "drop", store, "--skill", "crawl").code == 0
    out = tmp_path / "out.zarr"
    merged = run("dataset", "merge", store, store, out, "--json")
    assert json.loads(merged.out)["hash"] == open_store(store).info().hash
    folder = tmp_path / "splits"
    sides = run(
        "dataset", "split", out, "--fractions", "train=0.5,val=0.5", "--out", folder, "--json"
    )
    counts = {each["side"]: each["episodes"] for each in json.loads(sides.out)}
    opened = open_store(out)
    for side, count in counts.items():
        assert len(Selection.load(opened, folder / f"{side}.json")) == count
    assert sum(counts.values()) == 4
    assert run("dataset", "split", out, "--by", "skill", "--stores", "--out", folder).code == 0
    assert open_store(folder / "run.zarr").info().episodes == len(opened.select(skill="run"))


def test_a_column_that_is_given_twice_is_refused(run: Run, store: Path) -> None:
    asked = run("dataset", "annotate", store, "--skill", "run", "n=1", "n=2")
    assert_refused(asked, "column n is given twice")
    assert not open_store(store).edits()


def test_control_characters_of_the_data_do_not_reach_the_terminal(run: Run, store: Path) -> None:
    assert run("dataset", "annotate", store, "--skill", "run", "note=a\x1b]0;x\x07").code == 0
    shown = run("query", store, "--group-by", "note")
    refused = run("dataset", "split", store, "--by", "note", "--out", store.parent / "sides")
    assert refused.code == 2
    for text in (shown.out, refused.err):
        assert "a\\x1b]0;x\\x07" in text
        assert not {"\x1b", "\x07"} & set(text)
