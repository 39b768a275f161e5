"""Training by soft actor-critic: one environment, and an update every few of its steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from collectors.gym.algorithms.networks import Actor
from collectors.gym.algorithms.observation_scale import ObservationScale
from collectors.gym.algorithms.replay import REPLAY_FILE, ReplayBuffer
from collectors.gym.algorithms.sac import BATCH_KEYS, SAC
from collectors.gym.batch import TaskBatch
from collectors.gym.tasks import find_task
from collectors.gym.training.config import GymTrainingConfig

_PROGRESS_EVERY = 50


class OffPolicy:
    """A `training.Learner` whose actor learns from all that it ever met."""

    def __init__(self, config: GymTrainingConfig, out: Path, steps: int) -> None:
        """In a training's folder, where it took so many steps so far."""
        self._config, self._steps = config, steps
        self._env = TaskBatch(find_task(config.env), 1)
        sizes = self._env.obs_dim, self._env.act_dim
        self._sac = SAC(config.sac, *sizes, config.seed)
        self._buffer = ReplayBuffer(out / REPLAY_FILE, config.steps, *sizes, steps)
        self.scale = ObservationScale.unchanged(self._env.obs_dim)
        # The step makes the draws of a resumed training other ones than those of its start.
        seeds = np.random.SeedSequence([0x9A3, config.seed, steps]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._noise = torch.Generator().manual_seed(int(seeds[1]))
        self._reset()

    @property
    def actor(self) -> Actor:
        """See `training.Learner`."""
        return self._sac.actor

    def advance(self, progress: Callable[[int], None]) -> tuple[int, int]:
        """One step of the environment, see `training.Learner`."""
        ended = self._step()
        self._steps += 1
        if (
            self._steps >= self._config.random_steps
            and self._steps % self._config.steps_per_update == 0
        ):
            rows = self._buffer.draw(self._config.sac.batch_size, self._rng)
            batch = {key: torch.from_numpy(rows[key]) for key in BATCH_KEYS}
            self._sac.update(batch, self._noise)
        if self._steps % _PROGRESS_EVERY == 0:
            progress(_PROGRESS_EVERY)
        return 1, int(ended)

    def measured(self) -> dict[str, float]:
        """See `training.Learner`."""
        return {"temperature": float(self._sac.log_temperature.detach().exp())}

    def tensors(self) -> dict[str, Tensor]:
        """See `training.Learner`."""
        self._buffer.flush()
        return self._sac.tensors()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See `training.Learner`."""
        self._sac.load_tensors(tensors)

    def close(self) -> None:
        """See `training.Learner`."""
        self._env.close()

    def _reset(self) -> None:
        self._env.reset([0], [int(self._rng.integers(2**31))])

    def _step(self) -> bool:
        """One environment step; whether it ended an episode."""
        obs = self._env.observation.policy[0].copy()
        action, log_density = self._explore(obs)
        result = self._env.step([0], action[None])
        self._buffer.add(
            obs=obs,
            action=action,
            log_prob=log_density,
            reward=result.reward[0],
            terminated=result.terminated[0],
            truncated=result.truncated[0],
            next_obs=self._env.observation.policy[0],
        )
        ended = bool(result.terminated[0] or result.truncated[0])
        if ended:
            self._reset()
        return ended

    @torch.inference_mode()
    def _explore(self, obs: np.ndarray) -> tuple[np.ndarray, float]:
        width = self._env.act_dim
        if self._steps < self._config.random_steps:
            action = self._rng.uniform(-1.0, 1.0, width).astype(np.float32)
            return action, -width * float(np.log(2.0))
        noise = torch.from_numpy(self._rng.standard_normal((1, width), dtype=np.float32))
        action, log_density = self._sac.actor.sample(torch.from_numpy(obs[None]), noise)
        return action[0].numpy(), float(log_density[0])
