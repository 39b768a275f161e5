"""`gaitforge gym …`: the tasks, a collection, and wrong input."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gaitforge.collectors.gym.tasks import TASKS
from tests.collectors.gym.making import make_training
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium_robotics")


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of random weights."""
    return make_training(tmp_path_factory.mktemp("gym") / "hopper")


def test_tasks_are_listed(run: Run) -> None:
    rows = json.loads(run("gym", "list", "--json").out)
    assert [row["env"] for row in rows] == list(TASKS)
    assert {row["d4rl"]: row["horizon"] for row in rows}["pen"] == 100
    assert all(row["installed"] for row in rows)
    assert {row["d4rl"]: row["expert_return"] for row in rows}["hopper"] == 3247
    assert "AdroitHandPen-v1" in run("gym", "list").out


def test_a_collection_is_summed_up_and_goes_on(run: Run, hopper: Path, tmp_path: Path) -> None:
    store = tmp_path / "hopper.zarr"
    words = ["--env", "Hopper-v5", "--policies", hopper, "--part-steps", "30", "--seed", "2"]
    first = run("gym", "collect", store, *words, "--steps", "30", "--json")
    assert first.code == 0, first.err
    rows = json.loads(first.out)
    assert [row["quality"] for row in rows] == ["medium", "medium-replay", "expert"]
    assert [row["parts"] for row in rows][::2] == [1, 1]
    assert rows[1]["steps"] == 70
    assert rows[0]["normalised_return"] == pytest.approx((rows[0]["return"] + 5) / 3.05)
    more = run("gym", "collect", store, *words, "--steps", "60", "--quality", "expert")
    assert more.code == 0, more.err
    assert "steps/s" in more.out
    assert run("gym", "collect", store, *words, "--steps", "30", "--json").out == first.out


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--env", "Ant-v5", "--policies", "{hopper}"], "no task 'Ant-v5'"),
        (["--env", "Walker2d-v5", "--policies", "{hopper}"], "not of Walker2d-v5"),
        (["--env", "Hopper-v5", "--policies", "{none}"], "no finished training in"),
        (["--env", "Hopper-v5", "--policies", "{hopper}", "--quality", "x"], "unknown quality 'x'"),
        (["--env", "Hopper-v5", "--policies", "{hopper}", "--physics"], "no simulator state"),
        (["--env", "Hopper-v5", "--policies", "{hopper}", "--steps", "0"], "at least 1, not '0'"),
    ],
)
def test_wrong_input_ends_in_a_line(
    run: Run, words: list[str], complaint: str, hopper: Path, tmp_path: Path
) -> None:
    places = {"hopper": hopper, "none": tmp_path / "none"}
    store = tmp_path / "x.zarr"
    outcome = run("gym", "collect", store, *(word.format(**places) for word in words))
    assert_refused(outcome, complaint)
    assert not store.exists()


def test_a_missing_package_is_named(
    run: Run, hopper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    words = ["--env", "Hopper-v5", "--policies", hopper, "--quality", "expert"]
    outcome = run("gym", "collect", tmp_path / "x.zarr", *words)
    assert_refused(outcome, "gymnasium, which is not installed: run .venv/bin/python")
    assert not (tmp_path / "x.zarr").exists()
