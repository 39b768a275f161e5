"""Training by SAC: one environment, and an update every few of its steps."""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gaitforge.collectors.gym.algorithms.replay_buffer import REPLAY_FILE, ReplayBuffer
from gaitforge.collectors.gym.algorithms.sac import BATCH_KEYS, SAC
from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.config import GymTrainingConfig

_PROGRESS_EVERY = 50


class OffPolicy:
    """SAC on the whole replay buffer; see `training.Learner`."""

    kind: ClassVar[str] = "sac"

    def __init__(self, config: GymTrainingConfig, out: Path, steps: int) -> None:
        """Continue after `steps` environment steps in a training's folder."""
        self._config = config
        self._steps = steps
        self.envs = TaskBatch(find_task(config.env), 1)
        sizes = self.envs.obs_dim, self.envs.act_dim
        self.algorithm = SAC(config.sac, *sizes, config.seed)
        self.buffer = ReplayBuffer(out / REPLAY_FILE, config.steps, *sizes, steps)
        # With the step, so that a resumed training does not repeat the draws of its start.
        seeds = np.random.SeedSequence([0x9A3, config.seed, steps]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._noise = torch.Generator().manual_seed(int(seeds[1]))
        self._reset()

    def advance(self, progress: Callable[[int], None]) -> tuple[int, int]:
        """One environment step; returns the steps and the episodes that ended."""
        obs = self.envs.observation.policy[0].copy()
        action, log_prob = self._explore(obs)
        step = self.envs.step([0], action[None])
        outcome = step.reward[0], step.terminated[0], step.truncated[0]
        self.buffer.add(obs, action, log_prob, *outcome, self.envs.observation.policy[0])
        ended = bool(step.terminated[0] or step.truncated[0])
        if ended:
            self._reset()
        self._steps += 1
        config = self._config
        if self._steps >= config.random_steps and self._steps % config.steps_per_update == 0:
            rows = self.buffer.draw(config.sac.batch_size, self._rng)
            batch = {key: torch.from_numpy(rows[key]) for key in BATCH_KEYS}
            self.algorithm.update(batch, self._noise)
        if self._steps % _PROGRESS_EVERY == 0:
            progress(_PROGRESS_EVERY)
        return 1, int(ended)

    def mean_action(self, obs: Tensor) -> Tensor:
        """(B, Do) observations -> (B, A) mean actions."""
        return self.algorithm.actor(obs)[0].tanh()

    def weights(self) -> dict[str, Tensor]:
        """The actor's state dict."""
        return self.algorithm.actor.state_dict()

    def measured(self) -> dict[str, float]:
        """Further numbers for the history."""
        return {"temperature": float(self.algorithm.log_temperature.detach().exp())}

    def _reset(self) -> None:
        self.envs.reset([0], [int(self._rng.integers(2**31))])

    @torch.inference_mode()
    def _explore(self, obs: np.ndarray) -> tuple[np.ndarray, float]:
        width = self.envs.act_dim
        if self._steps < self._config.random_steps:
            action = self._rng.uniform(-1.0, 1.0, width).astype(np.float32)
            return action, -width * float(np.log(2.0))
        noise = torch.from_numpy(self._rng.standard_normal((1, width), dtype=np.float32))
        action, log_prob = self.algorithm.actor.sample(torch.from_numpy(obs[None]), noise)
        return action[0].numpy(), float(log_prob[0])
