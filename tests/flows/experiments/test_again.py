"""An experiment's folder that is run again: what is made anew, and what is not."""

import shutil
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import Selection, open_store
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.plan import Corrections, DataSet, Experiment, Published
from gaitforge.flows.experiments.runs import LearnerRun
from gaitforge.flows.experiments.summary import with_page
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.policy_sources import RUN, PolicySource
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import HeldOutError, held_out_error, split_episodes
from tests.flows.experiments.points import PointsEvaluation
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
RUNS = "gaitforge.flows.experiments.runs"


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

    monkeypatch.setattr(f"{RUNS}.updates_per_s", rate)
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


def test_all_seeds_of_a_learner_have_as_many_steps_whatever_is_added_when(
    store: str, tmp_path: Path, paces: list[object]
) -> None:
    """Neither a first seed that comes later nor another device or number of threads is timed."""
    timed = replace(PLAN, learners={"mlp": MLP}, train_s=2.0, seeds=(3,))
    again(timed, store, tmp_path)
    free = {"threads": 2, "checkpoint_every": 7, "accumulate": 2}
    more = replace(timed, learners={"mlp": {**MLP, **free}}, seeds=(0, 3))
    runs = again(more, store, tmp_path)[0]["runs"]
    assert [run["steps"] for run in runs] == [2, 2]
    assert len(paces) == 1
    shutil.rmtree(tmp_path / "pace")
    runs = again(replace(more, seeds=(0, 3, 4)), store, tmp_path)[0]["runs"]
    assert [run["steps"] for run in runs] == [2, 2, 2], "whatever the pace is now"


@pytest.mark.parametrize("train_s", [None, 3.0])
def test_steps_grow_with_the_episodes_of_a_round_but_a_time_does_not(
    train_s: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_gym_store(tmp_path / "hopper.zarr")
    parts = tuple(open_store(path).parts())
    corrections = Corrections(driver={**MLP, **STEPS})
    plan = replace(PLAN, corrections=corrections, select=SelectPlan(parts=parts[:1]))
    plan = replace(plan, train_s=train_s)
    steps: list[int] = []
    monkeypatch.setattr(LearnerRun, "_round", lambda self, corrections, k: [parts[k]])
    monkeypatch.setattr(f"{RUNS}.run_training", lambda plan, *_: steps.append(plan.config.steps))
    monkeypatch.setattr(f"{RUNS}.updates_per_s", lambda *_: 5.0)
    for k in range(3):
        data = DataSet(f"round-{k}", rounds=k)
        run = LearnerRun(plan, tmp_path, path, "hopper", PointsEvaluation(), data, "mlp", 0)
        run.train(Silent())
    total = [sum(SelectPlan(parts=parts[: k + 1]).select(path).lengths) for k in range(3)]
    grown = [round(STEPS["steps"] * each / total[0]) for each in total]
    assert steps == (grown if train_s is None else [15, 15, 15])


def test_a_further_store_leaves_the_runs_of_the_first_one(store: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    again(PLAN, store, out)
    further = str(make_gym_store(tmp_path / "walker2d.zarr", env="Walker2d-v5"))
    for stores in ((further, store), (store, further)):
        counting = Counting()
        both = Claim("mine", replace(PLAN, seeds=(0, 1)), stores)
        summary = run_experiment(both, out, counting)
        named = {(run["task"], run["run"]) for run in summary["runs"]}
        assert named == {
            (task, f"{name}-seed-{seed}")
            for task, name in (("hopper", "mlp"), ("walker2d", "walker2d-mlp"))
            for seed in (0, 1)
        }
        worked = {name.split("  ")[1] for name in counting.units if "train" in name}
        new = {f"train {run}" for _, run in named if run != "mlp-seed-0"}
        assert worked == (new if stores[0] == further else set())


def test_seeds_that_would_begin_with_other_weights_are_refused(store: str, tmp_path: Path) -> None:
    first, out = tmp_path / "first", tmp_path / "out"

    def train_first(**settings: Any) -> None:
        shutil.rmtree(first, ignore_errors=True)
        config = TrainConfig(**{**MLP, **STEPS, **settings})
        run_training(TrainPlan(SelectPlan(), config), store, first, Silent())

    def plan(*seeds: int) -> Experiment:
        return replace(PLAN, learners={"mlp": {**MLP, **STEPS, "start_from": str(first)}},
                       seeds=seeds)  # fmt: skip

    train_first()
    shutil.copytree(first, tmp_path / "kept")
    again(plan(0), store, out)
    train_first(seed=9)
    assert again(plan(0), store, out)[1] == set(), "what is finished stays so"
    with pytest.raises(ValueError, match="is not the policy that mlp-seed-0") as refused:
        again(plan(0, 1), store, out)
    assert "\n" not in str(refused.value)
    shutil.rmtree(first)
    (tmp_path / "kept").rename(first)
    assert len(again(plan(0, 1), store, out)[0]["runs"]) == 2


@pytest.mark.parametrize(
    ("vary", "best"),
    [({"episodes": (4, 30)}, {}), ({"data": (0.2,)}, {}), ({}, {"best": 0.3})],
)
def test_the_error_of_training_is_of_episodes_that_a_run_was_trained_on(
    vary: dict[str, Any],
    best: dict[str, Any],
    store: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tested: list[Selection] = []
    learned: list[Selection] = []

    def error(policy: PolicyNetwork, episodes: Selection, *rest: Any) -> HeldOutError:
        tested.append(episodes)
        return held_out_error(policy, episodes, *rest)

    held = {"held_out_fraction": 0.2, "split_seed": 0}
    learners = {"mlp": {**MLP, **STEPS, **held, **best}}
    monkeypatch.setattr(f"{RUNS}.held_out_error", error)

    def noted(plan: TrainPlan, *rest: Any) -> Any:
        learned.append(split_episodes(plan.config, plan.selection(rest[0])).train)
        return run_training(plan, *rest)

    monkeypatch.setattr(f"{RUNS}.run_training", noted)
    again(replace(PLAN, learners=learners, tested=True, vary=vary), store, tmp_path)
    assert len(tested) == 2 * len(learned) > 0
    for mine, seen in zip(tested[1::2], learned, strict=True):
        assert set(mine.rows) <= set(seen.rows)
        assert len(mine) >= min(len(seen), len(tested[0]))
