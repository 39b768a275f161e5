"""Episodes of a policy in the tracking environment."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from collectors.humanoid.environment import TrackingEnvironment
from collectors.humanoid.observation import N_JOINTS
from collectors.humanoid.policies import ExpertPolicy, TrackingObservation, TrackingPolicy

_ONE = np.arange(1)


@dataclass(frozen=True)
class EpisodeSpec:
    """What an episode is to be.

    Attributes:
        index: its number in the plan; snippet: index into the environment's snippets.
        frame: where it starts; at_start: whether that is the snippet's first frame by plan rather
            than by chance.
        action_noise: standard deviation of the Gaussian noise on executed actions; seed: of it.
        max_steps: ends it earlier than the snippet does; 0 for no limit.
    """

    index: int
    snippet: int
    frame: int
    at_start: bool = True
    action_noise: float = 0.0
    seed: int = 0
    max_steps: int = 0


@dataclass(frozen=True)
class EpisodeRecord:
    """The arrays of an episode of T steps, float32.

    obs (T, 2868) before each step, final_obs (2868,) after the last; action (T, 56) as executed,
    mean_action (T, 56) without the noise, both in [-1, 1]; reward (T,); value (T,) what the policy
    expected, where it says so.
    """

    obs: np.ndarray
    final_obs: np.ndarray
    action: np.ndarray
    mean_action: np.ndarray
    reward: np.ndarray
    value: np.ndarray | None


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode went; possible is the number of steps that it could have had.

    The normalised return is divided by them too (MoCapAct: mean reward times normalised length).
    """

    spec: EpisodeSpec
    length: int
    possible: int
    episode_return: float
    terminated: bool
    record: EpisodeRecord | None

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
    policy: TrackingPolicy,
    spec: EpisodeSpec,
    progress: Callable[[int], None] = lambda steps: None,
) -> EpisodeResult:
    """Run one episode; a pure function of the policy and the spec.

    Args:
        progress: called with 1 after every step.
    """
    return _run(env, policy, spec, progress, None)


def record_episode(
    env: TrackingEnvironment,
    expert: ExpertPolicy,
    spec: EpisodeSpec,
    progress: Callable[[int], None] = lambda steps: None,
) -> EpisodeResult:
    """As `run_episode`, with the episode's arrays in the result."""
    return _run(env, expert, spec, progress, _Recorder(expert))


def _run(
    env: TrackingEnvironment,
    policy: TrackingPolicy,
    spec: EpisodeSpec,
    progress: Callable[[int], None],
    recorder: _Recorder | None,
) -> EpisodeResult:
    rng = np.random.default_rng(spec.seed)
    possible = env.snippets[spec.snippet].steps_from(spec.frame)
    if spec.max_steps:
        possible = min(possible, spec.max_steps)
    policy.reset(_ONE)
    obs = env.reset(spec.snippet, spec.frame)
    reward, total, length, terminated = 0.0, 0.0, 0, False
    while length < possible and not terminated:
        seen = TrackingObservation(obs[None], np.array([reward], dtype=np.float32))
        mean = np.clip(policy.act(seen)[0], -1.0, 1.0).astype(np.float32)
        noise = rng.standard_normal(N_JOINTS, dtype=np.float32) * np.float32(spec.action_noise)
        action = np.clip(mean + noise, -1.0, 1.0)
        result = env.step(action)
        reward, terminated = result.reward, result.terminated
        if recorder is not None:
            recorder.add(seen, mean, action, reward)
        obs = result.observation
        total += reward
        length += 1
        progress(1)
    record = None if recorder is None else recorder.finish(obs)
    return EpisodeResult(spec, length, possible, total, terminated, record)


class _Recorder:
    def __init__(self, expert: ExpertPolicy):
        self._expert = expert
        self._obs: list[np.ndarray] = []
        self._mean: list[np.ndarray] = []
        self._action: list[np.ndarray] = []
        self._reward: list[float] = []
        self._value: list[float] = []

    def add(
        self, seen: TrackingObservation, mean: np.ndarray, action: np.ndarray, reward: float
    ) -> None:
        self._obs.append(seen.policy[0])
        self._mean.append(mean)
        self._action.append(action)
        self._reward.append(reward)
        value = self._expert.value(seen)
        if value is not None:
            self._value.append(float(value[0]))

    def finish(self, final_obs: np.ndarray) -> EpisodeRecord:
        return EpisodeRecord(
            obs=np.stack(self._obs),
            final_obs=final_obs,
            action=np.stack(self._action),
            mean_action=np.stack(self._mean),
            reward=np.array(self._reward, dtype=np.float32),
            value=np.array(self._value, dtype=np.float32) if self._value else None,
        )
