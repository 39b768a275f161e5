"""Training an expert with PPO (rsl-rl-lib): curriculum, randomisation and pushes on.

The network learns a correction to the kinematic gait. Every robot slot keeps one terrain and climbs
its levels: up when it has walked more than 80 % of the commanded way, down below 40 % (legged_gym's
rule, measured against the command because windows are short). Commanded speeds widen over the
first `full_speed_steps`.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from rsl_rl.modules.normalization import EmpiricalNormalization
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import load_file, save_file
from tensordict import TensorDict

from collectors.commands import SKILLS
from collectors.environment import LeggedEnvironment
from collectors.episodes import EPISODE_STEPS, EpisodeSpec
from collectors.experts import ExpertFeatures
from collectors.gait import GaitReference
from collectors.policies import Observation
from collectors.robots import N_JOINTS, load_robot
from collectors.terrains import N_LEVELS

TERRAIN_SHARES = {"flat": 0.3, "rough": 0.35, "slope": 0.15, "stairs": 0.1, "obstacles": 0.1}
SKILL_SHARES = {"stand": 0.2, "rush": 0.2, "crawl": 0.1, "squeeze": 0.1, "tilt": 0.1, "run": 0.3}
MAX_RESIDUAL = 6.0


@dataclass(frozen=True)
class ExpertTrainingConfig:
    """How an expert is trained.

    Attributes:
        steps: environment steps in all; robots: simulated at once; horizon: steps each between
            updates.
        max_learning_rate: the adaptive schedule's ceiling; without one it swings up to 4e-3.
        initial_std: of the exploration noise, in action units (0.25 rad).
        full_speed_steps: environment steps after which commands have their whole range.
    """

    robot: str = "aliengo"
    steps: int = 40_000_000
    robots: int = 1024
    horizon: int = 24
    epochs: int = 4
    mini_batches: int = 4
    hidden: tuple[int, ...] = (256, 128, 64)
    learning_rate: float = 1e-3
    max_learning_rate: float = 1e-3
    desired_kl: float = 0.01
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.002
    initial_std: float = 0.6
    full_speed_steps: int = 12_000_000
    seed: int = 0
    threads: int = 2
    learner_threads: int = 1
    checkpoint_every: int = 20


class _CappedPPO(PPO):
    """PPO whose adaptive learning rate has a ceiling."""

    ceiling = 1e-3

    @property
    def learning_rate(self) -> float:
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: float) -> None:
        self._learning_rate = min(value, self.ceiling)


class ExpertTask:
    """The environment as rsl-rl sees it.

    One observation group; actions correct the gait; ended episodes restart.

    Implements the parts of `rsl_rl.env.VecEnv` that PPO reads.
    """

    def __init__(self, config: ExpertTrainingConfig):
        self.num_envs = config.robots
        self.num_actions = N_JOINTS
        self.max_episode_length = EPISODE_STEPS
        self.device = "cpu"
        self.cfg = asdict(config)
        self.speed_scale = 0.0
        self._robot = load_robot(config.robot)
        self._env = LeggedEnvironment(self._robot, config.robots, config.threads)
        self._gait = GaitReference(self._robot)
        self._rng = np.random.default_rng(config.seed)
        names, shares = list(TERRAIN_SHARES), np.array(list(TERRAIN_SHARES.values()))
        quota = np.floor(np.cumsum(shares) * config.robots + 1e-9)
        self._terrain = [
            names[int(np.searchsorted(quota, i, side="right"))] for i in range(config.robots)
        ]
        self.levels = self._rng.integers(0, 4, config.robots)
        self._returns = np.zeros(config.robots)
        self.finished: list[dict[str, Any]] = []
        ids = np.arange(config.robots)
        self._restart(ids)
        # Spread the slots over the window, so that updates see every phase of an episode.
        self._end_at = np.where(
            ids % 4 == 0, EPISODE_STEPS, self._rng.integers(20, EPISODE_STEPS, len(ids))
        )
        self._inputs = self._features(self._env.observe())

    def get_observations(self) -> TensorDict:
        """{"features": (N, FEATURE_DIM)}."""
        return self._tensors()

    def step(self, actions: torch.Tensor) -> tuple[TensorDict, torch.Tensor, torch.Tensor, dict]:
        """Apply corrections (N, 12); see `rsl_rl.env.VecEnv.step`."""
        residual = np.clip(actions.numpy(), -MAX_RESIDUAL, MAX_RESIDUAL)
        transition = self._env.step(self._inputs.reference + residual)
        self._returns += transition.reward
        cut = ~transition.terminated & (self._env.step_count >= self._end_at)
        timed_out = transition.truncated | cut
        done = transition.terminated | timed_out
        observation = transition.observation
        if done.any():
            ids = np.flatnonzero(done)
            self._finish(ids, transition.terminated)
            self._restart(ids)
            self._end_at[ids] = EPISODE_STEPS
            observation = self._env.observe()
        self._inputs = self._features(observation)
        # A small price on corrections keeps the gait where it already works.
        price = 0.0005 * np.square(residual).sum(axis=1)
        reward = torch.from_numpy((transition.reward - price).astype(np.float32))
        extras = {"time_outs": torch.from_numpy(timed_out.astype(np.float32))}
        return self._tensors(), reward, torch.from_numpy(done.astype(np.int64)), extras

    def close(self) -> None:
        """Free the simulator."""
        self._env.close()

    def _features(self, observation: Observation) -> ExpertFeatures:
        return ExpertFeatures.of(observation, self._robot, self._gait)

    def _tensors(self) -> TensorDict:
        features = torch.from_numpy(self._inputs.features)
        return TensorDict({"features": features}, batch_size=[self.num_envs])

    def _restart(self, ids: np.ndarray) -> None:
        specs = []
        for index in ids.tolist():
            terrain = self._terrain[index]
            skills = [s.name for s in SKILLS.values() if terrain in s.terrains]
            shares = np.array([SKILL_SHARES[s] for s in skills])
            skill = str(self._rng.choice(skills, p=shares / shares.sum()))
            seed = int(self._rng.integers(2**62))
            spec = EpisodeSpec(
                0, terrain, int(self.levels[index]), skill, seed, speed_scale=self.speed_scale
            )
            specs.append(spec)
        self._env.reset(ids, specs)
        self._returns[ids] = 0.0

    def _finish(self, ids: np.ndarray, terminated: np.ndarray) -> None:
        """Record ended full episodes and move their slots up or down."""
        for index in ids.tolist():
            spec, fell = self._env.specs[index], bool(terminated[index])
            if spec is None or (not fell and self._env.step_count[index] < EPISODE_STEPS):
                continue
            track = self._env.track(index)
            asked = track.commanded_distance_m()
            share = track.distance_m() / asked if asked > 0.5 else float(not fell)
            if not fell and share > 0.8:
                top = self.levels[index] == N_LEVELS - 1
                self.levels[index] = self._rng.integers(N_LEVELS) if top else self.levels[index] + 1
            elif fell or share < 0.4:
                self.levels[index] = max(0, self.levels[index] - 1)
            self.finished.append(
                {
                    "terrain": spec.terrain,
                    "skill": spec.skill,
                    "return": float(self._returns[index]),
                    "success": self._env.success(index, fell),
                    "survived": not fell,
                }
            )


def _algorithm(config: ExpertTrainingConfig, task: ExpertTask) -> PPO:
    network = {
        "class_name": "rsl_rl.models.MLPModel",
        "hidden_dims": list(config.hidden),
        "activation": "elu",
        "obs_normalization": True,
    }
    distribution = {
        "class_name": "rsl_rl.modules.distribution.GaussianDistribution",
        "init_std": config.initial_std,
    }
    cfg: dict[str, Any] = {
        "num_steps_per_env": config.horizon,
        "obs_groups": {"actor": ["features"], "critic": ["features"]},
        "actor": {**network, "distribution_cfg": distribution},
        "critic": dict(network),
        "algorithm": {
            "class_name": _CappedPPO,
            "num_learning_epochs": config.epochs,
            "num_mini_batches": config.mini_batches,
            "clip_param": config.clip,
            "gamma": config.gamma,
            "lam": config.lam,
            "entropy_coef": config.entropy,
            "learning_rate": config.learning_rate,
            "desired_kl": config.desired_kl,
            "schedule": "adaptive",
        },
        "multi_gpu": None,
    }
    _CappedPPO.ceiling = config.max_learning_rate
    # rsl-rl prints its models; the progress line is ours.
    with contextlib.redirect_stdout(io.StringIO()):
        algorithm = _CappedPPO.construct_algorithm(task.get_observations(), task, cfg, "cpu")  # pyright: ignore[reportArgumentType]
    last = _linears(algorithm)[-1]
    with torch.no_grad():
        # Start from the gait itself.
        last.weight.mul_(0.01)
        last.bias.zero_()
    return algorithm


def _linears(algorithm: PPO) -> list[torch.nn.Linear]:
    """The actor's layers, input first."""
    return [m for m in algorithm.get_policy().mlp if isinstance(m, torch.nn.Linear)]


