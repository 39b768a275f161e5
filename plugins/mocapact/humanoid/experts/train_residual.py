"""Training a snippet's expert: PPO on a correction of the PD law.

Episodes start at random frames of the snippet with the reference's pose and velocity (reference
state initialisation: Peng et al. 2018, "DeepMimic").
"""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from safetensors.numpy import save
from tensordict import TensorDict

from gaitforge.collectors.experts import ppo_algorithm as checkpoint
from gaitforge.collectors.experts.ppo_algorithm import (
    PPOSettings,
    PpoUpdate,
    make_algorithm,
    run_updates,
)
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.limits import AboveZero, NotNegative, Positive, Range
from gaitforge.common.machine import default_threads
from gaitforge.plugins.mocapact.humanoid.clips.reference import ReferenceClip
from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet
from gaitforge.plugins.mocapact.humanoid.environment import TERMINATION_ERROR
from gaitforge.plugins.mocapact.humanoid.experts.experts import WEIGHTS, PDLaw
from gaitforge.plugins.mocapact.humanoid.experts.humanoid_batch import TrackingBatch
from gaitforge.plugins.mocapact.humanoid.observation import N_JOINTS
from gaitforge.plugins.mocapact.humanoid.walker import load_humanoid

_NETWORK = ("law", "residual_scale", "hidden")
"""Settings that must be those of the training to start from."""

_FIXED = (*_NETWORK, "snippet", "clip", "humanoids", "horizon")
"""Settings that must not change when a training resumes."""


@dataclass(frozen=True)
class ResidualTrainingConfig(PPOSettings):
    """Settings of a snippet's expert training.

    Attributes:
        humanoids: number of parallel humanoids.
        residual_scale: action units per unit of network output. Up to some 0.05 per joint the
            correction stays near the PD law, which sees a joint and its reference alone; with 0.3
            (and `initial_std` 0.33, the noise of 0.1 that rollouts have) the network, which sees
            the whole body, decides.
        residual_price: penalty on the output's mean square; keeps it 0 where it does not help.
        gamma, gae_lambda: MoCapAct's; short horizons suffice, as every reward measures tracking.
        clip_starts: share of episodes that start at the snippet's first frame.
        termination_error: error that ends a training episode; at most the task's own 0.3.
        start_from: folder of another snippet's training, whose networks this one starts from:
            what they see does not depend on the heading, and little on the clip.
    """

    law: PDLaw = field(default_factory=PDLaw)
    steps: Positive = 150_000
    humanoids: Positive = 64
    horizon: Positive = 16
    epochs: Positive = 5
    hidden: tuple[int, ...] = (256, 256)
    learning_rate: AboveZero = 5e-4
    target_kl: AboveZero = 0.3
    gamma: Annotated[float, Range(0, 1, below=True)] = 0.95
    entropy: NotNegative = 0.0
    initial_std: AboveZero = 1.0
    residual_scale: AboveZero = 0.05
    residual_price: NotNegative = 0.05
    clip_starts: Annotated[float, Range(0, 1)] = 0.25
    termination_error: Annotated[float, Range(0, TERMINATION_ERROR, True)] = TERMINATION_ERROR
    start_from: str = ""


class ResidualTask:
    """The batch as rsl-rl's `VecEnv`: actions correct the PD law, ended episodes restart."""

    def __init__(self, batch: TrackingBatch, config: ResidualTrainingConfig, iteration: int):
        self.num_envs = batch.number
        self.num_actions = N_JOINTS
        self.max_episode_length = batch.snippet.steps
        self.device = "cpu"
        self.cfg: dict[str, object] = {}
        self.finished: list[tuple[float, float]] = []
        self._batch = batch
        self._config = config
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
        base = self._config.law.action(self._features)
        residual = actions.numpy()
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
    """Factor that scales returns to the size of a reward, which the critic learns sooner."""
    return 1.0 - config.gamma


def train_residual(
    config: ResidualTrainingConfig,
    clip: ReferenceClip,
    snippet: Snippet,
    out: Path,
    report: Callable[[dict[str, Any]], None],
) -> tuple[Path, dict[str, Any]]:
    """Train an expert in `out`, or resume; returns the path of its weights and its card.

    Args:
        report: called after every update with its row of `history.jsonl`: steps, steps_per_s, and
            the mean normalised return and length of the episodes that ended (None without any).

    Raises:
        ValueError: a training of another snippet or other sizes is in `out`, or none that fits is
            in `start_from`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    tree = {**asdict(config), "snippet": snippet.name, "clip": clip.digest}
    threads = config.threads or default_threads()
    batch = TrackingBatch(load_humanoid(), clip, snippet, config.humanoids, threads)
    with closing(batch):
        task = ResidualTask(batch, config, 0)
        algorithm = make_algorithm(config, task)
        progress, _ = checkpoint.load_training(out, tree, _FIXED, algorithm)
        if config.start_from and not progress.steps:
            _load_start(Path(config.start_from), tree, algorithm)
        if progress.steps:
            task = ResidualTask(batch, config, progress.iteration)

        def write() -> None:
            write_bytes_durably(out / WEIGHTS, save(_shipped_weights(config, algorithm)))
            checkpoint.save_training(out, tree, algorithm, progress, {})

        run = algorithm, task, config, progress, out
        run_updates(*run, partial(_summary, task), write, report)
    return out / WEIGHTS, {
        "snippet": snippet.name,
        "clip": clip.digest,
        "law": asdict(config.law),
        "steps": progress.steps,
        "wall_s": progress.wall_s,
        "training": tree,
    }


def _load_start(folder: Path, tree: dict[str, Any], algorithm: PPO) -> None:
    """Give the networks and the optimiser the state of another snippet's training."""
    if not checkpoint.trained_steps(folder):
        raise ValueError(f"start_from: no training of an expert in {folder}")
    checkpoint.load_training(folder, tree, _NETWORK, algorithm)


def _summary(task: ResidualTask, done: PpoUpdate) -> dict[str, Any]:
    finished = np.array(task.finished).reshape(-1, 2)
    task.finished = []
    mean = finished.mean(axis=0).tolist() if len(finished) else [None, None]
    return done.summary | {"normalised_return": mean[0], "normalised_length": mean[1]}


def _shipped_weights(config: ResidualTrainingConfig, algorithm: PPO) -> dict[str, np.ndarray]:
    """Weights of both networks, rescaled: outputs are action units and unscaled returns."""
    networks = {"actor": algorithm.get_policy(), "critic": algorithm._raw_critic}
    factors = {"actor": config.residual_scale, "critic": 1.0 / _reward_scale(config)}
    last = len(config.hidden)
    tensors = {}
    for part, network in networks.items():
        for key, value in checkpoint.network_weights(network).items():
            outermost = key.startswith(f"layer{last}.")
            tensors[f"{part}.{key}"] = value * factors[part] if outermost else value
    return tensors
