"""Data that name their expert's return: training divides by it, and evaluation asks for it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.policy import StoredObservation
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.flows.tasks.registry import run_evaluation
from gaitforge.learners.checkpoint import load_policy
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.training.config import TrainConfig
from gaitforge.plugins.gym.evaluation import GymEvaluation
from tests.flows.gym_stores import RETURNS, TINY, make_gym_store

pytest.importorskip("gymnasium")

WHOLE = "terminated or truncated"


def scale_of(store: Path, config: TrainConfig, out: Path) -> float:
    run_training(TrainPlan(SelectPlan(where=WHOLE), config), store, out, Silent())
    return float(load_policy(out).return_scale)


def test_the_stores_expert_is_what_returns_are_divided_by(tmp_path: Path) -> None:
    store = make_gym_store(tmp_path / "hopper.zarr", episodes=4)
    assert scale_of(store, TINY, tmp_path / "default") == RETURNS["expert"]
    assert scale_of(store, replace(TINY, return_scale=7.0), tmp_path / "given") == 7.0
    assert scale_of(store, replace(TINY, objective="bc"), tmp_path / "bc") == 1.0
    scored = scale_of(store, replace(TINY, return_zero=None), tmp_path / "scored")
    assert scored == RETURNS["expert"] - RETURNS["random"]
    assert float(load_policy(tmp_path / "scored").return_zero) == RETURNS["random"]
    with pytest.raises(ValueError, match="an expert's return above 400, got"):
        scale_of(store, replace(TINY, return_zero=400.0), tmp_path / "above")
    without = make_gym_store(tmp_path / "without.zarr", episodes=4, references=False)
    mean = open_store(without).select().where(WHOLE).episodes()["return"].to_numpy().mean()
    assert scale_of(without, TINY, tmp_path / "mean") == pytest.approx(mean)


@pytest.mark.parametrize("label", ["share", "driver", "advantage"])
def test_a_label_in_no_units_of_returns_is_asked_for_as_it_is(label: str, tmp_path: Path) -> None:
    """Its 1 is the data's best policy, or the highest rank, whatever return is seen as 1."""
    store = make_gym_store(tmp_path / "hopper.zarr", episodes=4)
    for name, scale in (("default", None), ("half", RETURNS["expert"] / 2)):
        config = replace(TINY, condition=(label,), return_scale=scale)
        scale_of(store, config, tmp_path / name)
        plan = run_evaluation(tmp_path / name)
        assert isinstance(plan, GymEvaluation)
        network = load_policy(tmp_path / name)
        policy = plan.driven(run_source(tmp_path / name), network, 1)
        action = policy.act(StoredObservation(np.ones((1, 11), np.float32), np.zeros(1)))
        expected = LearnedPolicy(network, 1)
        plain = expected.act(StoredObservation(np.ones((1, 11), np.float32), np.zeros(1)))
        np.testing.assert_array_equal(action, np.clip(plain, -1, 1))


def test_what_training_took_for_the_expert_is_not_corrected_again(tmp_path: Path) -> None:
    """A target of 1 asks for the expert's return, said by the run or by the references."""
    store = make_gym_store(tmp_path / "hopper.zarr", episodes=4)
    returns = []
    for name, scale, zero in (
        ("default", None, 0.0), ("given", RETURNS["expert"], 0.0), ("scored", None, None)
    ):  # fmt: skip
        scale_of(store, replace(TINY, return_scale=scale, return_zero=zero), tmp_path / name)
        plan = run_evaluation(tmp_path / name)
        assert isinstance(plan, GymEvaluation)
        plan = replace(plan, episodes=2, environments=2)
        returns.append(evaluate_policy(run_source(tmp_path / name), plan, Silent()).returns)
    assert returns[0] == returns[1]
    source = run_source(tmp_path / "default")
    other = replace(plan, return_target=-3.0)
    assert evaluate_policy(source, other, Silent()).returns != returns[0], "the target is read"
    cleared = replace(plan, reset_every=1)
    assert evaluate_policy(source, cleared, Silent()).returns != returns[0], "the memory is cleared"
