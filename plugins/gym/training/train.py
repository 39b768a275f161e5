"""Train a task's policies and keep what D4RL's recipe needs.

The replay buffer keeps every transition, and actors are evaluated and saved at regular steps:
D4RL's "medium" depends on the expert's return, so `recipe.py` chooses it at the end.
`OffPolicy` learns by SAC.
"""

import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Protocol

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from gaitforge.collectors.policy import Memoryless, StoredObservation
from gaitforge.collectors.training_folder import TrainingFiles, training_files, write_checkpoint
from gaitforge.common.errors import failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.episodes import evaluate
from gaitforge.plugins.gym.training.records import (
    REPLAY_FILE,
    ReplayBuffer,
    Row,
    TrainingRecord,
    read_training,
)
from gaitforge.plugins.gym.training.sac import BATCH_KEYS, SAC, Algorithm
from gaitforge.plugins.gym.training.settings import GymTrainingConfig, TrainingSettings, check_same

SNAPSHOTS = "snapshots"
_EVALUATION_SEED = 0x5AC
_PROGRESS_EVERY = 50


class Learner(Protocol):
    """An algorithm with its environments and replay buffer.

    `kind` names it in the policies' cards.
    """

    kind: ClassVar[str]
    envs: TaskBatch
    buffer: ReplayBuffer

    def __init__(self, config: Any, out: Path, steps: int) -> None:
        """Continue after `steps` environment steps in a training's folder."""

    @property
    def algorithm(self) -> Algorithm:
        """The networks and their optimisers."""
        ...

    def advance(self, progress: Callable[[int], None]) -> tuple[int, int]:
        """Take steps and learn; returns the steps and the episodes that ended."""
        ...

    def mean_action(self, obs: torch.Tensor) -> torch.Tensor:
        """(B, Do) observations -> (B, A) mean actions."""
        ...

    def weights(self) -> dict[str, torch.Tensor]:
        """The actor's state dict, for raw observations."""
        ...

    def measured(self) -> dict[str, float]:
        """Further numbers for the history."""
        ...


def trained_gym_steps(out: Path) -> int:
    """Environment steps of the training in a folder; 0 without one."""
    record = read_training(out)
    return 0 if record is None else record.steps


class OffPolicy:
    """SAC on the whole replay buffer, in one environment; an update every few of its steps."""

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


def train_gym(
    config: TrainingSettings,
    out: Path,
    report: Callable[[Row], None],
    progress: Callable[[int], None] = lambda steps: None,
    learner: type[Learner] = OffPolicy,
) -> None:
    """Train in `out`, or resume the training there; one process at a time.

    Args:
        report: called after every evaluation with its row of `history.jsonl`: steps, episodes, mean
            return and length, the algorithm's numbers, steps_per_s since the last row, wall_s.
        progress: called a few times a second with the steps since its last call.
        learner: the algorithm that the config belongs to.

    Raises:
        ValueError: another training is in `out`, or weights or returns are not finite.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    (out / SNAPSHOTS).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(config.threads)
    with (
        closing(_Training(config, out, learner)) as training,
        training_files(out, asdict(config), training.steps, report) as files,
    ):
        training.run(progress, files)


class _MeanAction(Memoryless):
    """The mean action of the actor in training."""

    def __init__(self, learner: Learner) -> None:
        self._learner = learner

    @torch.inference_mode()
    def act(self, observation: StoredObservation) -> np.ndarray:
        """(N, A) float32 mean actions."""
        return self._learner.mean_action(torch.from_numpy(observation.policy)).numpy()


class _Training:
    def __init__(self, config: TrainingSettings, out: Path, learner: type[Learner]) -> None:
        self.config = config
        self.out = out
        record = read_training(out)
        if record is not None:
            check_same(config, record.config, out)
        start = record or TrainingRecord({}, 0, 0, 0.0, "")
        self.steps = start.steps
        self.episodes = start.episodes
        self._learner = learner(config, out, self.steps)
        if record is not None:
            self._learner.algorithm.load_state_dict(_read_state(out / record.tensors))
        self._judge = TaskBatch(find_task(config.env), 1)
        self._started = time.perf_counter() - start.wall_s

    @property
    def wall_s(self) -> float:
        """Seconds of training so far, over all processes."""
        return time.perf_counter() - self._started

    def run(self, progress: Callable[[int], None], files: TrainingFiles) -> None:
        config = self.config
        since = (self.steps, self.wall_s)
        while self.steps < config.steps:
            steps, ended = self._learner.advance(progress)
            evaluated = self.steps // config.evaluate_every
            self.steps = self.steps + steps
            self.episodes = self.episodes + ended
            done = self.steps >= config.steps
            if done or self.steps // config.evaluate_every > evaluated:
                speed = (self.steps - since[0]) / (self.wall_s - since[1])
                files.append(self._evaluate(speed))
                since = self.steps, self.wall_s
            files.after_step(self.steps, self._save, last=done, convenient=ended > 0)

    def _evaluate(self, steps_per_s: float) -> Row:
        """Evaluate and save the actor; the starts are the same every time."""
        seeds = range(_EVALUATION_SEED, _EVALUATION_SEED + self.config.evaluation_episodes)
        episodes = evaluate(_MeanAction(self._learner), self._judge, seeds)
        scores = {
            "return": float(np.mean([episode.episode_return for episode in episodes])),
            "length": float(np.mean([episode.length for episode in episodes])),
            **self._learner.measured(),
        }
        if not all(map(isfinite, scores.values())):
            self._stop(", ".join(f"{name} {value}" for name, value in scores.items()))
        row = {
            "steps": self.steps,
            "episodes": self.episodes,
            **scores,
            "steps_per_s": steps_per_s,
            "wall_s": self.wall_s,
        }
        weights = save(self._learner.weights())
        write_bytes_durably(snapshot_path(self.out, self.steps), weights)
        return row

    def _save(self) -> None:
        """Write the buffer, then the checkpoint."""
        self._learner.buffer.flush()
        tensors = self._learner.algorithm.state_dict()
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            self._stop("weights that are not finite")
        record = TrainingRecord(asdict(self.config), self.steps, self.episodes, self.wall_s, "")
        write_checkpoint(self.out, self.steps, tensors, asdict(record))

    def _stop(self, fault: str) -> NoReturn:
        raise ValueError(
            f"the training in {self.out} has {fault} after {self.steps} steps; start again in "
            "another folder with lower learning rates"
        )

    def close(self) -> None:
        self._learner.envs.close()
        self._judge.close()


def snapshot_path(out: Path, steps: int) -> Path:
    """File of the actor after so many steps of a training."""
    return out / SNAPSHOTS / f"{steps}.safetensors"


def _read_state(path: Path) -> dict[str, torch.Tensor]:
    message = f"{path} cannot be read as a training's state"
    with failures(message, OSError, SafetensorError, error=ValueError):
        return load_file(path)
