"""Training a snippet's expert: PPO on a correction of the PD law.

Episodes start at random frames of the snippet with the reference's pose and velocity (reference
state initialisation: Peng et al. 2018, "DeepMimic").
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from safetensors.numpy import save_file
from tensordict import TensorDict

from collectors.experts.ppo_algorithm import make_algorithm, ppo_updates
from collectors.experts.ppo_checkpoint import (
    Progress,
    actor_layers,
    load_training,
    network_weights,
    replace_file,
    save_training,
)
from collectors.humanoid.clips.reference import ReferenceClip
from collectors.humanoid.clips.snippets import Snippet
from collectors.humanoid.environment import TERMINATION_ERROR
from collectors.humanoid.experts.batch import TrackingBatch
from collectors.humanoid.experts.experts import WEIGHTS, PDLaw
from collectors.humanoid.observation import N_JOINTS
from collectors.humanoid.walker import load_humanoid

_FIXED = ("snippet", "clip", "law", "residual_scale", "humanoids", "hidden", "horizon")
"""Settings that a training keeps to when it goes on."""


@dataclass(frozen=True)
class ResidualTrainingConfig:
    """Settings of a snippet's expert training.

    Attributes:
        steps: control steps in all; humanoids: in parallel; horizon: steps of each per rollout.
        residual_scale: action units per unit of network output; initial_std: of its exploration.
        residual_price: penalty on the output's mean square; keeps it 0 where it does not help.
        gamma, gae_lambda: MoCapAct's, short, as every step's reward measures the tracking.
        clip_starts: share of episodes that start at the snippet's first frame.
        termination_error: ends an episode of the training; at most the task's own 0.3.
    """

    law: PDLaw = field(default_factory=PDLaw)
    steps: int = 150_000
    humanoids: int = 64
    horizon: int = 16
    epochs: int = 5
    mini_batches: int = 4
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: float = 5e-4
    max_learning_rate: float = 1e-3
    target_kl: float = 0.3
    gamma: float = 0.95
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.0
    initial_std: float = 1.0
    residual_scale: float = 0.05
    residual_price: float = 0.05
    clip_starts: float = 0.25
    termination_error: float = TERMINATION_ERROR
    seed: int = 0
    threads: int = 2
    learner_threads: int = 1
    checkpoint_every: int = 20

    def __post_init__(self) -> None:
        for name in ("steps", "humanoids", "horizon", "threads", "learner_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0.0 <= self.clip_starts <= 1.0:
            raise ValueError(f"clip_starts must lie in [0, 1], got {self.clip_starts}")
        if not 0.0 < self.termination_error <= TERMINATION_ERROR:
            given = self.termination_error
            raise ValueError(f"termination_error must lie in (0, {TERMINATION_ERROR}], got {given}")


class ResidualTask:
    """The batch as rsl-rl's `VecEnv`: actions correct the PD law, ended episodes restart."""

    def __init__(self, batch: TrackingBatch, config: ResidualTrainingConfig, iteration: int):
        self.num_envs, self.num_actions = batch.number, N_JOINTS
        self.max_episode_length = batch.snippet.steps
        self.device = "cpu"
        self.cfg: dict[str, object] = {}
        self.finished: list[tuple[float, float]] = []
        self._batch, self._config = batch, config
        self._frames = np.array(batch.snippet.random_starts())
        # With the iteration, so that a resumed training does not repeat the draws of its start.
        self._rng = np.random.default_rng([config.seed, iteration])
        self._returns = np.zeros(self.num_envs)
        self._possible = np.ones(self.num_envs)
        self._started = np.zeros(self.num_envs, dtype=np.int64)
        self._start(np.arange(self.num_envs), at_first=0.0)
        self._features = batch.features()

    def get_observations(self) -> TensorDict:
        """{"features": (N, FEATURE_DIM)}."""
        return TensorDict({"features": torch.from_numpy(self._features)}, [self.num_envs])

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Apply corrections (N, 56); see `rsl_rl.env.VecEnv.step`."""
        base, residual = self._config.law.action(self._features), actions.numpy()
        result = self._batch.step(base + self._config.residual_scale * residual)
        self._returns += result.reward
        failed = result.error > self._config.termination_error
        over = result.truncated & ~failed
        ended = np.flatnonzero(failed | over)
        if len(ended):
            lengths = self._batch.frame[ended] - self._started[ended]
            shares = np.stack([self._returns[ended], lengths]) / self._possible[ended]
            self.finished += list(zip(*shares.tolist(), strict=True))
            self._start(ended, self._config.clip_starts)
        self._features = self._batch.features()
        price = self._config.residual_price * np.square(residual).mean(axis=1)
        reward = (result.reward - price) * _reward_scale(self._config)
        return (
            self.get_observations(),
            torch.from_numpy(reward.astype(np.float32)),
            torch.from_numpy((failed | over).astype(np.int64)),
            {"time_outs": torch.from_numpy(over.astype(np.float32))},
        )

    def _start(self, ids: np.ndarray, at_first: float) -> None:
        frames = self._rng.choice(self._frames, len(ids))
        frames[self._rng.random(len(ids)) < at_first] = self._frames[0]
        self._batch.reset(ids, frames)
        self._returns[ids] = 0.0
        self._started[ids] = frames
        self._possible[ids] = self._batch.snippet.last_frame - frames


def _reward_scale(config: ResidualTrainingConfig) -> float:
    """Scales discounted returns to the size of a reward, which the critic learns sooner."""
    return 1.0 - config.gamma


def train_residual(
    config: ResidualTrainingConfig,
    clip: ReferenceClip,
    snippet: Snippet,
    out: Path,
    report: Callable[[dict[str, Any]], None],
) -> tuple[Path, dict[str, Any]]:
    """Train an expert in `out`, or resume; returns the path of its weights and its card.

    Raises ValueError if a training of another snippet or other sizes is in `out`.

    Args:
        report: called after every update with steps, steps_per_s, and the mean normalised return
            and length of the episodes that ended (None without any).
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    tree = {**asdict(config), "snippet": snippet.name, "clip": clip.digest}
    humanoid, weights = load_humanoid(), out / WEIGHTS
    batch = TrackingBatch(humanoid, clip, snippet, config.humanoids, config.threads)
    with closing(batch):
        task = ResidualTask(batch, config, 0)
        algorithm = make_algorithm(config, task)
        progress, _ = load_training(out, tree, _FIXED, algorithm)
        if progress.steps:
            task = ResidualTask(batch, config, progress.iteration)
        for update in ppo_updates(algorithm, task, config.horizon, config.steps, progress):
            rate = config.humanoids * config.horizon / update.elapsed_s
            report(_summary(task, algorithm, progress, rate))
            finished = progress.steps >= config.steps
            if finished or progress.iteration % config.checkpoint_every == 0:
                _save(weights, config, tree, algorithm, progress)
    return weights, {
        "snippet": snippet.name,
        "clip": clip.digest,
        "law": asdict(config.law),
        "steps": progress.steps,
        "wall_s": progress.wall_s,
        "training": tree,
    }


