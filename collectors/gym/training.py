"""Training a task's policies from nothing by SAC, with all that D4RL's recipe needs kept.

The replay buffer keeps every transition; the actor is evaluated and kept at regular steps, so that
"medium", which D4RL defines by the expert's return, can be chosen once that is known (`recipe.py`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from collectors.gym.batch import TaskBatch
from collectors.gym.colored_noise import colored_noise
from collectors.gym.replay import ReplayBuffer
from collectors.gym.sac import BATCH_KEYS, SAC, SACConfig
from collectors.gym.tasks import find_task
from collectors.ppo_checkpoint import replace_file

TRAINING = "training.json"
HISTORY = "history.jsonl"
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
        steps_per_update: environment steps for one update. The paper has 1; more of them give the
            buffer of a longer training for the same computation.
        evaluate_every: steps between evaluations; evaluation_episodes: of the mean action in each.
        checkpoint_every: steps between checkpoints, which wait for the episode's end.
        sac: of the algorithm.
        seed: of everything random; threads: of torch.

    Raises:
        ValueError: no such task, or a number out of its range.
    """

    env: str = "Hopper-v5"
    steps: int = 1_000_000
    random_steps: int = 10_000
    noise_color: float = 0.0
    steps_per_update: int = 1
    evaluate_every: int = 5_000
    evaluation_episodes: int = 5
    checkpoint_every: int = 20_000
    sac: SACConfig = field(default_factory=SACConfig)
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        find_task(self.env)
        for name, value in asdict(self).items():
            least = 0 if name == "seed" else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0.0 <= self.noise_color <= 2.0:
            raise ValueError(f"noise_color must lie in [0, 2], got {self.noise_color}")


def trained_gym_steps(out: Path) -> int:
    """Environment steps of the training in a folder; 0 without one."""
    path = out / TRAINING
    return int(json.loads(path.read_text())["steps"]) if path.exists() else 0


def train_gym(
    config: GymTrainingConfig,
    out: Path,
    report: Callable[[dict[str, Any]], None],
    progress: Callable[[int], None] = lambda steps: None,
) -> None:
    """Train in `out`, or go on with the training there.

    Args:
        report: called after every evaluation with steps, episodes, return, length, steps_per_s.
        progress: called with the steps since the call before, a few times a second.

    Raises:
        ValueError: the task's package is not installed, or another training is in `out`.
    """
    (out / SNAPSHOTS).mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(config.threads)
    training = _Training(config, out)
    try:
        training.run(report, progress)
    finally:
        training.close()


class _Training:
    def __init__(self, config: GymTrainingConfig, out: Path) -> None:
        self.config, self.out = config, out
        task = find_task(config.env)
        self._env, self._judge = TaskBatch(task, 1), TaskBatch(task, 1)
        self.steps, self.episodes, self.wall_s = 0, 0, 0.0
        self._sac = SAC(config.sac, self._env.obs_dim, self._env.act_dim, config.seed)
        self._load()
        self._buffer = ReplayBuffer(
            out, config.steps, self._env.obs_dim, self._env.act_dim, self.steps
        )
        # The step makes the draws of a resumed training other ones than those of its start.
        seeds = np.random.SeedSequence([0x9A3, config.seed, self.steps]).generate_state(3)
        self._rng = np.random.default_rng(seeds[0])
        self._noise = torch.Generator().manual_seed(int(seeds[1]))

    def run(
        self, report: Callable[[dict[str, Any]], None], progress: Callable[[int], None]
    ) -> None:
        config, started, since = self.config, time.perf_counter(), self.steps
        self._reset()
        checkpointed = self.steps
        while self.steps < config.steps:
            ended = self._step()
            if self.steps >= config.random_steps and self.steps % config.steps_per_update == 0:
                self._update()
            if self.steps % _PROGRESS_EVERY == 0:
                progress(_PROGRESS_EVERY)
            if self.steps % config.evaluate_every == 0 or self.steps == config.steps:
                now = time.perf_counter()
                summary = self._evaluate((self.steps - since) / (now - started))
                self.wall_s += time.perf_counter() - started
                report(summary)
                started, since = time.perf_counter(), self.steps
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
        action, log_density = self._sac.actor.sample(torch.from_numpy(obs[None]), noise[None])
        return action[0].numpy(), float(log_density[0])

    def _update(self) -> None:
        rows = self._buffer.draw(self.config.sac.batch_size, self._rng)
        self._sac.update({key: torch.from_numpy(rows[key]) for key in BATCH_KEYS}, self._noise)

    @torch.inference_mode()
    def _evaluate(self, steps_per_s: float) -> dict[str, Any]:
        """Evaluate and keep the actor; the starts are the same every time."""
        returns, lengths = [], []
        for episode in range(self.config.evaluation_episodes):
            self._judge.reset([0], [_EVALUATION_SEED + episode])
            total, length, ended = 0.0, 0, False
            while not ended:
                mean, _ = self._sac.actor(torch.from_numpy(self._judge.observation.policy))
                result = self._judge.step([0], mean.tanh().numpy())
                total, length = total + float(result.reward[0]), length + 1
                ended = bool(result.terminated[0] or result.truncated[0])
            returns.append(total)
            lengths.append(length)
        weights = {key: value.contiguous() for key, value in self._sac.actor.state_dict().items()}
        path = snapshot_path(self.out, self.steps)
        replace_file(path, lambda temporary: save_file(weights, temporary))
        return {
            "steps": self.steps,
            "episodes": self.episodes,
            "return": float(np.mean(returns)),
            "length": float(np.mean(lengths)),
            "temperature": float(self._sac.log_temperature.exp()),
            "steps_per_s": steps_per_s,
            "wall_s": self.wall_s,
        }

    def _save(self) -> None:
        """The buffer's rows, then the tensors; the JSON comes last and makes the checkpoint."""
        self._buffer.flush()
        name = f"training-{self.steps}.safetensors"
        tensors = {key: value.contiguous() for key, value in self._sac.tensors().items()}
        replace_file(self.out / name, lambda path: save_file(tensors, path))
        record = {
            "steps": self.steps,
            "episodes": self.episodes,
            "wall_s": self.wall_s,
            "tensors": name,
            "config": asdict(self.config),
        }
        text = json.dumps(record, indent=1)
        replace_file(self.out / TRAINING, lambda path: path.write_text(text))
        for old in self.out.glob("training-*.safetensors"):
            if old.name != name:
                old.unlink()

    def _load(self) -> None:
        path = self.out / TRAINING
        if not path.exists():
            return
        record = json.loads(path.read_text())
        mine = json.loads(json.dumps(asdict(self.config)))
        differ = [
            key
            for key in mine
            if key not in _FREE_TO_CHANGE and record["config"].get(key) != mine[key]
        ]
        if differ:
            raise ValueError(
                f"{self.out} holds a training with {differ[0]}={record['config'].get(differ[0])}, "
                f"not {mine[differ[0]]}; choose another folder"
            )
        self._sac.load_tensors(load_file(self.out / record["tensors"]))
        self.steps, self.episodes = record["steps"], record["episodes"]
        self.wall_s = record["wall_s"]

    def close(self) -> None:
        self._env.close()
        self._judge.close()


def snapshot_path(out: Path, steps: int) -> Path:
    """The actor after so many steps of a training."""
    return out / SNAPSHOTS / f"{steps}.safetensors"
