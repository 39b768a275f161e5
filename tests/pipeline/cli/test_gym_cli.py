"""`gaitforge gym …`: the tasks, a collection, and evaluations of every kind of policy."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gaitforge.collectors.gym.tasks import TASKS
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.suites.plan import COMPLETE
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from tests.flows.gym_stores import TINY, make_gym_store
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium_robotics")


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


def test_a_missing_package_is_named(
    run: Run, hopper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    words = ["--env", "Hopper-v5", "--policies", hopper, "--quality", "expert"]
    outcome = run("gym", "collect", tmp_path / "x.zarr", *words)
    assert_refused(outcome, "gymnasium, which is not installed: run .venv/bin/python")
    assert not (tmp_path / "x.zarr").exists()


def test_a_policy_of_each_kind_is_evaluated(run: Run, hopper: Path, tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr", episodes=8)
    learner, kept = tmp_path / "fcnet", tmp_path / "fcnet.json"
    plan = TrainPlan(config=TINY, select=SelectPlan(where=COMPLETE))
    run_training(plan, store, learner, Silent())

    def evaluated(*arguments: str | Path) -> dict:
        asked = ["--env", "Hopper-v5", "--episodes", "2", "--seed", "3", "--json"]
        return json.loads(run("gym", "evaluate", *arguments, *asked).out)

    more = ("--policies", hopper, "--return-target", "0.5", "--out", kept)
    learned = evaluated(learner, *more)
    assert learned == read_record(kept)
    assert (learned["policy"], learned["return_target"]) == ("fcnet", 0.5)
    expert = evaluated(hopper, "--quality", "medium")
    assert (expert["policy"], expert["references"]["expert"]) == ("medium", 300.0)
    assert expert["normalised"]["mean"] is not None, "the experts' own returns are known"
    random = evaluated("random")
    assert random["references"]["expert"] > 3000, "by the policies that ship"
    assert abs(random["normalised"]["mean"]) < 5
    assert evaluated("expert")["normalised"]["mean"] > 70