def _summary(task: ResidualTask, algorithm: PPO, progress: Progress, rate: float) -> dict[str, Any]:
    finished, task.finished = np.array(task.finished).reshape(-1, 2), []
    mean = finished.mean(axis=0).tolist() if len(finished) else [None, None]
    return {
        "iteration": progress.iteration,
        "steps": progress.steps,
        "steps_per_s": rate,
        "normalised_return": mean[0],
        "normalised_length": mean[1],
        "action_std": float(algorithm.get_policy().output_std.mean().detach()),
        "learning_rate": algorithm.learning_rate,
    }


def _save(
    weights: Path,
    config: ResidualTrainingConfig,
    tree: dict[str, Any],
    algorithm: PPO,
    progress: Progress,
) -> None:
    """Write the expert, then the training state, which commits the checkpoint."""
    actor, critic = algorithm.get_policy(), algorithm._raw_critic
    critic_layers = [m for m in critic.mlp if isinstance(m, torch.nn.Linear)]
    networks = {
        "actor": network_weights(actor_layers(algorithm), actor.obs_normalizer),
        "critic": network_weights(critic_layers, critic.obs_normalizer),
    }
    # As shipped, the networks give action units and returns of the task's own reward.
    factors = {"actor": config.residual_scale, "critic": 1.0 / _reward_scale(config)}
    last = len(config.hidden)
    tensors = {}
    for part, network in networks.items():
        for key, value in network.items():
            outermost = key.startswith(f"layer{last}.")
            tensors[f"{part}.{key}"] = value * factors[part] if outermost else value
    replace_file(weights, lambda path: save_file(tensors, path))
    save_training(weights.parent, tree, algorithm, progress, {})
