"""Training by behaviour cloning, then PPO, on rollouts of parallel environments.

In a rollout every environment plays one episode. After the first ones the actor is cloned from a
planner's demonstrations, after the others it is updated by PPO.
"""

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from gaitforge.common.networks import squashed_log_density
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.training.records import REPLAY_FILE, ReplayBuffer
from recipes.adroit.config import AdroitConfig
from recipes.adroit.demonstrations import demonstrate
from recipes.adroit.observation_scale import ObservationScale
from recipes.adroit.ppo import PPO, Rollout, value_scale

_ARM = {"AdroitHandDoor-v1": 4, "AdroitHandHammer-v1": 2, "AdroitHandRelocate-v1": 6}
"""Number of leading actions that move the hand as a whole."""
_ARM_SHARE = 0.3


def action_noise(env_id: str, act_dim: int, strength: float) -> np.ndarray:
    """(A,) float32 initial standard deviations: `strength`, and `_ARM_SHARE` of it for the arm.

    Cloned policies of relocate succeeded from 23 of 80 starts without noise and with a std of 0.07
    on the fingers alone; with 0.03 on all actions from 16, with 0.07 on the arm's from 4.
    """
    deviations = np.full(act_dim, strength, np.float32)
    deviations[: _ARM[env_id]] *= _ARM_SHARE
    return deviations


class OnPolicy:
    """Behaviour cloning and PPO; see `gaitforge.plugins.gym.training.train.Learner`."""

    kind: ClassVar[str] = "ppo"

    def __init__(self, config: AdroitConfig, out: Path, steps: int) -> None:
        """In a training's folder, after so many steps."""
        shown = demonstrate(config, out)
        self._obs = shown.obs.reshape(-1, shown.obs.shape[-1])
        self._action = shown.action.reshape(-1, shown.action.shape[-1])
        self._config = config
        task = find_task(config.env)
        self._horizon = task.facts.horizon
        self._episodes = config.ppo.episodes
        self.envs = TaskBatch(task, self._episodes)
        sizes = self.envs.obs_dim, self.envs.act_dim
        scale = value_scale(torch.from_numpy(shown.reward.T.copy()), config.ppo.gamma)
        std = torch.from_numpy(action_noise(config.env, sizes[1], config.noise))
        self.algorithm = PPO(config.ppo, sizes[0], std, scale, config.seed)
        self._rollout_steps = self._episodes * self._horizon
        capacity = config.steps + self._rollout_steps  # the last rollout may go beyond
        self.buffer = ReplayBuffer(out / REPLAY_FILE, capacity, *sizes, steps)
        self._scale = ObservationScale.of(self._obs)
        # With the step, so that a resumed training does not repeat the draws of its start.
        seeds = np.random.SeedSequence([0x0B7, config.seed, steps]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._noise = torch.Generator().manual_seed(int(seeds[1]))
        self._rollout_return = 0.0

    def advance(self, progress: Callable[[int], None]) -> tuple[int, int]:
        """One rollout and its update; reports its steps, returns its steps and episodes."""
        config = self._config.ppo
        cloning = self.buffer.rows < config.imitations * self._rollout_steps
        rollout = self._roll_out(progress)
        self._rollout_return = float(rollout.reward.sum(0).mean())
        for _ in range(config.imitation_updates if cloning else 0):
            rows = self._rng.integers(len(self._obs), size=config.imitation_batch_size)
            obs, action = (torch.from_numpy(each[rows]) for each in (self._obs, self._action))
            self.algorithm.imitate(self._scale(obs), action, self._noise)
        self.algorithm.update(rollout, self._noise, actor=not cloning)
        return self._rollout_steps, self._episodes

    def mean_action(self, obs: Tensor) -> Tensor:
        """(B, Do) observations -> (B, A) mean actions."""
        return self.algorithm.actor(self._scale(obs))[0].tanh()

    def weights(self) -> dict[str, Tensor]:
        """The actor's state dict, for raw observations."""
        return self._scale.weights_for_unscaled(self.algorithm.actor)

    def measured(self) -> dict[str, float]:
        """Further numbers for the history."""
        noise = float(self.algorithm.actor.log_std.bias.detach().exp().mean())
        return {"rollout_return": self._rollout_return, "noise": noise}

    @torch.inference_mode()
    def _roll_out(self, progress: Callable[[int], None]) -> Rollout:
        """An episode of every environment; the buffer gets them one after the other."""
        ids = range(self._episodes)
        transitions = []
        rollout = []
        self.envs.reset(ids, self._rng.integers(2**31, size=self._episodes).tolist())
        for _ in range(self._horizon):
            obs = torch.from_numpy(self.envs.observation.policy.copy())
            scaled = self._scale(obs)
            mean, log_std = self.algorithm.actor(scaled)
            noise = torch.randn(mean.shape, generator=self._noise)
            pre_tanh_action = mean + log_std.exp() * noise
            action = pre_tanh_action.tanh().numpy()
            step = self.envs.step(ids, action)
            log_prob = squashed_log_density(pre_tanh_action, log_std, noise).numpy()
            outcome = step.reward, step.terminated, step.truncated
            next_obs = self.envs.observation.policy.copy()
            transitions.append((obs.numpy(), action, log_prob, *outcome, next_obs))
            rollout.append((scaled, pre_tanh_action, torch.from_numpy(step.reward)))
            progress(self._episodes)
        for episode in ids:
            for transition in transitions:
                self.buffer.add(*(values[episode] for values in transition))
        obs, pre_tanh_action, reward = (torch.stack(each) for each in zip(*rollout, strict=True))
        last = self._scale(torch.from_numpy(self.envs.observation.policy))
        return Rollout(torch.cat([obs, last[None]]), pre_tanh_action, reward)
