"""Training by behaviour cloning, then PPO, on rollouts of parallel environments.

In a rollout every environment plays one episode. After the first ones the actor is cloned from a
planner's demonstrations, after the others it is updated by PPO.
"""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import torch

from gaitforge.collectors.gym.algorithms.action_noise import action_noise
from gaitforge.collectors.gym.algorithms.observation_scale import ObservationScale
from gaitforge.collectors.gym.algorithms.ppo import PPO, Rollout, value_scale
from gaitforge.collectors.gym.algorithms.replay import REPLAY_FILE, ReplayBuffer
from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.config import GymTrainingConfig, open_demonstrations
from gaitforge.datasets.networks import squashed_log_density


class OnPolicy:
    """Behaviour cloning and PPO, for tasks whose episodes all last to the horizon."""

    def __init__(self, config: GymTrainingConfig, out: Path, steps: int) -> None:
        """In a training's folder, after so many steps; ValueError without its demonstrations."""
        with closing(open_demonstrations(config, out)) as demonstrations:
            if demonstrations.counted < config.demonstrations:
                raise ValueError(f"{out} lacks some of its {config.demonstrations} demonstrations")
        self._config, self._demonstrations = config, demonstrations.buffer
        task = find_task(config.env)
        self._horizon, self._episodes = task.facts.horizon, config.ppo.episodes
        self.envs = TaskBatch(task, self._episodes)
        sizes = self.envs.obs_dim, self.envs.act_dim
        rewards = self._demonstrations.all("reward").reshape(-1, self._horizon).T
        scale = value_scale(torch.from_numpy(rewards.copy()), config.ppo.gamma)
        std = torch.from_numpy(action_noise(task, sizes[1], config.noise))
        self.algorithm = PPO(config.ppo, sizes[0], std, scale, config.seed)
        self._rollout_steps = self._episodes * self._horizon
        capacity = config.steps + self._rollout_steps  # the last rollout may go beyond
        self.buffer = ReplayBuffer(out / REPLAY_FILE, capacity, *sizes, steps)
        self.scale = ObservationScale.of(self._demonstrations.all("obs"))
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
            rows = self._demonstrations.draw(config.imitation_batch_size, self._rng)
            obs, action = (torch.from_numpy(rows[key]) for key in ("obs", "action"))
            self.algorithm.imitate(self.scale(obs), action, self._noise)
        self.algorithm.update(rollout, self._noise, actor=not cloning)
        return self._rollout_steps, self._episodes

    def measured(self) -> dict[str, float]:
        """Further numbers for the history."""
        noise = float(self.algorithm.actor.log_std.bias.detach().exp().mean())
        return {"rollout_return": self._rollout_return, "noise": noise}

    @torch.inference_mode()
    def _roll_out(self, progress: Callable[[int], None]) -> Rollout:
        """An episode of every environment; the buffer gets them one after the other."""
        ids = range(self._episodes)
        transitions, rollout = [], []
        self.envs.reset(ids, self._rng.integers(2**31, size=self._episodes).tolist())
        for _ in range(self._horizon):
            obs = torch.from_numpy(self.envs.observation.policy.copy())
            scaled = self.scale(obs)
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
        last = self.scale(torch.from_numpy(self.envs.observation.policy))
        return Rollout(torch.cat([obs, last[None]]), pre_tanh_action, reward)
