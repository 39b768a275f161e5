"""Train an expert with PPO (rsl-rl-lib), with curriculum, randomisation and pushes.

The network learns a correction to the kinematic gait; the critic sees more than the actor
(asymmetric actor-critic, Pinto et al., 2018). `training_task` holds the curriculum of levels.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from safetensors.numpy import save_file

from collectors.experts.ppo_algorithm import Update, make_algorithm, ppo_updates
from collectors.experts.ppo_checkpoint import (
    Progress,
    actor_layers,
    load_training,
    network_weights,
    replace_file,
    save_training,
)
from collectors.experts.training_task import SKILL_SHARES, TERRAIN_SHARES, ExpertTask
from collectors.robots.robot import DEFAULT_ROBOT, load_robot

_FIXED = ("robot", "robots", "hidden", "horizon")
"""Settings that a resumed training keeps."""


@dataclass(frozen=True)
class ExpertTrainingConfig:
    """How an expert is trained.

    Attributes:
        steps: environment steps in all; robots: in parallel; horizon: steps per rollout of each.
        max_learning_rate: ceiling of the adaptive schedule, which else reaches 4e-3.
        initial_std: of the exploration noise, in action units (0.25 rad).
        full_speed_steps: environment steps over which commanded speeds widen to their range.
    """

    robot: str = DEFAULT_ROBOT
    steps: int = 40_000_000
    robots: int = 1024
    horizon: int = 24
    epochs: int = 4
    mini_batches: int = 4
    hidden: tuple[int, ...] = (256, 128, 64)
    learning_rate: float = 1e-3
    max_learning_rate: float = 1e-3
    target_kl: float = 0.01
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    entropy: float = 0.002
    initial_std: float = 0.6
    full_speed_steps: int = 12_000_000
    seed: int = 0
    threads: int = 2
    learner_threads: int = 1
    checkpoint_every: int = 20


def train_expert(
    config: ExpertTrainingConfig, out: Path, report: Callable[[dict[str, Any]], None]
) -> tuple[Path, dict[str, Any]]:
    """Train an expert, or resume from the checkpoint in `out`; returns its weights and card.

    ValueError for a checkpoint of another configuration in `out`.

    Args:
        report: called after every update with steps, rates, mean return, success, and a table of
            terrain-skill cells.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    task = ExpertTask(load_robot(config.robot), config.robots, config.threads, config.seed)
    algorithm = make_algorithm(config, task)
    progress, extra = load_training(out, asdict(config), _FIXED, algorithm)
    if extra:
        task.begin(progress.iteration, extra["levels"].numpy())
    weights = out / "expert.safetensors"
    _widen_speeds(task, progress, config)
    for update in ppo_updates(algorithm, task, config.horizon, config.steps, progress):
        _widen_speeds(task, progress, config)
        report(_summary(config, progress, task, algorithm, update))
        if progress.iteration % config.checkpoint_every == 0 or progress.steps >= config.steps:
            policy = algorithm.get_policy()
            tensors = network_weights(actor_layers(algorithm), policy.obs_normalizer)
            replace_file(weights, partial(save_file, tensors))
            levels = {"levels": torch.from_numpy(task.levels)}
            save_training(out, asdict(config), algorithm, progress, levels)
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
    return weights, card


def _widen_speeds(task: ExpertTask, progress: Progress, config: ExpertTrainingConfig) -> None:
    task.speed_scale = min(1.0, progress.steps / max(1, config.full_speed_steps))


def _summary(
    config: ExpertTrainingConfig, progress: Progress, task: ExpertTask, algorithm: PPO, done: Update
) -> dict[str, Any]:
    finished, task.finished = task.finished, []
    cells: dict[str, list[float]] = {}
    for episode in finished:
        cells.setdefault(f"{episode['terrain']}/{episode['skill']}", []).append(episode["success"])
    rate = config.robots * config.horizon / done.elapsed_s

    def mean(key: str) -> float | None:
        return float(np.mean([e[key] for e in finished])) if finished else None

    return {
        "iteration": progress.iteration,
        "steps": progress.steps,
        "total_steps": config.steps,
        "steps_per_s": rate,
        "remaining_s": (config.steps - progress.steps) / rate,
        "simulation_share": done.simulating_s / done.elapsed_s,
        "return": mean("return"),
        "success": mean("success"),
        "survival": mean("survived"),
        "level": float(task.levels.mean()),
        "action_std": float(algorithm.get_policy().output_std.mean().detach()),
        "learning_rate": algorithm.learning_rate,
        "losses": done.losses,
        "cells": {k: [float(np.mean(v)), len(v)] for k, v in sorted(cells.items())},
    }