@dataclass
class _Progress:
    iteration: int = 0
    steps: int = 0
    wall_s: float = 0.0


def train_expert(
    config: ExpertTrainingConfig,
    out: Path,
    report: Callable[[dict[str, Any]], None],
) -> tuple[Path, dict[str, Any]]:
    """Train an expert, or go on from the checkpoint in `out`; returns its weights and its card.

    Args:
        report: called after every update with steps, steps_per_s, remaining_s, mean return,
            success, and the per terrain-skill table of the last window.

    Raises:
        ValueError: a checkpoint of another configuration in `out`.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    task = ExpertTask(config)
    algorithm = _algorithm(config, task)
    progress = _load_checkpoint(out, config, algorithm, task)
    algorithm.train_mode()
    per_update = config.robots * config.horizon
    observations = task.get_observations()
    while progress.steps < config.steps:
        started = time.perf_counter()
        task.speed_scale = min(1.0, progress.steps / max(1, config.full_speed_steps))
        with torch.inference_mode():
            for _ in range(config.horizon):
                observations, reward, done, extras = task.step(algorithm.act(observations))
                algorithm.process_env_step(observations, reward, done, extras)
            simulated = time.perf_counter()
            algorithm.compute_returns(observations)
        losses = algorithm.update()
        progress.iteration += 1
        progress.steps += per_update
        elapsed = time.perf_counter() - started
        progress.wall_s += elapsed
        report(_summary(config, progress, task, algorithm, losses, elapsed, simulated - started))
        if progress.iteration % config.checkpoint_every == 0 or progress.steps >= config.steps:
            _save_checkpoint(out, config, algorithm, task, progress)
    task.close()
    card = {
        "robot": config.robot,
        "skills": list(SKILL_SHARES),
        "terrains": list(TERRAIN_SHARES),
        "steps": progress.steps,
        "wall_s": progress.wall_s,
        "seed": config.seed,
        "training": asdict(config),
    }
    return out / "expert.safetensors", card


def _summary(
    config: ExpertTrainingConfig,
    progress: _Progress,
    task: ExpertTask,
    algorithm: PPO,
    losses: dict[str, float],
    elapsed: float,
    simulating: float,
) -> dict[str, Any]:
    finished, task.finished = task.finished, []
    cells: dict[str, list[float]] = {}
    for episode in finished:
        cells.setdefault(f"{episode['terrain']}/{episode['skill']}", []).append(episode["success"])
    rate = config.robots * config.horizon / elapsed

    def mean(key: str) -> float | None:
        return float(np.mean([e[key] for e in finished])) if finished else None

    return {
        "iteration": progress.iteration,
        "steps": progress.steps,
        "total_steps": config.steps,
        "steps_per_s": rate,
        "remaining_s": (config.steps - progress.steps) / rate,
        "simulation_share": simulating / elapsed,
        "return": mean("return"),
        "success": mean("success"),
        "survival": mean("survived"),
        "level": float(task.levels.mean()),
        "action_std": float(algorithm.get_policy().output_std.mean().detach()),
        "learning_rate": algorithm.learning_rate,
        "losses": losses,
        "cells": {k: [float(np.mean(v)), len(v)] for k, v in sorted(cells.items())},
    }


def _save_checkpoint(
    out: Path, config: ExpertTrainingConfig, algorithm: PPO, task: ExpertTask, progress: _Progress
) -> None:
    """Write the expert, then the training state; the JSON comes last and makes the checkpoint."""
    normaliser = algorithm.get_policy().obs_normalizer
    assert isinstance(normaliser, EmpiricalNormalization), "`_algorithm` asks for one"
    weights = {
        "mean": normaliser.mean.numpy(),
        "std": (normaliser.std + normaliser.eps).numpy(),
    }
    for i, linear in enumerate(_linears(algorithm)):
        weights[f"layer{i}.weight"] = linear.weight.detach().numpy()
        weights[f"layer{i}.bias"] = linear.bias.detach().numpy()
    _replace(out / "expert.safetensors", lambda path: save_numpy(weights, path))

    tensors = {f"{part}.{key}": value for part, key, value in _state_tensors(algorithm)}
    tensors["levels"] = torch.from_numpy(task.levels)
    name = f"training-{progress.iteration}.safetensors"
    _replace(
        out / name, lambda path: save_file({k: v.contiguous() for k, v in tensors.items()}, path)
    )
    record = {
        **asdict(progress),
        "config": asdict(config),
        "tensors": name,
        "learning_rate": algorithm.learning_rate,
    }
    _replace(out / "training.json", lambda path: path.write_text(json.dumps(record, indent=1)))
    for old in out.glob("training-*.safetensors"):
        if old.name != name:
            old.unlink()


def _state_tensors(algorithm: PPO) -> list[tuple[str, str, torch.Tensor]]:
    saved = algorithm.save()
    found = [("actor", k, v) for k, v in saved["actor_state_dict"].items()]
    found += [("critic", k, v) for k, v in saved["critic_state_dict"].items()]
    for index, state in saved["optimizer_state_dict"]["state"].items():
        found += [("optimizer", f"{index}.{k}", v) for k, v in state.items()]
    return found


def _load_checkpoint(
    out: Path, config: ExpertTrainingConfig, algorithm: PPO, task: ExpertTask
) -> _Progress:
    path = out / "training.json"
    if not path.exists():
        return _Progress()
    record = json.loads(path.read_text())
    fixed = ("robot", "robots", "hidden", "horizon")
    mine = json.loads(json.dumps(asdict(config)))
    for key in fixed:
        if record["config"][key] != mine[key]:
            raise ValueError(
                f"{out} holds a training with {key}={record['config'][key]}, not {mine[key]}; "
                "choose another folder"
            )
    tensors = load_file(out / record["tensors"])
    task.levels[:] = tensors.pop("levels").numpy()
    parts: dict[str, dict[str, torch.Tensor]] = {"actor": {}, "critic": {}, "optimizer": {}}
    for key, value in tensors.items():
        part, name = key.split(".", 1)
        parts[part][name] = value
    algorithm.get_policy().load_state_dict(parts["actor"])
    algorithm._raw_critic.load_state_dict(parts["critic"])
    state: dict[int, dict[str, torch.Tensor]] = {}
    for key, value in parts["optimizer"].items():
        index, name = key.split(".", 1)
        state.setdefault(int(index), {})[name] = value
    groups = algorithm.optimizer.state_dict()["param_groups"]
    algorithm.optimizer.load_state_dict({"state": state, "param_groups": groups})
    algorithm.learning_rate = record["learning_rate"]
    return _Progress(record["iteration"], record["steps"], record["wall_s"])


def _replace(path: Path, write: Callable[[Path], Any]) -> None:
    """Write a file under a temporary name, sync, and put it in place."""
    temporary = path.with_name(f".{path.name}.tmp")
    write(temporary)
    with open(temporary, "rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)
