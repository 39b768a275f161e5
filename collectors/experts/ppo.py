"""Train an expert with PPO (rsl-rl-lib), with curriculum, randomisation and pushes.

The network learns a correction to the kinematic gait; the critic sees more than the actor
(asymmetric actor-critic, Pinto et al., 2018). `training_task` holds the curriculum of levels.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save

from collectors.experts import ppo_checkpoint as checkpoint
from collectors.experts.expert import load_expert
from collectors.experts.ppo_algorithm import PPOSettings, Update, make_algorithm, ppo_updates
from collectors.experts.training_task import SKILL_SHARES, TERRAIN_SHARES, ExpertTask
from collectors.robots.robot import DEFAULT_ROBOT, load_robots
from datasets.files import write_bytes_durably

_FIXED = ("robot", "robots", "hidden", "horizon")
"""Settings that a resumed training keeps."""


@dataclass(frozen=True)
class ExpertTrainingConfig(PPOSettings):
    """How an expert is trained; an action unit is 0.25 rad.

    Attributes:
        robot: a robot's name, folder or card; or a folder of robots' folders, one family, for an
            expert that also reads the body.
        robots: in parallel.
        full_speed_steps: environment steps over which commanded speeds widen to their range.
        start_from: an expert (name or file) whose actor training starts from, with `initial_std`
            as its exploration; empty for an actor that leaves the gait as it is.
        critic_updates: first updates that train the critic alone, where there is such an expert.
    """

    robot: str = DEFAULT_ROBOT
    robots: int = 1024
    full_speed_steps: int = 12_000_000
    start_from: str = ""
    critic_updates: int = 20


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
    task = ExpertTask(load_robots(config.robot), config.robots, config.threads, config.seed)
    algorithm = make_algorithm(config, task)
    progress, extra = checkpoint.load_training(out, asdict(config), _FIXED, algorithm)
    if extra:
        task.begin(progress.iteration, extra["levels"].numpy(), extra["successes"].numpy())
    elif config.start_from:
        checkpoint.set_actor(algorithm, load_expert(config.start_from).weights)
    weights = out / "expert.safetensors"
    _widen_speeds(task, progress, config)
    alone = config.critic_updates if config.start_from else 0
    algorithm.get_policy().requires_grad_(progress.iteration >= alone)
    for update in ppo_updates(algorithm, task, config, progress):
        algorithm.get_policy().requires_grad_(progress.iteration >= alone)
        _widen_speeds(task, progress, config)
        report(_summary(config, task, update))
        if update.checkpoint_due:
            tensors = checkpoint.network_weights(algorithm.get_policy())
            write_bytes_durably(weights, save(tensors))
            curriculum = {
                "levels": torch.from_numpy(task.levels),
                "successes": torch.from_numpy(task.successes),
            }
            checkpoint.save_training(out, asdict(config), algorithm, progress, curriculum)
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


def _widen_speeds(
    task: ExpertTask, progress: checkpoint.Progress, config: ExpertTrainingConfig
) -> None:
    task.speed_scale = min(1.0, progress.steps / max(1, config.full_speed_steps))


def _summary(config: ExpertTrainingConfig, task: ExpertTask, done: Update) -> dict[str, Any]:
    finished, task.finished = task.finished, []
    cells: dict[str, list[float]] = {}
    for episode in finished:
        cells.setdefault(f"{episode['terrain']}/{episode['skill']}", []).append(episode["success"])

    def mean(key: str) -> float | None:
        return float(np.mean([e[key] for e in finished])) if finished else None

    return done.summary | {
        "total_steps": config.steps,
        "remaining_s": (config.steps - done.summary["steps"]) / done.summary["steps_per_s"],
        "simulation_share": done.simulation_share,
        "return": mean("return"),
        "success": mean("success"),
        "survival": mean("survived"),
        "level": float(task.levels.mean()),
        "losses": done.losses,
        "cells": {k: [float(np.mean(v)), len(v)] for k, v in sorted(cells.items())},
    }
