"""Closed-loop evaluation of policies, and their control latency."""

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, ExpertPolicy, load_expert
from gaitforge.collectors.legged.rewards import LARGEST_RETURN
from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.trust import UntrustedCodeError, trusting
from gaitforge.flows.intervals import combined_interval, mean_interval, success_interval
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import PLAN as PLAN_FILE
from gaitforge.flows.records.plans import record_from_tree
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.stages.evaluate import (
    compared_policy,
    control_latency,
    evaluate_policy,
    is_evaluated,
)
from gaitforge.flows.tasks.evaluation import Cell, PolicyEvaluation, References, measured
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import CLASS, EXPERT, RUN, PolicySource
from tests.flows.making import Counting

ROBOT = load_robot()
EXPERT_SOURCE = PolicySource("expert", EXPERT, DEFAULT_EXPERT)
PLAN = LeggedEvaluation(grid=EvaluationGrid(("flat",), ("stand",), (0,), episodes=1))


class Kicking:
    """A policy whose robots fall before the time limit."""

    name = "kicking"

    def __init__(self, robots: int) -> None:
        self._actions = np.tile(np.array([3.0, -3.0, 3.0], np.float32), (robots, 4))

    def reset(self, ids: np.ndarray) -> None:
        pass

    def act(self, observation: Observation) -> np.ndarray:
        return self._actions[: len(observation.policy)]


class Ended(NamedTuple):
    """An evaluated episode."""

    episode_return: float
    length: int = 1
    success: bool = True
    terminated: bool = False


class Sleeper:
    """A policy that takes two milliseconds."""

    name = "sleeper"

    def __init__(self) -> None:
        self.resets = 0

    def reset(self, ids: np.ndarray) -> None:
        self.resets += len(ids)

    def act(self, observation: Observation) -> np.ndarray:
        time.sleep(0.002)
        return np.zeros((1, 12), dtype=np.float32)


def test_latency_is_that_of_one_act_and_leaves_the_threads_alone() -> None:
    threads, sleeper = torch.get_num_threads(), Sleeper()
    median, p99 = control_latency(sleeper, PLAN.observations(EXPERT_SOURCE, count=4), repeats=20)
    assert 2_000 <= median <= p99
    assert sleeper.resets == 1
    assert torch.get_num_threads() == threads


def test_an_expert_is_timed_on_observations_of_one_real_robot() -> None:
    seen = PLAN.observations(EXPERT_SOURCE, count=3)
    assert [o.policy.shape for o in seen] == [(1, 70)] * 3
    assert not np.array_equal(seen[0].policy, seen[2].policy)
    median, p99 = control_latency(load_expert().policy, seen, repeats=20)
    assert 0 < median <= p99


def _expert_cells(robots: int = 4, threads: int = 1) -> tuple[Mapping[str, Any], ...]:
    grid = EvaluationGrid(("flat", "rough"), ("stand", "tilt"), (1,), episodes=3, seed=5)
    plan = LeggedEvaluation(grid=grid, robots=robots, threads=threads)
    return evaluate_policy(PolicySource("expert", EXPERT, DEFAULT_EXPERT), plan, Silent()).cells


@pytest.mark.slow
def test_the_intervals_can_be_computed_again_from_the_returns() -> None:
    grid = EvaluationGrid(("flat", "rough"), ("stand",), (1,), episodes=3, seed=5)
    source = PolicySource("expert", EXPERT, DEFAULT_EXPERT)
    made = evaluate_policy(source, LeggedEvaluation(grid=grid, robots=4), Silent())
    for cell, returns in zip(made.cells, made.returns, strict=True):
        assert cell["return"] == np.mean(returns)
        low, high = mean_interval(returns) or (0.0, 0.0)
        assert cell["return_ci95"] == [low, min(high, LARGEST_RETURN)]
        assert cell["success_ci95"] == list(success_interval(round(cell["success"] * 3), 3))
    means = [cell["return"] for cell in made.cells]
    low, high = combined_interval(means, [mean_interval(each) for each in made.returns]) or (0, 0)
    assert made.return_ci95 == (low, min(high, LARGEST_RETURN))


def test_an_interval_ends_at_the_largest_possible_return() -> None:
    ended = [Ended(value) for value in (LARGEST_RETURN, 3.0)]
    cells = [Cell({"terrain": "flat"}, ended), Cell({"terrain": "rough"}, ended)]
    made = measured(EXPERT_SOURCE, PLAN, cells, 0, 1.0, (1.0, 1.0))
    assert [cell["return_ci95"][1] for cell in made.cells] == [LARGEST_RETURN] * 2
    half = (combined_interval([7.644] * 2, [mean_interval([12.288, 3.0])] * 2) or (0, 0))[0] - 7.644
    assert made.return_ci95 == (pytest.approx(7.644 + half), LARGEST_RETURN)


