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
from gaitforge.flows.records.records import write_record
from gaitforge.flows.stages.status import EXPERIMENT
from recipes.verdicts import (
    END,
    MEASUREMENT,
    MOST_BYTES,
    PAGE,
    SUMMARIES,
    WORDS,
    keep,
    main,
    read_summaries,
    tables,
    told_verdicts,
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


def kept(folder: Path, record: dict[str, Any], name: str = "mine") -> dict[str, Any]:
    write_record(folder / "run" / SUMMARY, record)
    path = keep(folder / "run", name, "", "", folder / "kept")
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
    write_record(tmp_path / SUMMARY, {**summary([1.0], [2.0]), **change})
    with pytest.raises(ValueError, match=complaint):
        keep(tmp_path, "mine", "", "", tmp_path / "kept")
    assert not (tmp_path / "kept").exists()
    assert main(["keep", str(tmp_path / "none"), "mine"]) == 2
    assert "has no summary.json; finish it" in capsys.readouterr().err


def test_a_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="the page has no lines"):
        written("# Results\n", {})
