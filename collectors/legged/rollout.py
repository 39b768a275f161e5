"""Running episodes in closed loop: any policy, any list of episodes, N robots at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from collectors.legged.environment import LeggedEnvironment
from collectors.legged.episodes import EpisodeDraws, EpisodeSpec
from collectors.legged.observations import OBS_DIM, PRIVILEGED_DIM
from collectors.policies import Observation, Policy
from collectors.robots.robot import N_JOINTS
from collectors.scenarios.signals import S

STATE_DIM = 3 + 4 + N_JOINTS


@dataclass(frozen=True)
class EpisodeRecord:
    """The arrays of one episode of T steps, float32.

    obs (T, 70) is what the policy saw, action (T, 12) what it chose; action noise, where the spec
    asks for it, is added to what is executed, and the executed action is the next observation's
    `last_action`. state (T, 19): base position, quaternion wxyz and joint positions before each
    step, for playback. privileged (T, P) is the expert's private block, recorded where asked for.
    final_obs (70,) is the observation after the last.
    """

    obs: np.ndarray
    action: np.ndarray
    reward: np.ndarray
    state: np.ndarray
    final_obs: np.ndarray
    privileged: np.ndarray | None = None


@dataclass(frozen=True)
class EpisodeResult:
    """How an episode went; `record` is None unless recording was asked for.

    torque_nm (T,) float32 is the largest |torque| of any joint at each step, action_rate (T,) the
    fastest joint target's speed in rad/s.
    """

    spec: EpisodeSpec
    draws: EpisodeDraws
    length: int
    episode_return: float
    success: bool
    terminated: bool
    vel_x_error_ms: float
    torque_nm: np.ndarray
    action_rate_rads: np.ndarray
    record: EpisodeRecord | None


class _Slots:
    """Which episode runs on which robot.

    Where the simulator's world is fixed, robots whose episodes ended idle until all have.
    """

    def __init__(self, env: LeggedEnvironment, policy: Policy, specs: Sequence[EpisodeSpec]):
        self._env, self._policy = env, policy
        self._waiting = iter(specs)
        self.running = np.zeros(env.num_robots, dtype=bool)

    def fill(self, ids: np.ndarray) -> None:
        """Start waiting episodes on robots that have become free; robots left over idle."""
        self.running[ids] = False
        if self._env.physics.fixed_world:
            ids = np.arange(0 if self.running.any() else len(self.running))
        pairs = list(zip(ids.tolist(), self._waiting, strict=False)) if len(ids) else []
        if not pairs:
            return
        started = np.array([index for index, _ in pairs])
        self._env.reset(started, [spec for _, spec in pairs])
        self._policy.reset(started)
        self.running[started] = True


def run_episodes(
    env: LeggedEnvironment,
    policy: Policy,
    specs: Sequence[EpisodeSpec],
    record: bool = False,
    privileged: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Iterator[EpisodeResult]:
    """Run every episode of `specs` once and yield results as episodes end.

    An episode's physics depends on its spec and the executed actions alone, not on which others run
    beside it.

    Args:
        record, privileged: keep the episodes' arrays, and the expert's private block with them.
        progress: called after every control step with the number of robot steps it made.
    """
    slots = _Slots(env, policy, specs)
    recorder = _Recorder(env, privileged) if record else None
    returns = np.zeros(env.num_robots)
    slots.fill(np.arange(env.num_robots))
    observation = env.observe()
    while slots.running.any():
        action = policy.act(observation)
        executed = action + np.where(slots.running[:, None], env.action_noise(), np.float32(0.0))
        if recorder is not None:
            recorder.before_step(observation, action)
        transition = env.step(executed)
        returns += np.where(slots.running, transition.reward, 0.0)
        if recorder is not None:
            recorder.after_step(transition.reward)
        if progress is not None:
            progress(int(slots.running.sum()))
        observation = transition.observation
        ended = np.flatnonzero(slots.running & (transition.terminated | transition.truncated))
        if len(ended):
            for index in ended.tolist():
                fell = bool(transition.terminated[index])
                yield _result(env, index, returns[index], fell, recorder, observation)
            returns[ended] = 0.0
            slots.fill(ended)
            observation = env.observe()


class _Recorder:
    """Per-robot buffers of the running episodes."""

    def __init__(self, env: LeggedEnvironment, privileged: bool):
        shape = (env.num_robots, env.episode_steps)
        self._env = env
        self._rows = np.arange(env.num_robots)
        self._obs = np.zeros((*shape, OBS_DIM), dtype=np.float32)
        self._action = np.zeros((*shape, N_JOINTS), dtype=np.float32)
        self._reward = np.zeros(shape, dtype=np.float32)
        self._state = np.zeros((*shape, STATE_DIM), dtype=np.float32)
        self._privileged = (
            np.zeros((*shape, PRIVILEGED_DIM), dtype=np.float32) if privileged else None
        )
        self._step = np.zeros(env.num_robots, dtype=np.int64)

    def before_step(self, observation: Observation, action: np.ndarray) -> None:
        physics = self._env.physics.state
        # Idle robots run past the window; their last column is scratch that nobody reads.
        self._step = np.minimum(self._env.step_count, self._env.episode_steps - 1)
        self._obs[self._rows, self._step] = observation.policy
        self._action[self._rows, self._step] = action
        state = np.concatenate([physics.base_pos, physics.base_quat, physics.joint_pos], axis=1)
        self._state[self._rows, self._step] = state
        if self._privileged is not None:
            self._privileged[self._rows, self._step] = observation.privileged

    def after_step(self, reward: np.ndarray) -> None:
        self._reward[self._rows, self._step] = reward

    def take(self, index: int, length: int, final_obs: np.ndarray) -> EpisodeRecord:
        return EpisodeRecord(
            obs=self._obs[index, :length].copy(),
            action=self._action[index, :length].copy(),
            reward=self._reward[index, :length].copy(),
            state=self._state[index, :length].copy(),
            final_obs=final_obs.copy(),
            privileged=(
                None if self._privileged is None else self._privileged[index, :length].copy()
            ),
        )


def _result(
    env: LeggedEnvironment,
    index: int,
    episode_return: float,
    terminated: bool,
    recorder: _Recorder | None,
    observation: Observation,
) -> EpisodeResult:
    spec, draws = env.specs[index], env.episode_draws[index]
    if spec is None or draws is None:
        raise RuntimeError(f"robot {index} ended an episode that it never started")
    length = int(env.step_count[index])
    track = env.track(index)
    return EpisodeResult(
        spec=spec,
        draws=draws,
        length=length,
        episode_return=float(episode_return),
        success=env.success(index, terminated),
        terminated=terminated,
        vel_x_error_ms=track.vel_x_error(),
        torque_nm=track.values[:, S.TORQUE].copy(),
        action_rate_rads=track.values[:, S.ACTION_RATE].copy(),
        record=recorder.take(index, length, observation.policy[index]) if recorder else None,
    )
