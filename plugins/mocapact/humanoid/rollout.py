"""Episodes of a policy in the tracking environment."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from gaitforge.collectors.policy import StoredObservation, TaskPolicy, actions_of
from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment
from gaitforge.plugins.mocapact.humanoid.observation import N_JOINTS


class ClipExpertPolicy(TaskPolicy, Protocol):
    """A policy to collect data with.

    Attributes:
        hash: changes whenever its actions do; has_value: whether it has a critic.
    """

    name: str
    hash: str
    has_value: bool

    def value(self, observation: StoredObservation) -> np.ndarray | None:
        """(N,) the critic's discounted return; None without a critic."""
        ...


@dataclass(frozen=True)
class ClipEpisode:
    """An episode to run.

    Attributes:
        index: number in the plan; snippet: index into the environment's snippets.
        frame: first frame; at_start: whether it is the snippet's first frame by plan.
        action_noise: std of the Gaussian noise on executed actions; seed: the noise's.
        max_steps: most steps of the episode; 0 for the snippet's own limit.
    """

    index: int
    snippet: int
    frame: int
    at_start: bool = True
    action_noise: float = 0.0
    seed: int = 0
    max_steps: int = 0


@dataclass(frozen=True)
class ClipRecord:
    """The arrays of an episode of T steps, float32.

    obs (T, 2868) before each step, final_obs (2868,) after the last; action (T, 56) as executed,
    mean_action (T, 56) without the noise, both in [-1, 1]; reward (T,); value (T,) of the expert's
    critic, if it has one.
    """

    obs: np.ndarray
    final_obs: np.ndarray
    action: np.ndarray
    mean_action: np.ndarray
    reward: np.ndarray
    value: np.ndarray | None


@dataclass(frozen=True)
class ClipResult:
    """Outcome of an episode; `possible` counts the steps to its snippet's end."""

    spec: ClipEpisode
    length: int
    possible: int
    episode_return: float
    terminated: bool
    record: ClipRecord | None

    @property
    def success(self) -> bool:
        """Whether it tracked to the snippet's end."""
        return not self.terminated

    @property
    def normalised_return(self) -> float:
        """Return over possible steps."""
        return self.episode_return / self.possible

    @property
    def normalised_length(self) -> float:
        """Share of the possible steps."""
        return self.length / self.possible


def run_episode(
    env: TrackingEnvironment,
    policy: TaskPolicy,
    spec: ClipEpisode,
    progress: Callable[[int], None] = lambda steps: None,
    recorded: ClipExpertPolicy | None = None,
) -> ClipResult:
    """Run one episode, a pure function of the policy and the spec.

    Args:
        progress: called with 1 after every step.
        recorded: the same policy if the result shall hold the episode's arrays, else None.
    """
    rng = np.random.default_rng(spec.seed)
    possible = env.snippets[spec.snippet].steps_from(spec.frame)
    if spec.max_steps:
        possible = min(possible, spec.max_steps)
    policy.reset(np.arange(1))
    obs = env.reset(spec.snippet, spec.frame)
    steps: list[tuple[np.ndarray, ...]] = []
    values: list[np.ndarray] = []
    reward = 0.0
    total = 0.0
    length = 0
    terminated = False
    while length < possible and not terminated:
        seen = StoredObservation(obs[None], np.array([reward], dtype=np.float32))
        mean = np.clip(actions_of(policy, seen, N_JOINTS)[0], -1.0, 1.0).astype(np.float32)
        noise = rng.standard_normal(N_JOINTS, dtype=np.float32) * np.float32(spec.action_noise)
        action = np.clip(mean + noise, -1.0, 1.0)
        result = env.step(action)
        reward = result.reward
        terminated = result.terminated
        if recorded is not None:
            steps.append((obs, action, mean, np.array(reward, np.float32)))
            if (value := recorded.value(seen)) is not None:
                values.append(value[0])
        obs = result.observation
        total += reward
        length += 1
        progress(1)
    record = None
    if recorded is not None:
        seen_obs, action, mean, rewards = (np.stack(column) for column in zip(*steps, strict=True))
        value = np.array(values, dtype=np.float32) if values else None
        record = ClipRecord(seen_obs, obs, action, mean, rewards, value)
    return ClipResult(spec, length, possible, total, terminated, record)
