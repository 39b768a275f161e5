"""Environments in the forms of several libraries, whose observation tells robot and step."""

from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import torch


def episode_length(robot: int, episode: int) -> int:
    """1 to 7 steps."""
    return 1 + (3 * robot + 5 * episode + robot * episode) % 7


def is_failure(robot: int, episode: int) -> bool:
    """Whether an episode terminates; else it is truncated."""
    return (robot + episode) % 2 == 0


def reward(robot: int, episode: int, step: int) -> float:
    """Different in every step, and exact in float32."""
    return robot + episode / 8 + step / 1024


class Counting(gymnasium.Env[Any, Any]):
    """One robot. Its observation is (robot, episode, step)."""

    metadata = {"render_fps": 50}  # noqa: RUF012, as gymnasium has it
    observation_space = gymnasium.spaces.Box(0, 1e6, (3,), np.float64)
    action_space = gymnasium.spaces.Box(-1e6, 1e6, (2,), np.float32)

    def __init__(self, robot: int = 0) -> None:
        self.robot = robot
        self.episode = -1
        self.t = 0

    def observed(self) -> np.ndarray:
        """(3,) float64."""
        return np.array([self.robot, self.episode, self.t], float)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        """Begin the next episode."""
        super().reset(seed=seed)
        self.episode += 1
        self.t = 0
        return self.observed(), {}

    def step(self, action: Any) -> Any:
        """One step; `success` is told in every one."""
        value = reward(self.robot, self.episode, self.t)
        self.t += 1
        done = self.t >= episode_length(self.robot, self.episode)
        failed = is_failure(self.robot, self.episode)
        info = {"success": self.episode % 3 == 0}
        return self.observed(), value, done and failed, done and not failed, info


class Batch:
    """N robots on torch tensors that reset in the step that ends an episode.

    `step` returns five values as manager environments do, or four as rsl-rl's `VecEnv`. Tensors
    are written anew in place, as simulators do.
    """

    def __init__(self, robots: int, values: int, *, auto_reset: bool = True) -> None:
        self.num_envs = robots
        self.cfg = SimpleNamespace(auto_reset=auto_reset)
        self.step_dt = 0.02
        self.device = "cpu"
        self._values = values
        self._envs = [Counting(robot) for robot in range(robots)]
        self._obs = torch.zeros(robots, 3)
        if values == 4:
            self.get_observations = lambda: {"policy": self._obs, "critic": 2 * self._obs}
            self.reset()

    def _seen(self) -> Any:
        return {"policy": self._obs, "critic": 2 * self._obs}

    def reset(self, *, seed: Any = None, env_ids: Any = None) -> Any:
        """All robots, or those of ids; nothing is drawn."""
        for robot in range(self.num_envs) if env_ids is None else env_ids.tolist():
            self._obs[robot] = torch.as_tensor(self._envs[robot].reset()[0])
        return self._seen(), {}

    def step(self, actions: Any) -> Any:
        """One step of all."""
        rewards = torch.zeros(self.num_envs)
        ends = torch.zeros(2, self.num_envs, dtype=torch.bool)
        for robot, env in enumerate(self._envs):
            seen, value, terminated, truncated, _ = env.step(actions[robot])
            rewards[robot] = value
            ends[:, robot] = torch.tensor([terminated, truncated])
            if (terminated or truncated) and self.cfg.auto_reset:
                seen, _ = env.reset()
            self._obs[robot] = torch.as_tensor(seen)
        if self._values == 5:
            return self._seen(), rewards, *ends, {}
        return self._seen(), rewards, ends.any(0).long(), {"time_outs": ends[1]}


def batched_actions(robots: int, step: int) -> np.ndarray:
    """(N, 2) float32, different for every robot and call of `step`."""
    return np.stack([np.arange(robots), np.full(robots, step)], 1).astype(np.float32)
