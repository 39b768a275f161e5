"""Models compared on a tiny store: the same data for all, nothing twice, numbers that agree."""

from __future__ import annotations

import json
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.collectors.robots.robot import DEFAULT_ROBOT, list_robots
from gaitforge.datasets import open_store
from gaitforge.datasets.interrupts import INTERRUPTED, STOPPED, Stopped
from gaitforge.flows.progress import Advance, Silent
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.comparison.legged import ComparisonPlan, comparison_grid, run_comparison
from gaitforge.flows.stages.comparison.runs import Spread, mean_and_std
from gaitforge.flows.stages.comparison.summary import summarise
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policies import PolicySource
from gaitforge.learners.checkpoint import CHECKPOINT, load_policy, read_checkpoint
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.training import pace
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.held_out import held_out_error, split_episodes
from tests.flows.making import COLLECT, Counting, Interrupting, Stop
from tests.learners import making
from tests.learners.making import SMALL

PLAN = ComparisonPlan(
    models=("fcnet", "mlp"),
    seeds=(0, 5),
    config=TrainConfig(
        steps=4,
        batch_size=4,
        window_len=16,
        held_out_fraction=0.3,
        split_seed=0,
        history_every=1,
        validation_every=2,
        validation_batches=1,
        checkpoint_every=1,
    ),
    own={
        "fcnet": {"model_overrides": SMALL["fcnet"], "peak_lr": 0.004},
        "mlp": {"model_overrides": {"hidden_dim": 16, "n_layers": 1}},
    },
    evaluate=LeggedEvaluation(
        grid=EvaluationGrid(("flat", "rough"), ("stand", "run"), (2,), episodes=1), robots=4
    ),
)
RUNS = ["fcnet-seed-0", "mlp-seed-0", "fcnet-seed-5", "mlp-seed-5"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 real episodes."""
    path = tmp_path_factory.mktemp("comparison") / "legged.zarr"
    collect(COLLECT, path, Silent())
    return path


Compared = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module")
def compared(store: Path) -> Compared:
    """The folder and record of a comparison that was interrupted twice."""
    out = store.parent / "out"
    for interrupted in ("train mlp-seed-0", "evaluate fcnet-seed-5"):
        with pytest.raises(Stop):
            run_comparison(PLAN, store, out, InterruptingIn(interrupted))
        assert not (out / "comparison.json").exists()
    return out, run_comparison(PLAN, store, out, Silent())


class InterruptingIn(Interrupting):
    """Raises in the step of this name, once it has done some work."""

    def __init__(self, name: str) -> None:
        super().__init__(after=1)
        self.name = name

    def step(self, name: str, total: int, unit: str, done: int = 0) -> Any:
        """See `gaitforge.flows.progress.Reporter.step`."""
        if name != self.name:
            return Counting.step(self, name, total, unit, done)
        return super().step(name, total, unit, done)


class SignallingIn(Counting):
    """Raises a signal in every report of the step of this name."""

    def __init__(self, name: str, number: signal.Signals) -> None:
        super().__init__()
        self.name, self.number = name, number

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        with super().step(name, total, unit, done):
            yield lambda n, note: signal.raise_signal(self.number) if name == self.name else None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_after_a_signal_at_a_trainings_end_the_next_one_does_not_start(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    # Then the one report of a training comes after its last save.
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", math.inf)
    with pytest.raises(Stopped) as stopped:
        run_comparison(PLAN, store, tmp_path, SignallingIn(f"train {RUNS[0]}", number))
    assert stopped.value.exit_code == (INTERRUPTED if number == signal.SIGINT else STOPPED)
    assert [path.name for path in (tmp_path / "train").iterdir()] == RUNS[:1]
    assert read_checkpoint(tmp_path / "train" / RUNS[0]).card["finished"]


def test_every_model_is_trained_with_every_seed_on_the_same_episodes(compared: Compared) -> None:
    out, record = compared
    assert [run["run"] for run in record["runs"]] == RUNS
    normalisers, weights = [], []
    for name in RUNS:
        tensors = load_file(out / "train" / name / CHECKPOINT)
        normalisers.append(tensors["policy.obs_normaliser.mean"])
        weights.append({key: value.tobytes() for key, value in tensors.items()})
    for other in normalisers[1:]:
        np.testing.assert_array_equal(normalisers[0], other)
    assert weights[0] != weights[2], "another seed has other weights"
    assert {json.loads(path.read_text())["key"]["held_out"] for path in out.glob("test/*")} == {
        record["held_out"]["selection"]
    }
    assert {run["steps"] for run in record["runs"]} == {4}


def test_the_held_out_episodes_follow_the_split_seed_alone(store: Path) -> None:
    everything = open_store(store).select()

    def held_out(seed: int, split_seed: int | None) -> str:
        config = TrainConfig(held_out_fraction=0.3, seed=seed, split_seed=split_seed)
        chosen = split_episodes(config, everything).held_out
        assert chosen is not None
        return chosen.hash

    assert held_out(0, 7) == held_out(1, 7) == held_out(7, None)
    assert held_out(0, None) != held_out(7, None)


def test_a_second_call_trains_tests_and_evaluates_nothing(store: Path, compared: Compared) -> None:
    out, record = compared
    counting = Counting()
    assert run_comparison(PLAN, store, out, counting) == record
    assert sum(counting.units.values()) == 0
    assert {name.split()[0] for name in counting.units} == {"train"}


def test_interruptions_change_no_weights(store: Path, compared: Compared, tmp_path: Path) -> None:
    """One model and seed alone, at one go, comes to the same network."""
    out, record = compared
    plan = replace(PLAN, models=("mlp",), seeds=(0,), own={"mlp": PLAN.own["mlp"]})
    alone = run_comparison(plan, store, tmp_path / "alone", Silent())
    mine, its = (
        load_file(folder / "train" / "mlp-seed-0" / CHECKPOINT)
        for folder in (out, tmp_path / "alone")
    )
    assert mine.keys() == its.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, its[name])
    assert alone["runs"][0]["test_mse"] == record["runs"][1]["test_mse"]
    assert alone["models"][0]["test_mse"]["std"] is None


def test_a_finished_comparison_takes_a_further_seed(store: Path, compared: Compared) -> None:
    out, _ = compared
    counting = Counting()
    plan = replace(PLAN, models=("mlp",), seeds=(0, 5, 6), own={"mlp": PLAN.own["mlp"]})
    further = run_comparison(plan, store, out, counting)
    worked = {name for name, units in counting.units.items() if units}
    assert worked == {f"{step} mlp-seed-6" for step in ("train", "test", "evaluate")}
    assert further["models"][0]["seeds"] == [0, 5, 6]


def test_the_numbers_are_those_of_the_files_beside_them(compared: Compared) -> None:
    out, record = compared
    expert = json.loads((out / "evaluate" / "expert.json").read_text())
    for run in record["runs"]:
        evaluated = json.loads((out / "evaluate" / f"{run['run']}.json").read_text())
        tested = json.loads((out / "test" / f"{run['run']}.json").read_text())
        _, card = read_checkpoint(out / "train" / run["run"])
        assert run["test_mse"] == tested["mse"]
        assert (tested["episodes"], tested["steps"]) == (
            record["held_out"]["episodes"],
            record["held_out"]["steps"],
        )
        assert run["return_fraction"] == pytest.approx(evaluated["return"] / expert["return"])
        assert run["parameters"] == card["parameters"] == evaluated["parameters"]
        assert run["train_s"] == card["progress"]["train_s"]
    assert record["expert"]["return_fraction"] == 1.0
    for model in record["models"]:
        runs = [run for run in record["runs"] if run["model"] == model["model"]]
        losses = [run["test_mse"] for run in runs]
        assert model["test_mse"]["mean"] == pytest.approx(np.mean(losses))
        assert model["test_mse"]["std"] == pytest.approx(np.std(losses, ddof=1))
        assert [cell["skill"] for cell in model["skills"]] == ["run", "stand"]
        assert len(model["cells"]) == len(record["expert"]["cells"]) == 4
        single = model["return_ci95"]
        assert single is None, "one episode per cell has no spread"
        assert model["success_ci95"][0] <= model["success"]["mean"] <= model["success_ci95"][1]
    assert record["trained_on"]["episodes"] + record["held_out"]["episodes"] == 24


def test_the_held_out_error_is_that_of_the_recurrent_policy_on_whole_episodes(
    store: Path, compared: Compared
) -> None:
    """Computed again step by step, as in control."""
    out, record = compared
    held_out = split_episodes(PLAN.config, open_store(store).select()).held_out
    assert held_out is not None
    policy = load_policy(out / "train" / RUNS[0])
    total = 0.0
    with torch.inference_mode():
        for index in range(len(held_out)):
            episode = held_out.episode(index)
            state = policy.init_state(1)
            for obs, action in zip(episode["obs"], episode["action"], strict=True):
                chosen, state = policy.step(torch.from_numpy(obs)[None], state)
                gap = (chosen[0] - torch.from_numpy(action)) / policy.action_normaliser.std
                total += float(gap.square().mean())
    assert record["runs"][0]["test_mse"] == pytest.approx(total / held_out.steps, rel=1e-4)


@pytest.mark.parametrize("objective", ["gaussian-bc", "return"])
def test_policies_of_every_objective_have_an_error(
    objective: str, store: Path, tmp_path: Path
) -> None:
    plan = replace(
        PLAN,
        models=("mlp",),
        seeds=(0,),
        own={"mlp": PLAN.own["mlp"]},
        config=replace(PLAN.config, objective=objective, steps=1),
        evaluate=LeggedEvaluation(
            grid=EvaluationGrid(("flat",), ("stand",), (2,), episodes=1), robots=1
        ),
    )
    record = run_comparison(plan, store, tmp_path / "out", Silent())
    policy = load_policy(tmp_path / "out" / "train" / "mlp-seed-0")
    held_out = split_episodes(plan.config, open_store(store).select()).held_out
    assert held_out is not None
    done: list[int] = []
    assert record["runs"][0]["test_mse"] == held_out_error(policy, held_out, done.append).mse
    assert sum(done) == held_out.steps


def test_with_a_time_each_model_has_the_steps_that_fit_and_keeps_them(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pace, "WARM_UP_S", 0.02)
    monkeypatch.setattr(pace, "MEASURED_S", 0.1)
    config = replace(PLAN.config, steps=TrainConfig.steps)
    own = {**PLAN.own, "mlp": {**PLAN.own["mlp"], "window_len": 1}}
    timed = replace(PLAN, train_s=0.1, config=config, own=own)
    record = run_comparison(replace(timed, seeds=(0,)), store, tmp_path, Silent())
    for row in record["models"]:
        measured = json.loads((tmp_path / "pace" / f"{row['model']}.json").read_text())
        assert row["steps"] == measured["steps"] == max(1, round(0.1 * measured["updates_per_s"]))
    windows = {
        name: _trained_config(tmp_path, f"{name}-seed-0")["window_len"] for name in ("fcnet", "mlp")
    }
    assert windows == {"fcnet": PRESETS["fcnet"].training["window_len"], "mlp": 1}
    more = run_comparison(timed, store, tmp_path, Silent())
    assert [row["steps"] for row in more["models"]] == [row["steps"] for row in record["models"]]


def _trained_config(out: Path, run: str) -> dict[str, Any]:
    return read_checkpoint(out / "train" / run)[1]["train_config"]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda: replace(PLAN, models=("fcnet", "rnn"), own={}), "no model 'rnn'; allowed: fcnet"),
        (lambda: replace(PLAN, models=()), "needs models, each once"),
        (lambda: replace(PLAN, models=("mlp", "mlp"), own={}), "needs models, each once"),
        (lambda: replace(PLAN, seeds=(1, 1)), "needs seeds, each once"),
        (lambda: replace(PLAN, seeds=(-1,)), "seed must not be negative"),
        (lambda: replace(PLAN, models=("mlp",)), "own: no model .fcnet.; allowed: mlp"),
        (lambda: _own({"mlp": {"steps": 9}}), "own: mlp cannot have its own steps"),
        (lambda: _own({"mlp": {"peak_lr": "fast"}}), "the own settings of mlp"),
        (lambda: _own({"mlp": {"model_overrides": {"depth": 3}}}), "no setting 'depth'"),
        (lambda: _own({"mlp": {"model_overrides": 3}}), "the own settings of mlp"),
        (lambda: _own({"mlp": 3}), "own must be like"),
        (lambda: _config(model="bot"), "config.model is set by the comparison"),
        (lambda: _config(seed=4), "config.seed is set by the comparison"),
        (lambda: _config(split_seed=None), "a config.split_seed"),
        (lambda: replace(PLAN, train_s=1.0), "with train_s, config.steps is set by"),
        (lambda: replace(PLAN, train_s=0.0), "train_s must be above 0, got 0.0"),
        (lambda: _config(held_out_fraction=0.0), "held_out_fraction above 0"),
        (lambda: _config(split_seed=-1), "split_seed must not be negative"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_in_one_line(
    change: Callable[[], Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint) as refusal:
        change()
    assert "\n" not in str(refusal.value)


def _own(own: Any) -> ComparisonPlan:
    return replace(PLAN, own=own)


def _config(**changes: Any) -> ComparisonPlan:
    return replace(PLAN, config=replace(PLAN.config, **changes))


def test_other_settings_in_the_same_folder_are_refused(store: Path, compared: Compared) -> None:
    out, _ = compared
    before = (out / "comparison.json").read_bytes()
    with pytest.raises(ValueError, match="holds a run with another steps"):
        run_comparison(_config(steps=5), store, out, Silent())
    assert (out / "comparison.json").read_bytes() == before


def test_what_cannot_be_evaluated_is_refused_before_any_training(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"last_action": (0, 12), "everything_else": (12, 70)}
    monkeypatch.setattr(making, "OBS_SLICES", other)
    making.make_selection(tmp_path / "walks.zarr")
    with pytest.raises(ValueError, match="observation is not the one"):
        run_comparison(PLAN, tmp_path / "walks.zarr", tmp_path / "out", Silent())
    with pytest.raises(ValueError, match="no expert 'nobody'"):
        run_comparison(replace(PLAN, expert="nobody"), store, tmp_path / "out", Silent())
    other_robot = next(name for name in list_robots() if name != DEFAULT_ROBOT)
    plan = replace(PLAN, evaluate=replace(PLAN.evaluate, robot=other_robot))
    with pytest.raises(ValueError, match=f"but the models drive {other_robot}"):
        run_comparison(plan, store, tmp_path / "out", Silent())
    assert not (tmp_path / "out").exists()


def test_the_grid_by_default_is_that_of_the_data(store: Path) -> None:
    everything = open_store(store).select()
    assert comparison_grid(everything) == EvaluationGrid(
        ("flat", "rough"), ("stand", "run"), (2,), episodes=20
    )
    assert comparison_grid(everything.where("skill = 'run'"), 3).skills == ("run",)


def test_the_best_checkpoint_is_another_policy_with_a_key_of_its_own(compared: Compared) -> None:
    out, _ = compared
    folder = out / "train" / RUNS[0]
    last, best = (PolicySource("x", "run", str(folder), which).key() for which in ("last", "best"))
    assert last != best
    with pytest.raises(ValueError, match="no checkpoint 'first'; allowed: last, best"):
        PolicySource("x", "run", str(folder), "first").key()


def test_a_cell_that_the_expert_fails_has_no_fraction() -> None:
    def evaluation(value: float) -> dict[str, Any]:
        numbers = {"return": value, "success": 1.0, "survival": 1.0}
        cell = {"policy": "x", "terrain": "flat", "skill": "run", "level": 0, "episodes": 2}
        latency = {"latency_us_median": 1.0, "latency_us_p99": 2.0, "parameters": 1}
        intervals = {"return_ci95": None, "success_ci95": [0.3, 1.0], "returns": []}
        return {**numbers, **latency, **intervals, "cells": [cell | numbers]}

    run = {"model": "mlp", "seed": 0, "parameters": 1, "steps": 1, "control_steps": 1}
    run |= {"train_s": 1.0, "test_mse": 0.5, "evaluation": evaluation(1.0)}
    summary = to_tree(summarise(["mlp"], [run], evaluation(0.0)))
    assert summary["models"][0]["return_fraction"] == {"mean": None, "std": None}
    assert summary["models"][0]["cells"][0]["return_fraction"]["mean"] is None


def test_mean_and_standard_deviation() -> None:
    assert mean_and_std([1.0, 2.0, 3.0]) == Spread(2.0, 1.0)
    assert mean_and_std([4.0]) == Spread(4.0, None)
    assert mean_and_std([4.0, None]) == Spread(None, None)
