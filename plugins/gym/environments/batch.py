"""N environments of a task behind one batched interface, and warnings about a user's one."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.policy import StoredObservation
from gaitforge.common.errors import listed
from gaitforge.plugins.gym.d4rl.d4rl_tasks import obs_slices
from gaitforge.plugins.gym.environments.environment_id import EnvironmentId, succeeded
from gaitforge.plugins.gym.environments.spaces import ActionCode
from gaitforge.plugins.gym.environments.tasks import GymTask, failure, find_task, make_environment


@dataclass(frozen=True)
class BatchStep:
    """Outcome of one step of n environments, each (n,).

    Attributes:
        reward: float32; terminated: failure or goal; truncated: the task's horizon.
        success: as the task reports it; False where it reports none.
        success_known: whether it reported any.
    """

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray
    success_known: np.ndarray


class TaskBatch:
    """N environments of one task, without automatic resets.

    Args:
        threads: that step environments side by side; the simulator alone leaves Python's lock.
    """

    def __init__(self, task: GymTask, count: int, threads: int = 1) -> None:
        """Raises ValueError without the task's package, and unless count and threads >= 1."""
        if count < 1 or threads < 1:
            raise ValueError(f"count and threads must be at least 1, got {count} and {threads}")
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._threads = threads
        self.task = task
        self._envs = [make_environment(task) for _ in range(count)]
        space = self._envs[0].action_space
        if not (np.all(space.low == -1.0) and np.all(space.high == 1.0)):
            raise ValueError(f"{task.env_id} has actions outside of [-1, 1]")
        self._settings = task.settings or EnvironmentId(task.env_id)
        self._code: ActionCode | None = self._envs[0].func if task.settings else None
        self._begun = [(-1, 0)] * count  # seed and step of each environment's episode
        self.obs_dim = int(self._envs[0].observation_space.shape[0])
        self.act_dim = int(space.shape[0])
        self.observation = StoredObservation(
            np.zeros((count, self.obs_dim), np.float32), np.zeros(count, np.float32)
        )

    def __len__(self) -> int:
        return len(self._envs)

    @property
    def obs_slices(self) -> dict[str, tuple[int, int]]:
        """Field of the observation -> (start, stop)."""
        if self.task.own is None:
            return obs_slices(self.task.name, (self.obs_dim,))
        slices = getattr(self._envs[0].unwrapped, "obs_slices", None)
        return dict(self._envs[0].env.func.slices if slices is None else slices)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Parts of the environment's observation that the stored one lacks, in words."""
        return self._envs[0].env.func.left_out if self.task.settings else ()

    @property
    def choices(self) -> tuple[int, ...]:
        """Number of choices of each discrete action; empty for continuous ones."""
        return self._code.choices if self._code else ()

    def reset(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Start an episode in each of the environments `ids`, from its seed.

        Others' environments get its last 31 bits: NumPy's older generators and simulators in C
        take no more.
        """
        options = {"options": dict(self._settings.reset)} if self._settings.reset else {}
        for index, seed in zip(ids, seeds, strict=True):
            seed = int(seed) % 2**31 if self.task.settings else int(seed)
            self._begun[index] = seed, 0
            try:
                obs, _ = self._envs[index].reset(seed=seed, **options)
                self._see(index, obs, 0.0)
            except Exception as error:  # of whatever kind: it is others' code
                raise self._failed(index, error) from error

    def executed(self, actions: np.ndarray) -> np.ndarray:
        """Executed actions (..., A): scores of a discrete action become 1 (chosen) and -1.

        Raises:
            ValueError: actions of another size, or that are not finite.
        """
        if actions.shape[-1] != self.act_dim:
            raise ValueError(
                f"{self.task.env_id} takes actions of size {self.act_dim}, the policy gave "
                f"{actions.shape[-1]}"
            )
        self._check_finite(actions)
        return actions if self._code is None else self._code.executed(actions)

    def _check_finite(self, actions: np.ndarray) -> None:
        """Raise ValueError for NaN: of NaN scores the first choice would be taken."""
        if not np.isfinite(actions).all():
            raise ValueError(f"{self.task.env_id}: the policy gave an action that is not finite")

    def step(self, ids: Sequence[int], actions: np.ndarray) -> BatchStep:
        """One control step of the environments `ids` with finite actions (n, A) in [-1, 1]."""
        self._check_finite(actions)
        count = len(ids)
        result = BatchStep(
            np.zeros(count, np.float32), *(np.zeros(count, np.bool_) for _ in range(4))
        )
        jobs = list(zip(range(count), ids, actions, strict=True))
        if self._pool is None:
            self._step_each(jobs, result)
        else:
            shares = (jobs[first :: self._threads] for first in range(self._threads))
            list(self._pool.map(lambda share: self._step_each(share, result), shares))
        return result

    def _step_each(self, jobs: Iterable[tuple[int, int, np.ndarray]], result: BatchStep) -> None:
        rule = self._settings.success
        for row, index, action in jobs:
            seed, step = self._begun[index]
            self._begun[index] = seed, step + 1
            try:
                obs, reward, terminated, truncated, info = self._envs[index].step(action)
                self._see(index, obs, reward)
                success = succeeded(rule, info, reward, terminated, truncated)
            except Exception as error:  # of whatever kind: it is others' code
                raise self._failed(index, error) from error
            result.reward[row] = reward
            result.terminated[row] = terminated
            result.truncated[row] = truncated
            result.success[row] = success or False
            result.success_known[row] = success is not None

    def _see(self, index: int, obs: np.ndarray, reward: float) -> None:
        """Keep an environment's observation and reward; ValueError for one that is not finite."""
        self.observation.policy[index] = obs
        self.observation.reward[index] = reward
        if not (np.isfinite(reward) and np.isfinite(self.observation.policy[index]).all()):
            raise ValueError("its observation or reward is not finite")

    def _failed(self, index: int, error: Exception) -> ValueError:
        """A line about an environment's failure, with the episode that repeats it."""
        seed, step = self._begun[index]
        moment = f"step {step} of the episode" if step else "the reset"
        return ValueError(f"{self.task.env_id}: {moment} with seed {seed} failed: {failure(error)}")

    def physics(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Generalised positions (nq,) and velocities (nv,) of one environment, float64 copies.

        ValueError for an environment that is not simulated by MuJoCo.
        """
        data: Any = getattr(self._envs[index].unwrapped, "data", None)
        if not isinstance(data, mujoco.MjData):
            raise ValueError(f"{self.task.env_id} has no state of MuJoCo to keep")
        return data.qpos.copy(), data.qvel.copy()

    def close(self) -> None:
        """Free the environments."""
        if self._pool is not None:
            self._pool.shutdown()
        for env in self._envs:
            env.close()


_SEED = 0
_STEPS = 20


def notes(env_id: str) -> list[str]:
    """Warnings: fields that a store will lack, and seeds that repeat no episode; none for ours.

    Raises:
        ValueError: no such environment, or one that fails.
    """
    task = find_task(env_id)
    if task.settings is None:
        return []
    with closing(TaskBatch(task, 2)) as batch:
        lines = []
        if batch.left_out:
            lines.append(f"the observation is stored without {listed(batch.left_out)}")
        where, success_known = _tried(batch)
        if where:
            lines.append(
                f"episodes of {task.settings.place} are no function of their seed: {where} of two "
                "with the same seed differs; draw all that is random from self.np_random, or "
                "verify --replay will find differences"
            )
        elif (name := task.settings.success) and not success_known:
            lines.append(
                f"none of the first steps had '{name}' in its info: success is unknown of episodes "
                "without it"
            )
    return lines


def _tried(batch: TaskBatch) -> tuple[str, bool]:
    """Run a short episode twice and compare.

    Returns:
        Where the runs first differ, one of them after another episode, or nothing; and whether a
        step said if the episode succeeded.
    """
    known = False
    rng = np.random.default_rng(_SEED)
    actions = rng.uniform(-1.0, 1.0, (_STEPS, 1, batch.act_dim)).astype(np.float32)
    batch.reset([0], [_SEED + 1])
    for action in actions[:3]:
        if batch.step([0], action).terminated:
            break
    batch.reset([0, 1], [_SEED, _SEED])
    for number, action in enumerate(actions):
        first, second = batch.observation.policy
        if not np.array_equal(first, second):
            return f"the observation before step {number}", known
        step = batch.step([0, 1], np.repeat(action, 2, axis=0))
        known |= bool(step.success_known.any())
        if step.reward[0] != step.reward[1] or step.terminated[0] != step.terminated[1]:
            return f"the outcome of step {number}", known
        if (step.terminated | step.truncated).any():
            break
    return "", known
