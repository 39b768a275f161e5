"""Training a task's policies from nothing, with all that D4RL's recipe needs kept.

The replay buffer keeps every transition; the actor is evaluated and kept at regular steps, so that
"medium", which D4RL defines by the expert's return, can be chosen once that is known (`recipe.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import NoReturn, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from collectors.gym.algorithms.networks import Actor
from collectors.gym.algorithms.observation_scale import ObservationScale
from collectors.gym.batch import TaskBatch, TaskObservation
from collectors.gym.evaluation import evaluate
from collectors.gym.tasks import find_task
from collectors.gym.training.config import GymTrainingConfig, check_same
from collectors.gym.training.off_policy import OffPolicy
from collectors.gym.training.on_policy import OnPolicy
from collectors.gym.training.record import (
    Row,
    TrainingRecord,
    read_training,
    write_history,
    write_training,
)
from datasets.files import write_bytes_durably

SNAPSHOTS = "snapshots"
_EVALUATION_SEED = 0x5AC


class Learner(Protocol):
    """What makes an actor better, and keeps what it meets in the training's replay buffer.

    Attributes:
        scale: of the observations that its actor takes.
    """

    scale: ObservationScale

    @property
    def actor(self) -> Actor:
        """The actor so far."""
        ...

    def advance(self, progress: Callable[[int], None]) -> tuple[int, int]:
        """Go on by the least that it can.

        Args:
            progress: called with the steps since the call before, a few times a second.

        Returns:
            The environment's steps that it took, and the episodes that ended with the last of them.
        """
        ...

    def measured(self) -> dict[str, float]:
        """Numbers about itself, for the history."""
        ...

    def tensors(self) -> dict[str, Tensor]:
        """All that goes on changing, by name; the buffer's rows are on the disk by then."""
        ...

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Take over what `tensors` gave."""
        ...

    def close(self) -> None:
        """Free the environments."""
        ...


def trained_gym_steps(out: Path) -> int:
    """Environment steps of the training in a folder; 0 without one."""
    record = read_training(out)
    return 0 if record is None else record.steps


def train_gym(
    config: GymTrainingConfig,
    out: Path,
    report: Callable[[Row], None],
    progress: Callable[[int], None] = lambda steps: None,
) -> None:
    """Train in `out`, or go on with the training there; one process at a time may.

    Args:
        report: called after every evaluation with its row of the history: steps, episodes, mean
            return and length, what the learner measures, steps_per_s since the one before, wall_s
            so far.
        progress: called with the steps since the call before, a few times a second.

    Raises:
        ValueError: the task's package is not installed, another training is in `out`, the
            demonstrations are not (`demonstrate`), or this training left the finite numbers.
    """
    (out / SNAPSHOTS).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(config.threads)
    training = _Training(config, out)
    try:
        training.run(report, progress)
    finally:
        training.close()


class _MeanAction:
    """The actor in training, as it is evaluated."""

    def __init__(self, actor: Actor, scale: ObservationScale) -> None:
        self._actor, self._scale = actor, scale

    def reset(self, ids: np.ndarray) -> None:
        """Nothing to forget."""

    @torch.inference_mode()
    def act(self, observation: TaskObservation) -> np.ndarray:
        """(N, A) float32 mean actions."""
        mean, _ = self._actor(self._scale(torch.from_numpy(observation.policy)))
        return mean.tanh().numpy()


class _Training:
    def __init__(self, config: GymTrainingConfig, out: Path) -> None:
        self.config, self.out = config, out
        record = read_training(out)
        if record is not None:
            check_same(config, record.config, out)
        self.steps, self.episodes, wall_s = 0, 0, 0.0
        self.history: list[Row] = []
        if record is not None:
            self.steps, self.episodes, wall_s = record.steps, record.episodes, record.wall_s
            self.history = list(record.history)
        kind = OnPolicy if config.demonstrations else OffPolicy
        self._learner: Learner = kind(config, out, self.steps)
        if record is not None:
            self._learner.load_tensors(_read_tensors(out / record.tensors))
        self._judge = TaskBatch(find_task(config.env), 1)
        self._started = time.perf_counter() - wall_s

    @property
    def wall_s(self) -> float:
        """Seconds of training up to now, with those before the checkpoint that it went on from."""
        return time.perf_counter() - self._started

    def run(self, report: Callable[[Row], None], progress: Callable[[int], None]) -> None:
        config, since = self.config, (self.steps, self.wall_s)
        checkpointed = self.steps
        while self.steps < config.steps:
            taken, ended = self._learner.advance(progress)
            evaluated = self.steps // config.evaluate_every
            self.steps, self.episodes = self.steps + taken, self.episodes + ended
            done = self.steps >= config.steps
            if done or self.steps // config.evaluate_every > evaluated:
                report(self._evaluate((self.steps - since[0]) / (self.wall_s - since[1])))
                since = self.steps, self.wall_s
            if done or (ended and self.steps - checkpointed >= config.checkpoint_every):
                self._save()
                checkpointed = self.steps

    def _evaluate(self, steps_per_s: float) -> Row:
        """Evaluate and keep the actor; the starts are the same every time."""
        seeds = range(_EVALUATION_SEED, _EVALUATION_SEED + self.config.evaluation_episodes)
        actor, scale = self._learner.actor, self._learner.scale
        episodes = evaluate(_MeanAction(actor, scale), self._judge, seeds)
        found = {
            "return": float(np.mean([episode.episode_return for episode in episodes])),
            "length": float(np.mean([episode.length for episode in episodes])),
            **self._learner.measured(),
        }
        if not all(map(isfinite, found.values())):
            told = ", ".join(f"{name} {value}" for name, value in found.items())
            self._refuse_to_go_on(told)
        row = {
            "steps": self.steps,
            "episodes": self.episodes,
            **found,
            "steps_per_s": steps_per_s,
            "wall_s": self.wall_s,
        }
        weights = scale.weights_for_unscaled(actor)
        write_bytes_durably(snapshot_path(self.out, self.steps), save(weights))
        self.history.append(row)
        write_history(self.out, self.history)
        return row

    def _save(self) -> None:
        """The buffer's rows, then the tensors; the JSON comes last and makes the checkpoint."""
        tensors = {key: value.contiguous() for key, value in self._learner.tensors().items()}
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            self._refuse_to_go_on("weights that are not finite")
        name = f"training-{self.steps}.safetensors"
        write_bytes_durably(self.out / name, save(tensors))
        record = TrainingRecord(
            asdict(self.config), self.steps, self.episodes, self.wall_s, name, self.history
        )
        write_training(self.out, record)
        for old in self.out.glob("training-*.safetensors"):
            if old.name != name:
                old.unlink()

    def _refuse_to_go_on(self, what: str) -> NoReturn:
        raise ValueError(
            f"the training in {self.out} has {what} after {self.steps} steps; start it anew in "
            "another folder, with lower learning rates"
        )

    def close(self) -> None:
        self._learner.close()
        self._judge.close()


def snapshot_path(out: Path, steps: int) -> Path:
    """The actor after so many steps of a training."""
    return out / SNAPSHOTS / f"{steps}.safetensors"


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as a training's state: {error}") from None
