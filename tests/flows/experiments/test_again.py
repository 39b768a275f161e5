"""An experiment's folder that is run again: what is made anew, and what is not."""

import shutil
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Experiment, Published
from gaitforge.flows.experiments.summary import with_page
from gaitforge.flows.tasks.policy_sources import RUN, PolicySource
from tests.flows.gym_stores import make_gym_store
from tests.flows.making import Counting, run_experiment

MLP: dict[str, Any] = {
    "model": "mlp",
    "model_overrides": {"hidden_dim": 8, "n_layers": 1},
    "batch_size": 4,
    "held_out_fraction": 0.0,
    "threads": 1,
}
STEPS = {"steps": 2}
PLAN = Experiment({"mlp": {**MLP, **STEPS}}, evaluate={"episodes": 2})
RATES = "gaitforge.flows.experiments.runs.updates_per_s"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_gym_store(tmp_path_factory.mktemp("again") / "hopper.zarr"))


@pytest.fixture
def paces(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Trainings that are timed are of 1, 2, 3 … updates a second; the settings that were timed."""
    timed: list[object] = []
    rates = count(1)

    def rate(config: object, _: object) -> float:
        timed.append(config)
        return float(next(rates))

    monkeypatch.setattr(RATES, rate)
    return timed


def again(plan: Experiment, store: str, out: Path) -> tuple[dict[str, Any], set[str]]:
    """The summary of an experiment that is run, or run again, and the names of its steps."""
    counting = Counting()
    summary = run_experiment(Claim("mine", plan, (store,)), out, counting)
    return summary, {name.split("  ")[1] for name in counting.units}


def test_statements_that_are_given_later_are_told(store: str, tmp_path: Path) -> None:
    two = replace(PLAN, learners={"a": PLAN.learners["mlp"], "b": PLAN.learners["mlp"]})
    assert again(two, store, tmp_path)[0]["verdicts"] == []
    said = replace(two, published=(Published("a", "b", "Paper"),))
    summary, worked = again(said, store, tmp_path)
    assert [row["source"] for row in summary["verdicts"]] == ["Paper"]
    assert worked == set()


def test_the_summary_and_the_page_depend_on_the_plan(tmp_path: Path) -> None:
    @dataclass(frozen=True)
    class Plan:
        published: str = ""

    def keys(plan: Plan) -> list[str]:
        return [stage.key for stage in with_page([], tmp_path, plan, print, print)]

    assert keys(Plan()) == keys(Plan())
    assert not set(keys(Plan())) & set(keys(Plan("a is ahead of b")))


def test_a_policy_that_is_trained_anew_is_scored_anew(
    store: str, tmp_path: Path, paces: list[object]
) -> None:
    timed = replace(PLAN, learners={"mlp": MLP}, train_s=1.0)
    [run] = again(timed, store, tmp_path)[0]["runs"]
    for made in ("train", "pace"):
        shutil.rmtree(tmp_path / made)
    [new] = again(timed, store, tmp_path)[0]["runs"]
    assert (run["steps"], new["steps"], len(paces)) == (1, 2, 2)
    record = (tmp_path / "evaluate" / f"{run['run']}.json").read_text()
    assert PolicySource("x", RUN, str(tmp_path / "train" / run["run"])).key() in record
    assert again(timed, store, tmp_path)[1] == set()
