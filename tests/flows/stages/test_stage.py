"""When a stage is done: its results are made of the last results of the stages before it."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.stages.stage import (
    RecordedStage,
    left_stages,
    run_side_by_side,
    run_stage,
    run_stages,
    stage_error,
)

AFTER = {"a": (), "b": (), "c": ("a",), "d": ("a", "b"), "e": ("c", "d"), "f": ("c",)}
WAITS = "f"
"""It only runs after another stage."""


def _make(out: Path, name: str, _: Reporter) -> None:
    """Write what a stage has read, and how often it ran."""
    log = out / f"{name}.log"
    runs = len(log.read_text()) if log.exists() else 0
    log.write_text("x" * (runs + 1))
    read = [] if name == WAITS else [(out / each).read_text() for each in AFTER[name]]
    (out / name).write_text(json.dumps([runs + 1, read]))


def _stages(out: Path) -> Sequence[RecordedStage]:
    return [
        RecordedStage(name, "key", run=partial(_make, out, name), outputs=(out / name,),
                      after=after, waits=name == WAITS)
        for name, after in AFTER.items()
    ]  # fmt: skip


def _runs(out: Path) -> dict[str, int]:
    return {name: json.loads((out / name).read_text())[0] for name in AFTER}


@settings(max_examples=8, deadline=None)
@given(st.lists(st.sets(st.sampled_from(sorted(AFTER)), min_size=1), min_size=1, max_size=3))
def test_results_are_of_the_last_results_before_them_and_nothing_else_is_made_again(
    lost: list[set[str]],
) -> None:
    with TemporaryDirectory() as folder:
        out = Path(folder)
        run_stages(out, _stages(out), Silent())
        for names in lost:
            before = _runs(out)
            for name in names:
                (out / name).unlink()
            left = {stage.name for stage in left_stages(out, _stages(out))}
            run_stages(out, _stages(out), Silent())
            again = {name for name, runs in _runs(out).items() if runs > before[name]}
            assert again == left == _with_later(names)
            for name in AFTER.keys() - {WAITS}:
                read = [(out / each).read_text() for each in AFTER[name]]
                assert json.loads((out / name).read_text())[1] == read
            assert left_stages(out, _stages(out)) == []


def _with_later(names: set[str]) -> set[str]:
    """Names of stages, and of those that read their results."""
    again = set(names)
    for name, after in AFTER.items():
        if name != WAITS and again.intersection(after):
            again.add(name)
    return again


@pytest.mark.parametrize("changed", ["a", "c"])
def test_stages_of_earlier_versions_stay_done(tmp_path: Path, changed: str) -> None:
    """Their records do not tell what they have read."""
    run_stages(tmp_path, _stages(tmp_path), Silent())
    for path in (tmp_path / "stages").glob("*.json"):
        record = json.loads(path.read_text())
        del record["after"]
        path.write_text(json.dumps(record))
    assert left_stages(tmp_path, _stages(tmp_path)) == []
    (tmp_path / changed).unlink()
    before = _runs_but(tmp_path, changed)
    run_stages(tmp_path, _stages(tmp_path), Silent())
    assert _runs_but(tmp_path, changed) == before


def _runs_but(out: Path, name: str) -> dict[str, int]:
    return {each: json.loads((out / each).read_text())[0] for each in AFTER if each != name}


def test_a_stage_that_went_on_later_undoes_what_was_made_of_it(tmp_path: Path) -> None:
    """A lost record of the stage before, too: its next run is another one."""
    stages = {stage.name: stage for stage in _stages(tmp_path)}
    for name in "ac":
        run_stage(tmp_path, stages[name], Silent())
    (tmp_path / "stages" / "a.json").unlink()
    assert not stages["c"].is_done(tmp_path)
    run_stage(tmp_path, stages["a"], Silent())
    assert not stages["c"].is_done(tmp_path)
    run_stage(tmp_path, stages["c"], Silent())
    assert stages["c"].is_done(tmp_path)


def test_a_stage_that_leaves_no_output_is_an_error_and_not_done_for_ever(tmp_path: Path) -> None:
    stage = RecordedStage("show a", "key", run=lambda _: None, outputs=(tmp_path / "a.html",))
    with pytest.raises(ValueError, match=r"show a: it ended and has not written .*a\.html"):
        run_side_by_side(tmp_path, [stage], Silent(), Silent())
    assert not stage.is_done(tmp_path)
    assert "has not written" in stage_error(tmp_path, stage)
