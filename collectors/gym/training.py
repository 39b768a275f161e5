"""Training a task's policies from nothing by SAC, with all that D4RL's recipe needs kept.

The replay buffer keeps every transition; the actor is evaluated and kept at regular steps, so that
"medium", which D4RL defines by the expert's return, can be chosen once that is known (`recipe.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from collectors.gym.batch import TaskBatch, TaskObservation
from collectors.gym.colored_noise import colored_noise
from collectors.gym.demonstrations import Demonstrations, check_can_plan
from collectors.gym.evaluation import evaluate
from collectors.gym.networks import Actor
from collectors.gym.observation_scale import ObservationScale
from collectors.gym.planner import PlannerConfig
from collectors.gym.replay import REPLAY_FILE, ReplayBuffer
from collectors.gym.sac import BATCH_KEYS, SAC, SACConfig
from collectors.gym.tasks import find_task
from collectors.gym.training_record import (
    Row,
    TrainingRecord,
    read_training,
    write_history,
    write_training,
)
from datasets.files import write_bytes_durably

SNAPSHOTS = "snapshots"
_FREE_TO_CHANGE = ("steps", "threads", "checkpoint_every")
_EVALUATION_SEED = 0x5AC
_PROGRESS_EVERY = 50


@dataclass(frozen=True)
class GymTrainingConfig:
    """A training.

    Attributes:
        env: id of the task, see `tasks.TASKS`.
        steps: of the environment in all.
        random_steps: the first ones, with uniform actions.
        noise_color: of the policy's noise while it explores, see `colored_noise`; 0 is the paper's.
        demonstrations: episodes that a planner plays before, see `demonstrations`. Half of each
            batch comes from them, and is imitated as `sac.imitation` says (Ball et al. 2023,
            "Efficient Online Reinforcement Learning with Offline Data", Section 4.1), and the
            networks see observations in units of their spread in them; 0 for the paper's algorithm.
        free_demonstrations: attempts that look for what the demonstrations are to be like, see
            `demonstrations`.
        planner: of the demonstrations.
        steps_per_update: environment steps for one update. The paper has 1; more of them give the
            buffer of a longer training for the same computation.
        evaluate_every: steps between evaluations; evaluation_episodes: of the mean action in each.
        checkpoint_every: steps between checkpoints, which wait for the episode's end.
        sac: of the algorithm.
        seed: of everything random; threads: of torch and of the planner.

    Raises:
        ValueError: no such task, none that a planner knows, or a number out of its range.
    """

    env: str = "Hopper-v5"
    steps: int = 1_000_000
    random_steps: int = 10_000
    noise_color: float = 0.0
    demonstrations: int = 0
    free_demonstrations: int = 8
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    steps_per_update: int = 1
    evaluate_every: int = 5_000
    evaluation_episodes: int = 5
    checkpoint_every: int = 20_000
    sac: SACConfig = field(default_factory=SACConfig)
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        task = find_task(self.env)
        if self.demonstrations:
            check_can_plan(task)
        for name, value in asdict(self).items():
            least = 0 if name in ("seed", "demonstrations") else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0.0 <= self.noise_color <= 2.0:
            raise ValueError(f"noise_color must lie in [0, 2], got {self.noise_color}")


def trained_gym_steps(out: Path) -> int:
    """Environment steps of the training in a folder; 0 without one."""
    record = read_training(out)
    return 0 if record is None else record.steps


def open_demonstrations(config: GymTrainingConfig, out: Path) -> Demonstrations:
    """Those of a training in its folder, to make them (`demonstrate`) or to learn from them.

    Raises:
        ValueError: as `Demonstrations`.
    """
    counts = config.demonstrations, config.free_demonstrations
    task = find_task(config.env)
    return Demonstrations(task, out, *counts, config.seed, config.planner, config.threads)


def check_same(config: GymTrainingConfig, recorded: Mapping[str, Any], out: Path) -> None:
    """Refuse to go on with a training of other settings, or to take its results for one's own.

    Args:
        recorded: its settings as plain values; what a later version added has its default.

    Raises:
        ValueError: names the first setting that differs; steps, threads and checkpoint_every may.
    """
    mine = dict(_flat(asdict(config)))
    theirs = dict(_flat(asdict(GymTrainingConfig()))) | dict(_flat(recorded))
    for name in mine | theirs:
        if name not in _FREE_TO_CHANGE and mine.get(name) != theirs.get(name):
            raise ValueError(
                f"{out} holds a training with {name}={theirs.get(name)}, not {mine.get(name)}; "
                "choose another folder"
            )


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """("sac.gamma", 0.99), …"""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def train_gym(
    config: GymTrainingConfig,
    out: Path,
    report: Callable[[Row], None],
    progress: Callable[[int], None] = lambda steps: None,
) -> None:
    """Train in `out`, or go on with the training there; one process at a time may.

    Args:
        report: called after every evaluation with its row of the history: steps, episodes, mean
            return and length, temperature, steps_per_s since the one before, wall_s so far.
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
        task = find_task(config.env)
        self._env, self._judge = TaskBatch(task, 1), TaskBatch(task, 1)
        self._sac = SAC(config.sac, self._env.obs_dim, self._env.act_dim, config.seed)
        self.steps, self.episodes, wall_s = 0, 0, 0.0
        self.history: list[Row] = []
        if record is not None:
            self._sac.load_tensors(_read_tensors(out / record.tensors))
            self.steps, self.episodes, wall_s = record.steps, record.episodes, record.wall_s
            self.history = list(record.history)
        self._started = time.perf_counter() - wall_s
        sizes = self._env.obs_dim, self._env.act_dim
        self._buffer = ReplayBuffer(out / REPLAY_FILE, config.steps, *sizes, self.steps)
        self._shown: ReplayBuffer | None = None
        self._scale = ObservationScale.unchanged(sizes[0])
        if config.demonstrations:
            self._shown = _read_demonstrations(config, out)
            self._scale = ObservationScale.of(self._shown.all("obs"))
        # The step makes the draws of a resumed training other ones than those of its start.
        seeds = np.random.SeedSequence([0x9A3, config.seed, self.steps]).generate_state(3)
        self._rng = np.random.default_rng(seeds[0])
        self._noise = torch.Generator().manual_seed(int(seeds[1]))

    @property
    def wall_s(self) -> float:
        """Seconds of training up to now, with those before the checkpoint that it went on from."""
        return time.perf_counter() - self._started

    def run(self, report: Callable[[Row], None], progress: Callable[[int], None]) -> None:
        config, since = self.config, (self.steps, self.wall_s)
        self._reset()
        checkpointed = self.steps
        while self.steps < config.steps:
            ended = self._step()
            if self.steps >= config.random_steps and self.steps % config.steps_per_update == 0:
                self._update()
            if self.steps % _PROGRESS_EVERY == 0:
                progress(_PROGRESS_EVERY)
            if self.steps % config.evaluate_every == 0 or self.steps == config.steps:
                report(self._evaluate((self.steps - since[0]) / (self.wall_s - since[1])))
                since = self.steps, self.wall_s
            due = self.steps - checkpointed >= config.checkpoint_every
            if self.steps == config.steps or (ended and due):
                self._save()
                checkpointed = self.steps

    def _reset(self) -> None:
        self._env.reset([0], [int(self._rng.integers(2**31))])
        horizon, color = self._env.task.facts.horizon, self.config.noise_color
        self._exploration = iter(colored_noise(color, horizon, self._env.act_dim, self._rng))

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
        self.steps += 1
        ended = bool(result.terminated[0] or result.truncated[0])
        if ended:
            self.episodes += 1
            self._reset()
        return ended

    @torch.inference_mode()
    def _explore(self, obs: np.ndarray) -> tuple[np.ndarray, float]:
        noise = torch.from_numpy(next(self._exploration))
        if self.steps < self.config.random_steps:
            # The distribution function of the noise: uniform in (-1, 1), with the noise's colour.
            return torch.erf(noise / np.sqrt(2.0)).numpy(), -len(noise) * float(np.log(2.0))
        seen = self._scale(torch.from_numpy(obs[None]))
        action, log_density = self._sac.actor.sample(seen, noise[None])
        return action[0].numpy(), float(log_density[0])

    def _update(self) -> None:
        size, shown = self.config.sac.batch_size, self._shown
        imitated = 0 if shown is None else size // 2
        rows = self._buffer.draw(size - imitated, self._rng)
        if shown is not None:
            others = shown.draw(imitated, self._rng)
            rows = {key: np.concatenate([rows[key], others[key]]) for key in BATCH_KEYS}
        batch = {key: torch.from_numpy(rows[key]) for key in BATCH_KEYS}
        batch |= {key: self._scale(batch[key]) for key in ("obs", "next_obs")}
        self._sac.update(batch, self._noise, imitated)

    def _evaluate(self, steps_per_s: float) -> Row:
        """Evaluate and keep the actor; the starts are the same every time."""
        seeds = range(_EVALUATION_SEED, _EVALUATION_SEED + self.config.evaluation_episodes)
        actor = self._sac.kept_actor
        episodes = evaluate(_MeanAction(actor, self._scale), self._judge, seeds)
        row = {
            "steps": self.steps,
            "episodes": self.episodes,
            "return": float(np.mean([episode.episode_return for episode in episodes])),
            "length": float(np.mean([episode.length for episode in episodes])),
            "temperature": float(self._sac.log_temperature.detach().exp()),
            "steps_per_s": steps_per_s,
            "wall_s": self.wall_s,
        }
        if not (isfinite(row["return"]) and isfinite(row["temperature"])):
            self._refuse_to_go_on(f"return {row['return']}, temperature {row['temperature']}")
        weights = self._scale.weights_for_unscaled(actor)
        write_bytes_durably(snapshot_path(self.out, self.steps), save(weights))
        self.history.append(row)
        write_history(self.out, self.history)
        return row

    def _save(self) -> None:
        """The buffer's rows, then the tensors; the JSON comes last and makes the checkpoint."""
        tensors = {key: value.contiguous() for key, value in self._sac.tensors().items()}
        if not all(bool(torch.isfinite(value).all()) for value in tensors.values()):
            self._refuse_to_go_on("weights that are not finite")
        self._buffer.flush()
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
        self._env.close()
        self._judge.close()


def _read_demonstrations(config: GymTrainingConfig, out: Path) -> ReplayBuffer:
    demonstrations = open_demonstrations(config, out)
    demonstrations.close()
    if demonstrations.counted < config.demonstrations:
        raise ValueError(f"{out} has not all of its {config.demonstrations} demonstrations")
    return demonstrations.buffer


def snapshot_path(out: Path, steps: int) -> Path:
    """The actor after so many steps of a training."""
    return out / SNAPSHOTS / f"{steps}.safetensors"


def _read_tensors(path: Path) -> dict[str, torch.Tensor]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{path} cannot be read as a training's state: {error}") from None
