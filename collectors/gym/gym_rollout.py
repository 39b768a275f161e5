"""Episodes of stochastic policies in a task, each a pure function of the policy and a seed.

Environments are stepped one at a time, with one observation per policy call: the last bit of a
matrix product depends on the rows beside it, and the simulator takes most of the time anyway.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.policy import StoredObservation, tell_executed

_NOISE_STREAM = 0x6A7
"""Separates the actions' generator from the environment's own, which has the same seed."""


class DrawingPolicy(Protocol):
    """A policy that draws its actions."""

    def draw(
        self, observation: StoredObservation, rng: np.random.Generator
    ) -> tuple[np.ndarray, float]:
        """An action (A,) float32 in [-1, 1] for one environment, and its log-density."""
        ...


@dataclass(frozen=True)
class Episode:
    """An episode of T steps.

    Attributes:
        seed: seed of its start and its actions; -1 if unknown.
        obs: (T, Do) float32, before each step; final_obs: (Do,) after the last.
        action: (T, A) float32 in [-1, 1], see `TaskBatch.executed`; log_prob: (T,) float32, of
            what the policy drew; reward: (T,) float32.
        qpos, qvel: (T, nq), (T, nv) float64 before each step; None if they were not kept.
        terminated, truncated: how it ended; neither if it was cut off.
        success: whether the task reported it at any step; None if unknown.
    """

    seed: int
    obs: np.ndarray
    final_obs: np.ndarray
    action: np.ndarray
    log_prob: np.ndarray
    reward: np.ndarray
    terminated: bool
    truncated: bool
    success: bool | None = None
    qpos: np.ndarray | None = None
    qvel: np.ndarray | None = None

    @property
    def length(self) -> int:
        """Steps."""
        return len(self.reward)


def run_episode(
    env: TaskBatch,
    policy: DrawingPolicy,
    seed: int,
    progress: Callable[[int], None] = lambda steps: None,
    physics: bool = False,
) -> Episode:
    """Run one episode in the first environment; calls progress with 1 after every step.

    With `physics` the simulator's state is kept, see `TaskBatch.physics`.
    """
    rng = np.random.default_rng([_NOISE_STREAM, seed])
    seen: list[tuple[np.ndarray, np.ndarray, float, float]] = []
    states: list[tuple[np.ndarray, np.ndarray]] = []
    terminated = truncated = success = known = False
    env.reset([0], [seed])
    while not (terminated or truncated):
        seen_now = StoredObservation(
            env.observation.policy[:1].copy(), env.observation.reward[:1].copy()
        )
        if physics:
            states.append(env.physics(0))
        action, log_prob = policy.draw(seen_now, rng)
        action = env.executed(action)
        tell_executed(policy, action[None])
        step = env.step([0], action[None])
        seen.append((seen_now.policy[0], action, log_prob, float(step.reward[0])))
        terminated = bool(step.terminated[0])
        truncated = bool(step.truncated[0])
        success |= bool(step.success[0])
        known |= bool(step.success_known[0])
        progress(1)
    obs, action, log_prob, reward = zip(*seen, strict=True)
    qpos, qvel = map(np.stack, zip(*states, strict=True)) if states else (None, None)
    return Episode(
        seed=seed,
        obs=np.stack(obs),
        final_obs=env.observation.policy[0].copy(),
        action=np.stack(action),
        log_prob=np.array(log_prob, np.float32),
        reward=np.array(reward, np.float32),
        qpos=qpos,
        qvel=qvel,
        terminated=terminated,
        truncated=truncated,
        success=success if known else None,
    )
