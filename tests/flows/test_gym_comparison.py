"""A comparison on a task's sets: what is run, what is kept, and what stands beside it."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import flows.stages.gym.comparison
import flows.stages.gym.evaluation
from datasets.files import exclusive_lock
from flows.progress import Silent
from flows.stages.gym.comparison import COMPARISON, GymComparisonPlan, run_gym_comparison
from flows.stages.gym.evaluation import GymEvaluationPlan
from learners.models.registry import preset
from learners.training.config import TrainConfig
from tests.collectors.gym.making import make_training
from tests.flows.gym_stores import RETURNS, make_gym_store
from tests.flows.making import Counting
from tests.flows.processes import soon

pytest.importorskip("gymnasium")

CONFIG = TrainConfig(
    objective="return",
    return_zero=None,
    steps=2,
    batch_size=4,
    window_len=8,
    held_out_fraction=0.3,
    split_seed=0,
    history_every=1,
    validation_every=2,
    validation_batches=1,
    threads=1,
)
OWN = {
    "fcnet": {"model_overrides": {"hidden_dim": 8, "decoder_dim": 8, "n_layers": 1, "n_modes": 2}},
    "dt": {"model_overrides": {"hidden_dim": 8, "n_layers": 1, "context_len": 5}},
    "mlp": {"model_overrides": {"hidden_dim": 8, "n_layers": 1}, "objective": "bc"},
}
PLAN = GymComparisonPlan(
    config=CONFIG,
    own=OWN,
    evaluate=GymEvaluationPlan(episodes=3, environments=3),
    seeds=(0, 1),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_gym_store(tmp_path_factory.mktemp("compare") / "hopper.zarr")


@pytest.fixture(scope="module")
def compared(store: Path) -> Path:
    """The folder of a finished comparison."""
    out = store.parent / "out"
    run_gym_comparison(PLAN, store, out, Silent())
    return out


def record_in(out: Path) -> dict[str, Any]:
    return json.loads((out / COMPARISON).read_text())


def test_every_set_model_and_seed_is_a_run(compared: Path) -> None:
    record = record_in(compared)
    assert list(record["sets"]) == ["medium", "medium-replay", "medium-expert"]
    assert [(r["set"], r["model"], r["seeds"]) for r in record["results"]] == [
        (name, model, [0, 1]) for name in record["sets"] for model in ("fcnet", "dt")
    ]
    assert len(record["runs"]) == 12
    for result in record["results"]:
        own = [
            run["normalised"]
            for run in record["runs"]
            if (run["set"], run["model"]) == (result["set"], result["model"])
        ]
        assert result["normalised"]["mean"] == pytest.approx(sum(own) / 2)
        assert result["return_target"] == (1.15 if result["set"] == "medium-expert" else 1.0)
    assert record["references"] == {**RETURNS, "source": "the store"}
    assert record["left_out"] == []


def test_seeds_come_one_after_the_other() -> None:
    names = [run.name for run in PLAN.runs()]
    assert names[:3] == ["medium-fcnet-seed-0", "medium-dt-seed-0", "medium-replay-fcnet-seed-0"]
    assert [name[-1] for name in names] == ["0"] * 6 + ["1"] * 6


def test_the_data_stand_beside_the_models(compared: Path) -> None:
    sets = record_in(compared)["sets"]
    assert [each["episodes"] for each in sets.values()] == [12, 11, 24]
    assert [each["cut_off_episodes"] for each in sets.values()] == [0, 1, 0]
    assert sets["medium-expert"]["qualities"] == ["medium", "expert"]
    assert sets["medium-expert"]["steps"] > sets["medium"]["steps"]
    for each in sets.values():
        assert each["normalised"] == pytest.approx(100 * (each["return"] + 5) / 305)
        assert each["normalised"] < each["normalised_best"]


def test_every_policy_is_also_asked_for_the_best_that_it_learned_from(compared: Path) -> None:
    record = record_in(compared)
    for run in record["runs"]:
        asked = json.loads((compared / "evaluate" / f"{run['run']}-asked-best.json").read_text())
        best = record["sets"][run["set"]]["return_best"]
        assert asked["return_target"] == pytest.approx((best + 5) / 305)
        assert asked["normalised"]["mean"] == run["normalised_asked_best"]


def test_runs_are_trained_with_the_experts_return_as_scale(compared: Path) -> None:
    for run in (compared / "train").iterdir():
        config = json.loads((run / "plan.json").read_text())["plan"]["config"]
        assert config["return_scale"] == RETURNS["expert"]
        assert config["return_zero"] == RETURNS["random"]
        assert config["seed"] == int(run.name[-1])


def test_a_finished_comparison_returns_at_once(compared: Path, store: Path) -> None:
    before, counting = record_in(compared), Counting()
    assert run_gym_comparison(PLAN, store, compared, counting) == before
    assert sum(counting.units.values()) == 0


def test_parts_of_a_comparison_make_the_whole(compared: Path, store: Path, tmp_path: Path) -> None:
    """Calls on runs of their own, one after the other."""
    out, plan = tmp_path / "out", replace(PLAN, seeds=(1,))
    run_gym_comparison(replace(plan, only=("medium-expert",), models=("dt",)), store, out, Silent())
    run_gym_comparison(replace(plan, only=("medium",), models=("fcnet",)), store, out, Silent())
    record = run_gym_comparison(replace(plan, only=("medium-expert",)), store, out, Silent())
    whole = {run["run"]: run for run in without_times(record_in(compared))}
    assert without_times(record) == [
        whole["medium-fcnet-seed-1"],
        whole["medium-expert-fcnet-seed-1"],
        whole["medium-expert-dt-seed-1"],
    ]


def test_a_run_is_one_processs_at_a_time(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    plan = replace(PLAN, seeds=(0,), models=("fcnet",), only=("medium",))
    said: list[str] = []

    class Telling(Silent):
        """A reporter that keeps what is said."""

        def say(self, text: str) -> None:
            said.append(text)

    work = threading.Thread(target=run_gym_comparison, args=(plan, store, out, Telling()))
    (out / "train").mkdir(parents=True)
    with exclusive_lock(out / "train" / ".medium-fcnet-seed-0.lock"):
        work.start()
        soon(lambda: said)
        assert list((out / "train").glob("medium*")) == [], "the other's files stay as they are"
    work.join()
    assert said == ["medium-fcnet-seed-0: waiting for another process, which works on it"]
    assert [run["run"] for run in record_in(out)["runs"]] == ["medium-fcnet-seed-0"]
    assert list((out / "train").glob(".*")) == []


def test_runs_in_another_simulation_are_made_again(
    compared: Path, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, counting = tmp_path / "out", Counting()
    shutil.copytree(compared, out)
    for module in (flows.stages.gym.comparison, flows.stages.gym.evaluation):
        monkeypatch.setattr(module, "package_version", lambda task: "gymnasium 9, mujoco 9")
    plan = replace(PLAN, seeds=(0,), models=("fcnet",), only=("medium",))
    record = run_gym_comparison(plan, store, out, counting)
    assert [run["simulation"] for run in record["runs"]] == ["gymnasium 9, mujoco 9"]
    assert len(record["left_out"]) == 11
    assert sum(counting.units.values()) == 2 * PLAN.evaluate.episodes


def test_sets_and_targets_of_ones_own(store: Path, tmp_path: Path) -> None:
    sets = {"all": ["medium", "expert"], "medium": ["medium"]}
    own = replace(PLAN, sets=sets, return_targets={"medium": 0.5})
    assert [own.return_target(name) for name in sets] == [1.0, 0.5]
    assert PLAN.return_target("medium-expert") == 1.15
    plan = replace(own, seeds=(0,), models=("fcnet",))
    record = run_gym_comparison(plan, store, tmp_path / "out", Silent())
    assert [run["return_target"] for run in record["runs"]] == [1.0, 0.5]
    assert record["plan"]["return_targets"] == {"all": 1.0, "medium": 0.5}


def without_times(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{k: v for k, v in run.items() if k != "train_s"} for run in record["runs"]]


def test_runs_with_other_settings_are_named_and_left_out(
    compared: Path, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(compared, out)
    changed = replace(
        PLAN, evaluate=replace(PLAN.evaluate, episodes=4), only=("medium",), seeds=(0,)
    )
    record = run_gym_comparison(changed, store, out, Silent())
    assert [run["run"] for run in record["runs"]] == ["medium-fcnet-seed-0", "medium-dt-seed-0"]
    assert len(record["left_out"]) == 10
    budget = replace(PLAN, config=replace(CONFIG, steps=3))
    with pytest.raises(ValueError, match="holds a run with another steps"):
        run_gym_comparison(budget, store, out, Silent())


def test_a_model_without_return_may_stand_beside(store: Path, tmp_path: Path) -> None:
    plan = replace(PLAN, models=("mlp",), seeds=(0,), only=("medium",))
    record = run_gym_comparison(plan, store, tmp_path / "out", Silent())
    assert record["results"][0]["objective"] == "bc"
    assert record["results"][0]["normalised"]["std"] is None


def test_measured_returns_of_the_experts_come_first(store: Path, tmp_path: Path) -> None:
    policies = make_training(tmp_path / "experts")
    plan = replace(PLAN, policies=str(policies), models=("fcnet",), seeds=(0,), only=("medium",))
    record = run_gym_comparison(plan, store, tmp_path / "out", Silent())
    assert record["references"]["source"] == "the experts' recipe"
    elsewhere = shutil.copytree(policies, tmp_path / "moved")
    moved = replace(plan, policies=str(elsewhere), only=("medium-expert",))
    both = run_gym_comparison(moved, store, tmp_path / "out", Silent())
    assert (len(both["runs"]), both["left_out"]) == (2, []), "where the experts lie is no setting"


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"env": "Ant-v5"}, "no task 'Ant-v5'"),
        ({"models": ()}, "a comparison needs models, each once"),
        ({"seeds": (1, 1)}, "a comparison needs seeds, each once"),
        ({"models": ("rnn",)}, "no model 'rnn'"),
        ({"only": ("random",)}, "no set random; allowed: medium, medium-replay, medium-expert"),
        ({"return_targets": {"random": 1.0}}, "no set random; allowed: medium, medium-replay, m"),
        ({"return_targets": {"medium": "1"}}, "return_targets needs a finite number for medium"),
        ({"return_targets": {"medium": float("nan")}}, "needs a finite number for medium, not nan"),
        ({"return_targets": [1.0]}, "return_targets must be like"),
        ({"sets": {"medium": "medium"}}, "sets must be like"),
        ({"sets": {"medium": [1]}}, "sets must be like"),
        ({"sets": {"medium": 3}}, "sets must be like"),
        ({"sets": ["medium"]}, "sets must be like"),
        ({"sets": {}}, "sets must be like"),
        ({"sets": {"a/b": ["medium"]}}, "a set's name is letters, digits"),
        ({"config": replace(CONFIG, seed=3)}, "config.seed is set by the comparison"),
        ({"config": replace(CONFIG, return_scale=9.0)}, "config.return_scale is set by"),
        ({"config": replace(CONFIG, split_seed=None)}, "a config.split_seed"),
        ({"evaluate": GymEvaluationPlan(return_target=2.0)}, "evaluate.return_target is set"),
        ({"own": {"rnn": {}}}, "own: no model 'rnn'"),
        ({"own": {"dt": {"steps": 3}}}, "own: dt cannot have its own steps"),
        ({"own": {"dt": 3}}, "own must be like"),
    ],
    ids=str,
)
def test_impossible_plans_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(PLAN, **values)


@pytest.mark.parametrize(
    ("made", "values", "complaint"),
    [
        ({"env": "Walker2d-v5"}, {}, "is of walker2d, but Hopper-v5 is hopper"),
        ({"references": False}, {}, "has no reference returns"),
        ({"qualities": ("medium", "expert")}, {"only": ("medium-replay",)}, "medium-replay"),
        ({"qualities": ("medium", "medium-replay")}, {"only": ("medium-expert",)}, "expert"),
    ],
)
def test_data_that_do_not_fit_are_refused_before_anything_is_trained(
    made: dict[str, Any], values: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    store = make_gym_store(tmp_path / "it.zarr", episodes=3, **made)
    with pytest.raises(ValueError, match=complaint):
        run_gym_comparison(replace(PLAN, **values), store, tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


def test_the_papers_sizes_can_be_asked_for() -> None:
    plan = GymComparisonPlan(models=("fcnet-d4rl-hopper", "dt"))
    config = plan.train_config("fcnet-d4rl-hopper", 0, return_scale=3000.0)
    assert preset(config.model, config.model_overrides).config.hidden_dim == 512
    own = plan.train_config("dt", 0, return_scale=3000.0)
    assert preset(own.model, own.model_overrides).config.context_len == own.window_len == 20
