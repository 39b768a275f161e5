"""Control latency, measured the same way for every policy."""

from __future__ import annotations

import time

import numpy as np
import torch

from collectors.evaluation import EvaluationGrid
from collectors.experts import load_expert
from collectors.policies import Observation
from flows.evaluate import EvaluatePlan, control_latency, robot_observations

PLAN = EvaluatePlan(grid=EvaluationGrid(("flat",), ("stand",), (0,), episodes=1))


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
    median, p99 = control_latency(sleeper, robot_observations(PLAN, count=4), repeats=20)
    assert 2_000 <= median <= p99
    assert sleeper.resets == 1
    assert torch.get_num_threads() == threads


def test_an_expert_is_timed_on_observations_of_one_real_robot() -> None:
    seen = robot_observations(PLAN, count=3)
    assert [o.policy.shape for o in seen] == [(1, 70)] * 3
    assert not np.array_equal(seen[0].policy, seen[2].policy)
    median, p99 = control_latency(load_expert().policy, seen, repeats=20)
    assert 0 < median <= p99
