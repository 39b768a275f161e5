"""N environments of a task behind one batched interface."""

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.gym.tasks import GymTask, make_environment, observed_fields
from gaitforge.collectors.policies import StoredObservation
from gaitforge.datasets.formats.d4rl.tasks import obs_slices


@dataclass(frozen=True)
class BatchStep:
    """Outcome of one step of n environments, each (n,).

    Attributes:
        reward: float32; terminated: failure or goal; truncated: the task's horizon.
        success: as the task reports it; False where it reports none.
    """

    reward: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray
    success: np.ndarray


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
        if self.task.own is not None:
            return observed_fields(self._envs[0])
        return obs_slices(self.task.name, (self.obs_dim,))

    def reset(self, ids: Sequence[int], seeds: Sequence[int]) -> None:
        """Start an episode in each of the environments `ids`, from its seed."""
        for index, seed in zip(ids, seeds, strict=True):
            obs, _ = self._envs[index].reset(seed=int(seed))
            self.observation.policy[index] = obs
            self.observation.reward[index] = 0.0

    def step(self, ids: Sequence[int], actions: np.ndarray) -> BatchStep:
        """One control step of the environments `ids` with actions (n, A) in [-1, 1]."""
        count = len(ids)
        result = BatchStep(
            np.zeros(count, np.float32), *(np.zeros(count, np.bool_) for _ in range(3))
        )
        jobs = list(zip(range(count), ids, actions, strict=True))
        if self._pool is None:
            self._step_each(jobs, result)
        else:
            shares = (jobs[first :: self._threads] for first in range(self._threads))
            list(self._pool.map(lambda share: self._step_each(share, result), shares))
        return result

    def _step_each(self, jobs: Iterable[tuple[int, int, np.ndarray]], result: BatchStep) -> None:
        for row, index, action in jobs:
            obs, reward, terminated, truncated, info = self._envs[index].step(action)
            self.observation.policy[index] = obs
            self.observation.reward[index] = reward
            result.reward[row] = reward
            result.terminated[row] = terminated
            result.truncated[row] = truncated
            result.success[row] = bool(info.get("success", info.get("is_success", False)))

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
