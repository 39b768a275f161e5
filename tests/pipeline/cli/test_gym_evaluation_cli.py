"""`gaitforge evaluate` on Gymnasium's tasks: what it prints, leaves and refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from tests.collectors.gym.making import RETURNS as MEASURED
from tests.collectors.gym.making import make_training
from tests.flows.gym_stores import TINY, make_gym_store
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gym_store(tmp_path_factory.mktemp("gym-cli") / "hopper.zarr", episodes=8)


@pytest.fixture(scope="module")
def policies(store: Path) -> Path:
    """A finished training of experts."""
    return make_training(store.parent / "experts")


@pytest.fixture(scope="module")
def trained(store: Path) -> Path:
    """The folder of a finished training."""
    run = store.parent / "fcnet"
    select = SelectPlan(where="terminated or truncated")
    run_training(TrainPlan(select, TINY), store, run, Silent())
    return run


def test_a_policy_of_each_kind_is_evaluated(
    trained: Path, policies: Path, run: Run, tmp_path: Path
) -> None:
    def evaluated(*words: str | Path) -> dict[str, Any]:
        outcome = run("evaluate", *words, "--episodes", "2", "--seed", "3", "--json")
        assert outcome.code == 0, outcome.err
        return json.loads(outcome.out)

    kept = tmp_path / "fcnet.json"
    learned = evaluated(trained, "--set", "return_target=0.5", "--out", kept)
    record = read_record(kept)
    assert record is not None
    assert learned == {name: record[name] for name in learned}
    assert (learned["policy"], learned["task"]) == ("fcnet", "gym"), "the run knows its task"
    assert record["plan"]["return_target"] == 0.5
    assert learned["references"]["hundred"] == 300.0, "as its store says"
    task = ("--task", "gym", "--set", "env=Hopper-v5")
    medium = evaluated("medium", *task, "--set", f"policies={policies}")
    assert (medium["policy"], medium["references"]["hundred"]) == ("medium", MEASURED["expert"])
    random = evaluated("random", *task)
    assert random["references"]["hundred"] > 3000, "by the policies that ship"
    assert abs(random["score"]) < 5
    assert evaluated("expert", *task)["score"] > 70
    shown = run("evaluate", "random", *task, "--episodes", "2").out
    assert "; 0 is a return of " in shown


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["none", "--task", "gym"], "no policy 'none'; allowed: medium, expert"),
        (["random", "--task", "gym", "--set", "env=Ant-v5"], "no task 'Ant-v5'"),
        (["random", "--task", "gym", "--set", "environments=0"], "at least 1"),
        (["random", "--task", "gym", "--terrain", "flat"], "no 'terrains' here; allowed: env"),
        (["random", "--task", "drone"], "unknown task 'drone'; allowed: legged, gym"),
        (["random", "--task", "derive"], "no policy is evaluated on task 'derive'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_refused_before_anything_starts(
    run: Run, arguments: list[str], complaint: str, tmp_path: Path
) -> None:
    assert_refused(run("evaluate", *arguments, "--out", tmp_path / "it.json"), complaint)
    assert list(tmp_path.iterdir()) == []
