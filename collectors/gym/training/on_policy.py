"""Training by imitation, then by proximal policy optimisation: many environments, in rounds.

In a round, every environment plays one episode; in the first rounds the actor then imitates a
planner's demonstrations, in the others it learns from the round (`ppo`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from collectors.gym.algorithms.action_noise import action_noise
from collectors.gym.algorithms.networks import Actor, squashed_log_density
from collectors.gym.algorithms.observation_scale import ObservationScale
from collectors.gym.algorithms.ppo import PPO, Round, value_scale
from collectors.gym.algorithms.replay import REPLAY_FILE, ReplayBuffer
from collectors.gym.batch import TaskBatch
from collectors.gym.tasks import find_task
from collectors.gym.training.config import GymTrainingConfig, open_demonstrations


class OnPolicy:
    """A `training.Learner` whose actor learns from demonstrations, and from what it just met.

    It is for tasks whose episodes all last to the horizon, as those that a planner knows do.
    """

    def __init__(self, config: GymTrainingConfig, out: Path, steps: int) -> None:
        """In a training's folder, where it took so many steps so far.

        Raises:
            ValueError: the demonstrations are not there.
        """
        self._config, self._shown = config, _read_demonstrations(config, out)
        task = find_task(config.env)
        self._horizon, self._episodes = task.facts.horizon, config.ppo.episodes
        self._envs = TaskBatch(task, self._episodes)
        sizes = self._envs.obs_dim, self._envs.act_dim
        rewards = self._shown.all("reward").reshape(-1, self._horizon).T
        scale = value_scale(torch.from_numpy(rewards.copy()), config.ppo.gamma)
        noise = torch.from_numpy(action_noise(task, sizes[1], config.noise))
        self._ppo = PPO(config.ppo, sizes[0], noise, scale, config.seed)
        # The last round goes beyond the steps that are wanted.
        self._round_steps = self._episodes * self._horizon
        capacity = config.steps + self._round_steps
        self._buffer = ReplayBuffer(out / REPLAY_FILE, capacity, *sizes, steps)
        self.scale = ObservationScale.of(self._shown.all("obs"))
        # The step makes the draws of a resumed training other ones than those of its start.
        seeds = np.random.SeedSequence([0x0B7, config.seed, steps]).generate_state(2)
        self._rng = np.random.default_rng(seeds[0])
        self._noise = torch.Generator().manual_seed(int(seeds[1]))
        self._round_return = 0.0

    @property
    def actor(self) -> Actor:
        """See `training.Learner`."""
        return self._ppo.actor

    def advance(self, progress: Callable[[int], None]) -> tuple[int, int]:
        """One round, see `training.Learner`."""
        config = self._config.ppo
        imitating = self._buffer.rows < config.imitations * self._round_steps
        met = self._play(progress)
        self._round_return = float(met.reward.sum(0).mean())
        for _ in range(config.imitation_updates if imitating else 0):
            rows = self._shown.draw(config.imitation_batch_size, self._rng)
            obs, action = (torch.from_numpy(rows[key]) for key in ("obs", "action"))
            self._ppo.imitate(self.scale(obs), action, self._noise)
        self._ppo.improve(met, self._noise, act=not imitating)
        return self._round_steps, self._episodes

    def measured(self) -> dict[str, float]:
        """See `training.Learner`."""
        noise = float(self._ppo.actor.log_std.bias.detach().exp().mean())
        return {"round_return": self._round_return, "noise": noise}

    def tensors(self) -> dict[str, Tensor]:
        """See `training.Learner`."""
        self._buffer.flush()
        return self._ppo.tensors()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """See `training.Learner`."""
        self._ppo.load_tensors(tensors)

    def close(self) -> None:
        """See `training.Learner`."""
        self._envs.close()

    @torch.inference_mode()
    def _play(self, progress: Callable[[int], None]) -> Round:
        """An episode of every environment, which the buffer then has one after the other."""
        ids = range(self._episodes)
        seen, met = [], []
        self._envs.reset(ids, self._rng.integers(2**31, size=self._episodes).tolist())
        for _ in range(self._horizon):
            obs = torch.from_numpy(self._envs.observation.policy.copy())
            scaled = self.scale(obs)
            mean, log_std = self._ppo.actor(scaled)
            noise = torch.randn(mean.shape, generator=self._noise)
            before = mean + log_std.exp() * noise
            action = before.tanh().numpy()
            result = self._envs.step(ids, action)
            log_density = squashed_log_density(before, log_std, noise)
            columns = {
                "obs": obs.numpy(),
                "action": action,
                "log_prob": log_density.numpy(),
                "reward": result.reward,
                "terminated": result.terminated,
                "truncated": result.truncated,
                "next_obs": self._envs.observation.policy.copy(),
            }
            seen.append(columns)
            met.append((scaled, before, torch.from_numpy(result.reward)))
            progress(self._episodes)
        for episode in ids:
            for columns in seen:
                self._buffer.add(**{name: values[episode] for name, values in columns.items()})
        obs, before, reward = (torch.stack(each) for each in zip(*met, strict=True))
        last = self.scale(torch.from_numpy(self._envs.observation.policy))
        return Round(torch.cat([obs, last[None]]), before, reward)


def _read_demonstrations(config: GymTrainingConfig, out: Path) -> ReplayBuffer:
    demonstrations = open_demonstrations(config, out)
    demonstrations.close()
    if demonstrations.counted < config.demonstrations:
        raise ValueError(f"{out} has not all of its {config.demonstrations} demonstrations")
    return demonstrations.buffer
