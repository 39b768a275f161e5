"""`gaitforge gym …`: the tasks, a collection, and evaluations of every kind of policy."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.plugins.gym.environments.tasks import TASKS
from tests.flows.gym_stores import TINY, make_gym_store
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium_robotics")
pytest.importorskip("dm_control")


def test_tasks_are_listed(run: Run) -> None:
    rows = json.loads(run("gym", "list", "--json").out)
    assert [row["env"] for row in rows] == list(TASKS)
    assert {row["d4rl"]: row["horizon"] for row in rows}["pen"] == 100
    assert all(row["installed"] for row in rows)
    assert {row["d4rl"]: row["expert_return"] for row in rows}["hopper"] == 3247
    assert {row["env"]: row["horizon"] for row in rows}["Humanoid-Board-v0"] == 1000
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
    plan = TrainPlan(config=TINY, select=SelectPlan(where="terminated or truncated"))
    run_training(plan, store, learner, Silent())

    def evaluated(*words: str | Path) -> dict[str, Any]:
        outcome = run("evaluate", *words, "--episodes", "2", "--seed", "3", "--json")
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    learned = evaluated(learner, "--set", "return_target=0.5", "--out", kept)
    record = read_record(kept)
    assert record is not None
    assert learned == {name: record[name] for name in learned}
    assert (learned["policy"], learned["task"]) == ("fcnet", "gym"), "the run knows its task"
    assert record["plan"]["return_target"] == 0.5
    assert learned["references"]["hundred"] == 300.0, "as its store says"
    task = ("--task", "gym", "--set", "env=Hopper-v5")
    medium = evaluated("medium", *task, "--set", f"policies={hopper}")
    assert (medium["policy"], medium["references"]["hundred"]) == ("medium", 300.0)
    random = evaluated("random", *task)
    assert random["references"]["hundred"] > 3000, "by the policies that ship"
    assert abs(random["score"]) < 5
    assert evaluated("expert", *task)["score"] > 70
