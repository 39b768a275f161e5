"""`gaitforge gym evaluate`: what it prints, leaves and refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from tests.collectors.gym.making import make_training
from tests.flows.gym_stores import TINY, make_gym_store
from tests.pipeline.command_line import Run, assert_refused

pytest.importorskip("gymnasium")

Gym = Callable[..., str]


@pytest.fixture
def gym(run: Run) -> Gym:
    """gym(*arguments) runs `gaitforge gym` and returns what it printed."""

    def in_this_process(*arguments: str | Path) -> str:
        outcome = run("gym", *arguments)
        assert outcome.code == 0, outcome.err
        return outcome.out

    return in_this_process


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
    trained: Path, policies: Path, gym: Gym, tmp_path: Path
) -> None:
    asked = ["--env", "Hopper-v5", "--episodes", "2", "--seed", "3", "--json"]
    kept = tmp_path / "fcnet.json"
    learned = json.loads(
        gym(
            "evaluate",
            trained,
            *asked,
            "--policies",
            policies,
            "--return-target",
            "0.5",
            "--out",
            kept,
        )
    )
    assert learned == read_record(kept)
    assert learned["policy"] == "fcnet"
    assert learned["return_target"] == 0.5
    expert = json.loads(gym("evaluate", policies, *asked, "--quality", "medium"))
    assert (expert["policy"], expert["references"]["expert"]) == ("medium", 300.0)
    assert expert["normalised"]["mean"] is not None, "the experts' own returns are known"
    random = json.loads(gym("evaluate", "random", *asked))
    assert random["references"]["expert"] > 3000, "by the policies that ship"
    assert abs(random["normalised"]["mean"]) < 5
    shipped = json.loads(gym("evaluate", "expert", *asked))
    assert shipped["normalised"]["mean"] > 70


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["evaluate", "{none}", "--env", "Hopper-v5"], "no finished training in"),
        (["evaluate", "random", "--env", "Ant-v5"], "no task 'Ant-v5'"),
        (["evaluate", "random", "--env", "Hopper-v5", "--set", "environments=0"], "at least 1"),
        (["evaluate", "random", "--env", "Hopper-v5", "--set", "env=HalfCheetah-v5"], "--env choo"),
        (
            ["evaluate", "random", "--env", "Hopper-v5", "--set", 'references={"random":0}'],
            "'references' is a group of settings",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_input_is_refused_before_anything_starts(
    run: Run, arguments: list[str], complaint: str, store: Path, tmp_path: Path
) -> None:
    places = {"{none}": tmp_path / "none", "{store}": store}
    assert_refused(run("gym", *(places.get(word, word) for word in arguments)), complaint)
    assert list(tmp_path.iterdir()) == []
