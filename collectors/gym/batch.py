"""N environments of a task behind one batched interface, stepped one after the other."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gaitforge.collectors.gym.tasks import GymTask, make_environment
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
    """N environments of one task, without automatic resets."""

    def __init__(self, task: GymTask, count: int) -> None:
        """Raises ValueError without the task's package, and unless count >= 1."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
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
            return dict(self._envs[0].unwrapped.obs_slices)
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
        for row, (index, action) in enumerate(zip(ids, actions, strict=True)):
            obs, reward, terminated, truncated, info = self._envs[index].step(action)
            self.observation.policy[index] = obs
            self.observation.reward[index] = reward
            result.reward[row] = reward
            result.terminated[row] = terminated
            result.truncated[row] = truncated
            result.success[row] = bool(info.get("success", False))
        return result

    def physics(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Generalised positions (nq,) and velocities (nv,) of one environment, float64 copies."""
        data = self._envs[index].unwrapped.data
        return data.qpos.copy(), data.qvel.copy()

    def close(self) -> None:
        """Free the environments."""
        for env in self._envs:
            env.close()
