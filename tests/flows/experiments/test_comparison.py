"""Models compared on a tiny store: the same data for all, nothing twice, numbers that agree."""

import json
import math
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from gaitforge.collectors.robots.robot import DEFAULT_ROBOT, list_robots
from gaitforge.common.interrupts import INTERRUPTED, STOPPED, Stopped
from gaitforge.datasets import Selection, open_store
from gaitforge.flows.experiments.claim import Claim, claimed
from gaitforge.flows.experiments.plan import Experiment
from gaitforge.flows.progress import Advance, Reporter, Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.learners.checkpoint import CHECKPOINT, load_policy, read_checkpoint
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.policy_network import PolicyNetwork
from gaitforge.learners.training import train
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import split_episodes
from gaitforge.pipeline.presets.choices import chosen_claim
from gaitforge.pipeline.presets.experiments import experiment_preset
from gaitforge.pipeline.report.experiment import stages_of
from tests.flows.making import COLLECT, Counting, Interrupting, Stop, run_experiment
from tests.learners import making
from tests.learners.making import SMALL

PLAN = Experiment(
    {
        "fcnet": {"model_overrides": SMALL["fcnet"], "peak_lr": 0.004},
        "mlp": {"model_overrides": {"hidden_dim": 16, "n_layers": 1}},
    },
    seeds=(0, 5),
    settings={
        "steps": 4,
        "batch_size": 4,
        "window_len": 16,
        "held_out_fraction": 0.3,
        "split_seed": 0,
        "history_every": 1,
        "validation_every": 2,
        "validation_batches": 1,
        "checkpoint_every": 1,
    },
    recommended=False,
    tested=True,
    evaluate={
        "terrains": ("flat", "rough"),
        "skills": ("stand", "run"),
        "levels": (2,),
        "episodes": 1,
        "robots": 4,
    },
)
MLP = replace(PLAN, learners={"mlp": PLAN.learners["mlp"]}, seeds=(0,))
RUNS = ["fcnet-seed-0", "mlp-seed-0", "fcnet-seed-5", "mlp-seed-5"]


