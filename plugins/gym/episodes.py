"""Episodes of a task: recorded ones of a policy that draws its actions, and those of an evaluation.

A recorded episode is a pure function of the policy and a seed. Its environments are stepped one at
a time, with one observation per policy call: the last bit of a matrix product depends on the rows
beside it, and the simulator takes most of the time anyway. An evaluation has the same starts for
every policy, and steps N environments together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gaitforge.collectors.policy import (
    StoredObservation,
    TaskPolicy,
    actions_of,
    tell_executed,
)
from gaitforge.plugins.gym.environments.batch import TaskBatch

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


DEFAULT_SEED = 1_000_003
_STREAM = 0xE7A1  # separates evaluation's seeds from those of a collection


@dataclass
class TaskEpisode:
    """One evaluated episode.

    Attributes:
        episode_return: undiscounted sum of the rewards; length: control steps.
        success: the task reported it on some step; of tasks that report none (HalfCheetah, Hopper,
            Walker2d, our humanoids), that the episode did not terminate, as in imported D4RL files.
        success_known: False for an environment of others that said nothing.
        terminated: it ended before the horizon, in a failure or a goal.
    """

    seed: int
    episode_return: float = 0.0
    length: int = 0
    success: bool = False
    success_known: bool = False
    terminated: bool = False


def evaluation_seeds(episodes: int, seed: int = DEFAULT_SEED) -> list[int]:
    """Seeds that no collection uses; those of fewer episodes are a prefix."""
    if episodes < 1 or seed < 0:
        raise ValueError(f"need at least 1 episode, got {episodes}, and a seed >= 0, got {seed}")
    drawn = np.random.SeedSequence([_STREAM, seed]).generate_state(episodes, np.uint64)
    return (drawn >> np.uint64(1)).tolist()


def evaluate(
    policy: TaskPolicy,
    batch: TaskBatch,
    seeds: Sequence[int],
    progress: Callable[[int], None] | None = None,
) -> list[TaskEpisode]:
    """Run one episode per seed, returned in the seeds' order; free environments take the next seed.

    The policy acts on all rows at once, also on idle ones. Actions are clipped to [-1, 1].

    Args:
        progress: called with the number of episodes that ended since its last call.
    """
    episodes = [TaskEpisode(seed) for seed in seeds]
    waiting = iter(episodes)
    running: dict[int, TaskEpisode] = {}

    def start(free: Sequence[int]) -> None:
        """Begin the next waiting episodes in free environments."""
        started = dict(zip(free, waiting, strict=False))
        if started:
            running.update(started)
            batch.reset(list(started), [episode.seed for episode in started.values()])
            policy.reset(np.array(list(started), dtype=np.int64))

    start(range(len(batch)))
    while running:
        ids = sorted(running)
        actions = np.clip(actions_of(policy, batch.observation), -1.0, 1.0)
        actions = batch.executed(actions)
        tell_executed(policy, actions)
        step = batch.step(ids, actions[ids])
        ended = []
        for row, index in enumerate(ids):
            episode = running[index]
            episode.episode_return += float(step.reward[row])
            episode.length += 1
            episode.success |= bool(step.success[row])
            episode.success_known |= bool(step.success_known[row])
            episode.terminated = bool(step.terminated[row])
            if step.terminated[row] or step.truncated[row]:
                if not batch.task.reports_success:
                    episode.success |= not episode.terminated
                    episode.success_known = True
                del running[index]
                ended.append(index)
        if ended:
            start(ended)
            if progress is not None:
                progress(len(ended))
    return episodes
