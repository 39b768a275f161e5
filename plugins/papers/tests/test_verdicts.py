"""Verdicts of docs/results.md: made from kept summaries, and never of fewer than three seeds."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.flows.experiments.plan import FAILS, HOLDS, OPEN, verdict
from gaitforge.flows.experiments.summary import SUMMARY
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.stages.status import EXPERIMENT
from gaitforge.pipeline.presets.preset import PRESETS
from recipes.verdicts import (
    END,
    MEASUREMENT,
    MOST_BYTES,
    PAGE,
    SUMMARIES,
    TABLE_END,
    WORDS,
    keep,
    kept_summary,
    main,
    read_summaries,
    tables,
    told_verdicts,
    with_tables,
    written,
)

ROW = re.compile(r"^\| \[`[\w-]+`\]\(results/summaries/.*$", re.M)


def summary(ahead: list[float], behind: list[float], **plan: Any) -> dict[str, Any]:
    """The summary.json of a finished experiment, with what of it is kept and more."""
    scores = {"fcnet": ahead, "transformer": behind}
    runs = [
        {
            "run": f"{learner}-{seed}",
            "task": "legged",
            "set": "",
            "learner": learner,
            "value": 8,
            "seed": seed,
            "score": 0.0,
            "measures": {"cleared score": score},
        }
        for learner, values in scores.items()
        for seed, score in enumerate(values)
    ]
    said = {
        "ahead": "fcnet",
        "behind": "transformer",
        "source": "FCNet, Figure 9",
        "measure": "cleared score",
    }
    return {
        "name": "fcnet-context",
        "plan": {"learners": {"fcnet": {}}, "vary": {"context": {"8": {}}}, "published": [said],
                 "expert": "/home/me/experts/mine", **plan},
        "sets": [{"task": "legged", "set": "", "store": "six.zarr", "steps": 6_000_000}],
        "runs": runs,
        "cells": [{"returns": [1.0] * 9}],
        "verdicts": [{"verdict": HOLDS}],
        "git_revision": "abc",
        "versions": {"torch": "2.13.0"},
        "machine": "x86_64",
    }  # fmt: skip


COMMAND = "gaitforge run fcnet-context six.zarr"


def finish(run: Path, record: dict[str, Any]) -> None:
    """Write the files of a folder whose plan is done."""
    write_record(run / SUMMARY, record)
    write_record(run / PLAN, {"kind": EXPERIMENT, "experiment": record["plan"]})


def kept(folder: Path, record: dict[str, Any], name: str = "mine") -> dict[str, Any]:
    finish(folder / "run", record)
    path = keep(folder / "run", name, "", COMMAND, folder / "kept")
    return json.loads(path.read_text())


def test_the_page_has_the_tables_of_the_kept_summaries() -> None:
    page = PAGE.read_text()
    assert written(page, read_summaries()) == page, "python -m recipes.verdicts write"
    assert not any(word in page.partition(END)[2] for word in WORDS.values())


def test_kept_summaries_are_small_and_agree_with_the_numbers_of_their_seeds() -> None:
    summaries = read_summaries()
    assert {path.stem for path in SUMMARIES.iterdir()} == set(summaries)
    for name, record in summaries.items():
        path = SUMMARIES / f"{name}.json"
        assert path.stat().st_size <= MOST_BYTES
        assert not re.search(r'["\s=](~|/[\w.-]+)/', path.read_text()), "a machine's folder"
        told = told_verdicts(record)
        if record["kind"] == EXPERIMENT:
            means = [(row["means"], row["verdict"]) for row in record.get("verdicts", ())]
            assert means == [(row["means"], row["verdict"]) for row in told]
        if record["kind"] == MEASUREMENT:
            figures = {sum(row["figures"]) / len(row["figures"]) for row in record["rows"]}
            for row in told:
                assert all(min(abs(mean - f) for f in figures) < 1e-9 for mean in row["means"])


def test_a_row_has_the_numbers_seeds_and_verdict_of_its_summary(tmp_path: Path) -> None:
    record = kept(tmp_path, summary([90.0, 91.0, 92.5], [80.0, 81.0, 82.0]))
    row, _ = ROW.findall(tables(read_summaries(tmp_path / "kept")))
    cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
    assert cells[0] == "[`fcnet-context`](results/summaries/mine.json)"
    assert cells[1:5] == [
        "FCNet, Figure 9",
        "FCNet ahead of transformer",
        "context 8",
        "cleared score",
    ]
    assert cells[5] == WORDS[HOLDS]
    assert cells[6] == r"FCNet 91.2 \| transformer 81.0"
    assert cells[7] == "3 seeds, p\u00a00.05"
    assert record["plan"]["expert"] == "mine"
    assert "cells" not in record
    record["runs"][0]["measures"]["cleared score"] = 10.0
    assert [row["verdict"] for row in told_verdicts(record)] == [OPEN], "told from the seeds"


@given(st.integers(1, 4), st.integers(1, 21), st.booleans())
def test_fewer_than_three_seeds_tell_nothing(one: int, other: int, first: bool) -> None:
    """However far apart they are: 1 beside 20 has a chance of 0.048."""
    high = [100.0 + k for k in range(one)]
    low = [float(k) for k in range(other)]
    pair = (high, low) if first else (low, high)
    told = verdict(*pair)
    [row] = told_verdicts({"kind": EXPERIMENT, **summary(*pair)})
    assert row["verdict"] == told
    assert row["seeds"] == [len(values) for values in pair]
    if min(one, other) < 3:
        assert told == OPEN
    elif min(one, other) >= 3:
        assert told == (HOLDS if first else FAILS)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"name": "mine"}, "no preset 'mine'; name it by --preset"),
        ({"plan": {"settings": {"note": "x" * MOST_BYTES}}}, "bytes are to be kept"),
    ],
)
def test_what_cannot_be_kept_is_refused_in_a_line(
    change: dict[str, Any], complaint: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finish(tmp_path, {**summary([1.0], [2.0]), **change})
    with pytest.raises(ValueError, match=complaint):
        keep(tmp_path, "mine", "", COMMAND, tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    assert main(["keep", str(tmp_path / "none"), "mine"]) == 2
    assert "has no summary.json; finish it" in capsys.readouterr().err


def test_a_smaller_or_unfinished_run_replaces_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    kept(tmp_path, summary([90.0, 91.0, 92.5], [80.0, 81.0, 82.0]))
    before = (tmp_path / "kept" / "mine.json").read_bytes()
    small = summary([90.0], [80.0])
    finish(run, small)
    with pytest.raises(ValueError, match=r"has more runs than .*: 6; --replace keeps fewer"):
        keep(run, "mine", "", COMMAND, tmp_path / "kept")
    with pytest.raises(ValueError, match=r"has not the preset's learners, seeds.*--repeat"):
        keep(run, "mine", "", "", tmp_path / "kept")
    write_record(run / PLAN, {"kind": EXPERIMENT, "experiment": {**small["plan"], "seeds": [0, 1]}})
    with pytest.raises(ValueError, match=r"has grown since its summary\.json; finish it"):
        keep(run, "mine", "", COMMAND, tmp_path / "kept", replaces=True)
    (run / PLAN).unlink()
    with pytest.raises(ValueError, match=r"no plan.json of a kind that is installed"):
        keep(run, "mine", "", COMMAND, tmp_path / "kept", replaces=True)
    assert (tmp_path / "kept" / "mine.json").read_bytes() == before
    finish(run, small)
    keep(run, "mine", "", COMMAND, tmp_path / "kept", replaces=True)
    assert len(read_summaries(tmp_path / "kept")["mine"]["runs"]) == 2


def test_a_plan_of_the_preset_needs_no_command(tmp_path: Path) -> None:
    usual = to_tree(PRESETS["fcnet-context"].make())
    finish(tmp_path / "run", {**summary([1.0], [2.0]), "plan": usual})
    path = keep(tmp_path / "run", "mine", folder=tmp_path / "kept")
    command = "gaitforge run fcnet-context six.zarr --out runs/mine"
    assert json.loads(path.read_text())["command"] == command


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/home/me/data/six.zarr", "six.zarr"),
        ("run x /a/b/six.zarr --out /tmp/r/mine", "run x six.zarr --out mine"),
        ("--set path=/home/me/secret/data.zarr", "--set path=data.zarr"),
        ('--set \'stores=["/a/b/c.zarr","/a/d.zarr"]\'', '--set \'stores=["c.zarr","d.zarr"]\''),
        ("~/data/six.zarr", "six.zarr"),
        ("return / length > 3", "return / length > 3"),
        ("1 /s of x", "1 /s of x"),
        ("steps/s and https://host/a/b.zarr", "steps/s and https://host/a/b.zarr"),
        ("runs/mine/summary.json", "runs/mine/summary.json"),
    ],
)
def test_a_kept_text_names_no_folder_of_a_machine(text: str, expected: str) -> None:
    record = kept_summary({"plan": {"expert": text}}, EXPERIMENT, "fcnet-context", text)
    assert (record["plan"]["expert"], record["command"]) == (expected, expected)


@pytest.mark.parametrize(
    ("page", "complaint"),
    [
        ("{begin a}\nold\n\n## Text\n\n{begin a}\nold\n{end}\n", "table of a has no line"),
        ("{begin a}\nold\n\n## Text\n", "table of a has no line"),
        ("{begin b}\nold\n{end}\n", "no summary 'b' is kept"),
    ],
)
def test_tables_never_take_the_text_after_them(page: str, complaint: str) -> None:
    for name in "ab":
        begin = f"<!-- table of {name}: written by `python -m recipes.verdicts write` -->"
        page = page.replace(f"{{begin {name}}}", begin)
    page = page.replace("{end}", TABLE_END)
    with pytest.raises(ValueError, match=complaint):
        with_tables(page, {"a": {"kind": EXPERIMENT, "runs": [], "plan": {}}})


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no lines"):
        written("# Results\n", {})
