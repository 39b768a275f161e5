"""Learned policies in the control loop: N robots at once, and the latency of one."""

import time
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch

from learners.policy_network import PolicyNetwork

# Warm-up of the FCNet paper's latency measurement (Table 8).
WARM_UP_STEPS = 500


class ControlObservation(Protocol):
    """The part of an observation that a learned policy reads, N robots."""

    @property
    def policy(self) -> np.ndarray:
        """(N, Do) float32."""
        ...

    @property
    def reward(self) -> np.ndarray:
        """(N,) reward of the step before; not read on an episode's first step."""
        ...


class LearnedPolicy:
    """A policy network that controls `num_robots` robots and keeps their histories.

    A return-conditioned network starts each episode with `return_target` (1.0 = the expert's mean
    return) and counts the rewards received since.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        num_robots: int,
        name: str = "learned",
        return_target: float = 1.0,
    ) -> None:
        """Raises ValueError unless num_robots >= 1 and return_target is finite."""
        if num_robots < 1:
            raise ValueError(f"num_robots must be at least 1, got {num_robots}")
        if not np.isfinite(return_target):
            raise ValueError(f"return_target must be a finite number, got {return_target}")
        self.name = name
        self.num_robots = num_robots
        self._network = network.eval()
        self._target = np.float32(return_target * float(network.return_scale))
        self._remaining = np.full(num_robots, self._target, dtype=np.float32)
        self._first = np.ones(num_robots, dtype=bool)
        with torch.inference_mode():
            self._state = network.init_state(num_robots)

    def reset(self, ids: np.ndarray) -> None:
        """Forget the history of the robots `ids`: their next observation starts an episode."""
        ids = np.asarray(ids, dtype=np.int64)
        self._remaining[ids] = self._target
        self._first[ids] = True
        with torch.inference_mode():
            self._network.reset_state(self._state, torch.from_numpy(ids))

    def act(self, observation: ControlObservation) -> np.ndarray:
        """(N, 12) float32 actions for one control step."""
        expected = (self.num_robots, self._network.layout.obs_dim)
        if observation.policy.shape != expected:
            raise ValueError(
                f"policy {self.name} controls observations of shape {expected}, got "
                f"{observation.policy.shape}"
            )
        with torch.inference_mode():
            obs = torch.from_numpy(np.ascontiguousarray(observation.policy, dtype=np.float32))
            action, self._state = self._network.step(
                obs, self._state, self._return_to_go(observation)
            )
            return action.numpy()

    def _return_to_go(self, observation: ControlObservation) -> torch.Tensor | None:
        if not self._network.conditioned:
            return None
        self._remaining -= np.where(self._first, 0.0, observation.reward).astype(np.float32)
        self._first[:] = False
        return torch.from_numpy(self._remaining)


@dataclass(frozen=True)
class LatencyResult:
    """Time of one control step, in microseconds."""

    median_us: float
    p99_us: float


@dataclass(frozen=True)
class _OneRobot:
    policy: np.ndarray
    reward: np.ndarray


def measure_latency(network: PolicyNetwork, repeats: int = 2000) -> LatencyResult:
    """Latency of control with one robot on one thread, conversions from and to NumPy included.

    Raises ValueError unless repeats >= 1. The thread count is restored.
    """
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    policy = LearnedPolicy(network, num_robots=1)
    draws = np.random.default_rng(0)
    shape = (WARM_UP_STEPS + repeats, 1, network.layout.obs_dim)
    observations = draws.standard_normal(shape, dtype=np.float32)
    reward = np.zeros(1, dtype=np.float32)
    durations_ns = np.empty(len(observations), dtype=np.int64)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for index, each in enumerate(observations):
            observation = _OneRobot(each, reward)
            start = time.perf_counter_ns()
            policy.act(observation)
            durations_ns[index] = time.perf_counter_ns() - start
    finally:
        torch.set_num_threads(threads)
    median, p99 = np.percentile(durations_ns[WARM_UP_STEPS:], [50, 99]) / 1000.0
    return LatencyResult(median_us=float(median), p99_us=float(p99))