def compare(plan: Experiment, store: Path, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Run or resume an experiment on a store, without its pages; its summary."""
    return run_experiment(Claim("compare", plan, (str(store),)), out, reporter)


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
            compare(PLAN, store, out, InterruptingIn(interrupted))
        assert not (out / "summary.json").exists()
    return out, compare(PLAN, store, out, Silent())


class InterruptingIn(Interrupting):
    """Raises in the step of this name, once it has done some work."""

    def __init__(self, name: str) -> None:
        super().__init__(after=1)
        self.name = name

    def step(self, name: str, total: int, unit: str, done: int = 0) -> Any:
        """See `gaitforge.flows.progress.Reporter.step`."""
        if name.split("  ")[-1] != self.name:
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
            yield (
                lambda n, note: (
                    signal.raise_signal(self.number) if name.endswith(self.name) else None
                )
            )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR2])
def test_after_a_signal_at_a_trainings_end_the_next_one_does_not_start(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    # Then the one report of a training comes after its last save.
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", math.inf)
    with pytest.raises(Stopped) as stopped:
        compare(PLAN, store, tmp_path, SignallingIn(f"train {RUNS[0]}", number))
    assert stopped.value.exit_code == (INTERRUPTED if number == signal.SIGINT else STOPPED)
    assert [path.name for path in (tmp_path / "train").iterdir()] == RUNS[:1]
    assert read_checkpoint(tmp_path / "train" / RUNS[0]).card["finished"]


@pytest.mark.slow
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
    held_out = {
        json.loads(path.read_text())["key"]["held_out"] for path in out.glob("test/*-[0-9].json")
    }
    assert held_out == {record["sets"][0]["held_out"]["selection"]}
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
    assert compare(PLAN, store, out, counting) == record
    assert counting.units == {}


@pytest.mark.slow
def test_interruptions_change_no_weights(store: Path, compared: Compared, tmp_path: Path) -> None:
    """One model and seed alone, at one go, comes to the same network."""
    out, record = compared
    alone = compare(MLP, store, tmp_path / "alone", Silent())
    mine, its = (
        load_file(folder / "train" / "mlp-seed-0" / CHECKPOINT)
        for folder in (out, tmp_path / "alone")
    )
    assert mine.keys() == its.keys()
    for name, value in mine.items():
        np.testing.assert_array_equal(value, its[name])
    assert alone["runs"][0]["test_mse"] == record["runs"][1]["test_mse"]
    assert alone["results"][0]["test_mse"]["std"] is None


def test_a_finished_experiment_takes_a_further_seed(store: Path, compared: Compared) -> None:
    out, _ = compared
    counting = Counting()
    further = compare(replace(PLAN, seeds=(0, 5, 6)), store, out, counting)
    worked = {name.split("  ")[1] for name, units in counting.units.items() if units}
    new = (f"{learner}-seed-6" for learner in PLAN.learners)
    assert worked == {f"{step} {run}" for run in new for step in ("train", "test", "evaluate")}
    assert further["results"][0]["seeds"] == [0, 5, 6]


def test_a_lost_checkpoint_is_said_and_not_trained_anew(store: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    before = compare(MLP, store, out, Silent())
    (out / "train" / "mlp-seed-0" / CHECKPOINT).unlink()
    assert compare(MLP, store, out, Silent()) == before, "its row is there"
    (out / "runs" / "mlp-seed-0.json").unlink()
    counting = Counting()
    with pytest.raises(ValueError, match=r"evaluate mlp-seed-0: no checkpoint in .*mlp-seed-0"):
        compare(MLP, store, out, counting)
    assert counting.units == {}


def test_the_numbers_are_those_of_the_files_beside_them(compared: Compared) -> None:
    out, record = compared
    expert = json.loads((out / "evaluate" / "expert.json").read_text())
    for run in record["runs"]:
        evaluated = json.loads((out / "evaluate" / f"{run['run']}.json").read_text())
        tested = json.loads((out / "test" / f"{run['run']}.json").read_text())
        _, card = read_checkpoint(out / "train" / run["run"])
        learned = json.loads((out / "test" / f"{run['run']}-train.json").read_text())
        assert run["test_mse"] == tested["mse"]
        assert run["train_mse"] == learned["mse"] != tested["mse"]
        held_out = record["sets"][0]["held_out"]
        assert (tested["episodes"], tested["steps"]) == (held_out["episodes"], held_out["steps"])
        assert run["return_fraction"] == pytest.approx(evaluated["return"] / expert["return"])
        assert run["parameters"] == card["parameters"] == evaluated["parameters"]
        assert run["train_s"] == card["progress"]["train_s"]
    assert record["expert"]["return_fraction"] == 1.0
    for model in record["results"]:
        runs = [run for run in record["runs"] if run["learner"] == model["learner"]]
        losses = [run["test_mse"] for run in runs]
        assert model["test_mse"]["mean"] == pytest.approx(np.mean(losses))
        assert model["test_mse"]["std"] == pytest.approx(np.std(losses, ddof=1))
        assert model["train_mse"]["mean"] == pytest.approx(np.mean([r["train_mse"] for r in runs]))
        assert [cell["skill"] for cell in model["skills"]] == ["run", "stand"]
        assert len(model["cells"]) == len(record["expert"]["cells"]) == 4
        single = model["return_ci95"]
        assert single is None, "one episode per cell has no spread"
        assert model["success_ci95"][0] <= model["success"]["mean"] <= model["success_ci95"][1]
    assert record["sets"][0]["episodes"] == 24


def test_the_held_out_error_is_that_of_the_recurrent_policy_on_whole_episodes(
    store: Path, compared: Compared
) -> None:
    """Computed again step by step, as in control."""
    out, record = compared
    held_out = split_episodes(PLAN.config("mlp", 0), open_store(store).select()).held_out
    assert held_out is not None
    policy = load_policy(out / "train" / RUNS[0])
    assert record["runs"][0]["test_mse"] == pytest.approx(error_of(policy, held_out), rel=1e-4)
    every = open_store(store).select()
    learned = every.with_rows(every.rows[~np.isin(every.rows, held_out.rows)])
    share = learned.with_rows(learned.rows[:: len(learned) // len(held_out)])
    assert record["runs"][0]["train_mse"] == pytest.approx(error_of(policy, share), rel=1e-4)


def error_of(policy: PolicyNetwork, episodes: Selection) -> float:
    """The mean squared error of a policy without conditions, step by step as in control."""
    assert not policy.conditioned
    total = 0.0
    with torch.inference_mode():
        for index in range(len(episodes)):
            episode = episodes.episode(index)
            state = policy.init_state(1)
            for obs, action in zip(episode["obs"], episode["action"], strict=True):
                chosen, state = policy.step(torch.from_numpy(obs)[None], state)
                gap = (chosen[0] - torch.from_numpy(action)) / policy.action_normaliser.std
                total += float(gap.square().mean())
    return total / episodes.steps


@pytest.mark.slow
def test_the_error_of_a_gaussian_policy_is_that_of_its_means(store: Path, tmp_path: Path) -> None:
    cells = {"terrains": ("flat",), "skills": ("stand",), "robots": 1}
    settings = {**PLAN.settings, "objective": "gaussian-bc", "steps": 1}
    plan = replace(MLP, settings=settings, evaluate={**PLAN.evaluate, **cells})
    record = compare(plan, store, tmp_path / "out", Silent())
    policy = load_policy(tmp_path / "out" / "train" / "mlp-seed-0")
    held_out = split_episodes(plan.config("mlp", 0), open_store(store).select()).held_out
    assert held_out is not None
    assert record["runs"][0]["test_mse"] == pytest.approx(error_of(policy, held_out), rel=1e-4)


@pytest.mark.slow
def test_with_a_time_each_model_has_the_steps_that_fit_and_keeps_them(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "WARM_UP_S", 0.02)
    monkeypatch.setattr(train, "MEASURED_S", 0.1)
    learners = {**PLAN.learners, "mlp": {**PLAN.learners["mlp"], "window_len": 1}}
    settings = {k: v for k, v in PLAN.settings.items() if k not in ("steps", "window_len")}
    timed = replace(PLAN, train_s=0.1, learners=learners, settings=settings, curve=3)
    record = compare(replace(timed, seeds=(0,)), store, tmp_path, Silent())
    for row in record["results"]:
        measured = json.loads((tmp_path / "pace" / f"{row['learner']}.json").read_text())
        assert row["steps"] == measured["steps"] == max(1, round(0.1 * measured["updates_per_s"]))
    for run in record["runs"]:
        steps = [step for step, _ in run["curve"]]
        assert len(steps) == min(3, run["steps"])
        assert steps[-1] == run["steps"]
        kept = [*(tmp_path / "train" / run["run"]).glob("step-*.safetensors")]
        assert len(steps) - 1 <= len(kept) <= 5
    windows = {
        name: _trained_config(tmp_path, f"{name}-seed-0")["window_len"] for name in ("fcnet", "mlp")
    }
    assert windows == {"fcnet": PRESETS["fcnet"].training["window_len"], "mlp": 1}
    more = compare(timed, store, tmp_path, Silent())
    assert [row["steps"] for row in more["results"]] == [row["steps"] for row in record["results"]]


@pytest.mark.slow
def test_a_number_that_varies_is_a_run_for_each_of_its_values(store: Path, tmp_path: Path) -> None:
    plan = replace(MLP, vary={"data": (0.5, 1.0)}, tested=False)
    record = compare(plan, store, tmp_path, Silent())
    assert [run["run"] for run in record["runs"]] == ["mlp-0.5-seed-0", "mlp-1-seed-0"]
    assert [result["value"] for result in record["results"]] == [0.5, 1.0]
    half, whole = (read_checkpoint(tmp_path / "train" / run["run"])[1] for run in record["runs"])
    assert half["dataset_hash"] != whole["dataset_hash"]


def _trained_config(out: Path, run: str) -> dict[str, Any]:
    return read_checkpoint(out / "train" / run)[1]["train_config"]


def test_other_settings_in_the_same_folder_are_refused(store: Path, compared: Compared) -> None:
    out, _ = compared
    before = (out / "summary.json").read_bytes()
    kept = claimed(out).experiment  # another test may have added a seed
    with pytest.raises(ValueError, match="holds an experiment with another steps for learner"):
        compare(replace(kept, settings={**PLAN.settings, "steps": 5}), store, out, Silent())
    assert (out / "summary.json").read_bytes() == before


def test_what_cannot_be_evaluated_is_refused_before_any_training(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = {"last_action": (0, 12), "everything_else": (12, 70)}
    monkeypatch.setattr(making, "OBS_SLICES", other)
    making.make_selection(tmp_path / "walks.zarr")
    with pytest.raises(ValueError, match="no policy can be evaluated"):
        compare(PLAN, tmp_path / "walks.zarr", tmp_path / "out", Silent())
    with pytest.raises(ValueError, match="no expert 'nobody'"):
        compare(replace(PLAN, expert="nobody"), store, tmp_path / "out", Silent())
    other_robot = next(name for name in list_robots() if name != DEFAULT_ROBOT)
    evaluate, expert = {**PLAN.evaluate, "robot": other_robot}, f"{DEFAULT_ROBOT}-locomotion"
    with pytest.raises(ValueError, match=f"but the learners drive {other_robot}"):
        compare(replace(PLAN, evaluate=evaluate, expert=expert), store, tmp_path / "out", Silent())
    assert not (tmp_path / "out" / "train").exists()


def test_the_grid_by_default_is_that_of_the_data(store: Path, tmp_path: Path) -> None:
    def cells(chosen: dict[str, Any]) -> Any:
        plan = replace(PLAN, evaluate={})
        return chosen_claim("x", plan, (str(store),), chosen, (), tmp_path).experiment.evaluate

    assert cells({}) == {
        "terrains": ("flat", "rough"),
        "skills": ("stand", "run"),
        "levels": (2,),
        "episodes": 20,
    }
    narrow = cells({"where": "skill = 'run'", "episodes": 3})
    assert (narrow["skills"], narrow["episodes"]) == (("run",), 3)


@pytest.mark.parametrize("name", ["compare", "dagger"])
def test_the_expert_that_scores_and_labels_is_of_the_stores_robot(
    name: str, tmp_path: Path
) -> None:
    grid = replace(COLLECT.grid, skills=("stand",), parts=2, episodes_per_part=1)
    plan = experiment_preset(name)

    def expert(store: Path, **chosen: Any) -> str:
        made = chosen_claim(name, plan, (str(store),), chosen, (), tmp_path / "out")
        assert stages_of(made, tmp_path / "out")
        return made.experiment.scoring_expert

    collect(replace(COLLECT, grid=grid, expert="go1-locomotion"), tmp_path / "go1.zarr", Silent())
    assert expert(tmp_path / "go1.zarr") == "go1-locomotion"
    with pytest.raises(ValueError, match="drives aliengo, but the learners drive go1"):
        expert(tmp_path / "go1.zarr", expert="aliengo-locomotion")
    both = replace(COLLECT, grid=grid, expert="go1-locomotion,aliengo-locomotion")
    collect(both, tmp_path / "both.zarr", Silent())
    with pytest.raises(ValueError, match="has several robots; name some"):
        expert(tmp_path / "both.zarr")