def test_the_rate_counts_the_steps_that_were_simulated() -> None:
    grid = EvaluationGrid(("flat", "rough"), ("run",), (1,), episodes=3, seed=5)
    source, counting = PolicySource("kicking", CLASS, f"{__name__}:Kicking"), Counting()
    with trusting([source.place]):
        made = evaluate_policy(source, LeggedEvaluation(grid=grid, robots=4), counting)
    (steps,) = counting.units.values()
    assert made.survival < 1.0
    assert steps < len(grid.specs()) * EPISODE_STEPS
    assert made.steps_per_s * made.wall_s == pytest.approx(steps)


def test_the_same_seed_and_card_give_the_same_table() -> None:
    first, second = _expert_cells(), _expert_cells(threads=3)
    assert first == second
    assert len(first) == 4


def test_an_evaluation_is_not_done_again_for_other_threads(tmp_path: Path) -> None:
    path = tmp_path / "expert.json"
    evaluate_policy(EXPERT_SOURCE, PLAN, Silent(), path)
    assert is_evaluated(EXPERT_SOURCE, replace(PLAN, threads=3), path)
    assert not is_evaluated(EXPERT_SOURCE, replace(PLAN, robots=3), path)


def test_only_a_trained_policy_can_be_reset_during_an_episode() -> None:
    source = PolicySource("expert", EXPERT, DEFAULT_EXPERT)
    with pytest.raises(ValueError, match="reset_every needs the policy of a training run"):
        evaluate_policy(source, replace(PLAN, reset_every=64), Silent())


def test_an_expert_of_another_robot_is_refused_before_anything_is_simulated() -> None:
    other = replace(PLAN, robot="go1")
    for refused in (other.key, lambda source: other.load(source, 1)):
        with pytest.raises(ValueError, match=f"no expert among {DEFAULT_EXPERT} drives go1"):
            refused(EXPERT_SOURCE)
    for name, robot in (("aliengo-family", "go1"), ("go1-locomotion", "go1")):
        source = PolicySource(name, EXPERT, name)
        assert other.key(source) == LeggedEvaluation().key(source)
        policy, _ = other.load(source, 1)
        assert isinstance(policy, ExpertPolicy)
        assert policy.robot.name == robot
    assert replace(PLAN, robot="aliengo").key(EXPERT_SOURCE) == PLAN.key(EXPERT_SOURCE)


def test_a_policy_is_compared_with_who_collected_its_episodes(tmp_path: Path) -> None:
    source = PolicySource("run", RUN, str(tmp_path))

    def compared(robot: str, **record: str) -> tuple[str, str]:
        write_record(tmp_path / PLAN_FILE, {"robot": robot, **record})
        policy, plan = compared_policy(source, replace(PLAN, reset_every=64), EXPERT)
        assert (policy.name, plan.reset_every) == (EXPERT, 0)
        return policy.place, getattr(plan, "robot", "")

    assert compared("aliengo", expert="aliengo-weak") == ("aliengo-weak", "aliengo")
    assert compared("go1") == ("go1-locomotion", "go1"), "a run of an older version"
    with pytest.raises(UntrustedCodeError, match="evil:Code"):
        compared("aliengo", expert="evil:Code")
    with pytest.raises(ValueError, match=r"gone.*another policy to compare with: --against"):
        compared("aliengo", expert=str(tmp_path / "gone.safetensors"))


def test_an_evaluation_comes_back_from_its_file() -> None:
    source, plan = PolicySource("expert", EXPERT, DEFAULT_EXPERT), PLAN
    made = evaluate_policy(source, replace(plan, references=References(0.0, 4.0)), Silent())
    tree = to_tree(made)
    assert tree["return"] == tree["cells"][0]["return"] == made.return_
    assert tree["score"] == pytest.approx(25.0 * made.return_)
    assert record_from_tree(PolicyEvaluation, tree | {"key": {}}) == made
    for damaged in ([], {}, 3, None, tree | {"cells": 3}, {**tree, "returns": [{"x": 3.5}]}):
        assert record_from_tree(PolicyEvaluation, damaged) is None


@pytest.mark.slow
def test_cells_tell_speed_error_torque_and_action_rate() -> None:
    for cell in _expert_cells():
        assert 0 <= cell["vx_error"] < 3
        assert 0 < cell["torque_p99"] <= ROBOT.torque_limit_nm.max() + 1e-3
        assert 0 < cell["action_rate_p99"] < 500
        assert {"terrain", "skill", "level", "return", "success", "survival"} <= set(cell)
