"""Train an expert with PPO (rsl-rl-lib), with curriculum, randomisation and pushes.

The network learns a correction to the kinematic gait or, as a blind policy, joint targets; the
critic sees more than the actor (asymmetric actor-critic, Pinto et al., 2018). `training_task` holds
the curriculum of levels.
"""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from rsl_rl.algorithms import PPO
from safetensors.numpy import save

from gaitforge.collectors.experts import ppo_algorithm
from gaitforge.collectors.experts import ppo_checkpoint as checkpoint
from gaitforge.collectors.experts.expert import drives_a_family, load_trained, reading_the_body
from gaitforge.collectors.experts.ppo_algorithm import Networks, PPOSettings, PpoUpdate
from gaitforge.collectors.experts.training_task import (
    SKILL_SHARES,
    TERRAIN_SHARES,
    ExpertTask,
    TrainingScope,
)
from gaitforge.collectors.robots.robot import DEFAULT_ROBOT, load_robots
from gaitforge.collectors.scenarios.randomisation import (
    Randomisation,
    Written,
    set_randomisation,
)
from gaitforge.collectors.scenarios.terrains import N_LEVELS
from gaitforge.collectors.simulators import check_backend, processor_of
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.collectors.training_folder import POLICY
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.machine import default_threads
from gaitforge.common.ranges import Range

WEIGHTS = "expert.safetensors"
KEPT = "kept"
_FIXED = (
    "robot",
    "robots",
    "hidden",
    "horizon",
    "terrains",
    "skills",
    "model",
    "model_overrides",
    "action_filter_hz",
)
"""Settings that must not change when a training resumes."""
_FIRST_LEVELS = 4
"""Levels at which the robots of a new actor start: 0 to 3."""


@dataclass(frozen=True)
class ExpertTrainingConfig(PPOSettings):
    """How an expert is trained; an action unit is 0.25 rad.

    Attributes:
        robot: a robot's name, folder or card; or a folder of robots' folders, one family, for an
            expert that also reads the body.
        robots: number of parallel robots; sim: the physics back end that steps them.
        model: a network of the registry, for actor and critic of a blind policy: it sees what a
            learner sees, and its actions are joint targets. Empty for an expert, an MLP of `hidden`
            layers that sees the simulator's state and corrects the kinematic gait.
        model_overrides: settings of the model's config that differ from its preset's.
        action_filter_hz: cutoff frequency of a first-order low-pass filter of a blind policy's
            actions, part of the policy and of its exports; 0 for none (Sferrazza et al. 2024,
            "Body Transformer", Appendix A: the robot needs one).
        terrains, skills: those that are trained, see `TrainingScope.of`; empty for all.
        full_speed_steps: environment steps over which commanded speeds widen to their full range;
            with `start_from` the range is full at once.
        start_from: an expert (name or file) whose actor training starts from, with `initial_std`
            as its exploration and robots at all levels; one robot's expert may start a family's.
            Empty for an actor that leaves the gait as it is, and robots at the lower levels.
        critic_updates: first updates that train the critic alone, with `start_from` only.
        tracking_weight: extra weight of tracking the linear velocity, added to the reward's own.
        randomisation: quantity -> distribution, where it is not the default; see
            `Randomisation.parsed`. Evaluations of the result have the default.
        keep_every: environment steps between half-trained experts that are saved to the folder
            `kept`, named by their steps, for data of mixed quality. 0 saves none.
    """

    robot: str = DEFAULT_ROBOT
    robots: int = 1024
    sim: str = "mujoco"
    model: str = ""
    model_overrides: Mapping[str, Any] = field(default_factory=dict)
    action_filter_hz: Annotated[float, Range(0.0)] = 0.0
    terrains: tuple[str, ...] = ()
    skills: tuple[str, ...] = ()
    full_speed_steps: int = 12_000_000
    start_from: str = ""
    critic_updates: int = 20
    tracking_weight: float = 0.0
    randomisation: Written = field(default_factory=dict)
    keep_every: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        set_randomisation(self)
        TrainingScope.of(self.terrains, self.skills)
        check_backend(self.sim)
        if self.model and self.start_from:
            raise ValueError(f"start_from is an expert's; training of {self.model} starts anew")
        if self.model_overrides and not self.model:
            raise ValueError("model_overrides need a model; an expert's layers are `hidden`")
        if self.action_filter_hz and not self.model:
            raise ValueError("action_filter_hz needs a model; an expert's actions follow the gait")

    @property
    def processor(self) -> str:
        """See `PPOSettings.processor`."""
        return "cuda" if self.device == "cuda" else processor_of(self.sim)

    @property
    def action_filter(self) -> float:
        """The filter's share of the newest action, 1 - exp(-2 pi f dt); 1 without a filter."""
        cutoff_hz = self.action_filter_hz or math.inf
        return 1.0 - math.exp(-2.0 * math.pi * cutoff_hz * CONTROL_DT_S)


def train_expert(
    config: ExpertTrainingConfig,
    out: Path,
    report: Callable[[dict[str, Any]], None],
    build: Callable[[Mapping[str, Any]], Networks] | None = None,
) -> tuple[Path, dict[str, Any]]:
    """Train an expert, or resume from the checkpoint in `out`; returns its weights and card.

    Args:
        build: makes the networks of `config.model` for the slices of the task's observations.
        report: called after every update with its row of `history.jsonl`, see `_summary`.

    Raises:
        ValueError: a checkpoint of another configuration is in `out`.
        Stopped: (a KeyboardInterrupt) by a signal, after saving a checkpoint.
    """
    out.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(config.seed)
    torch.set_num_threads(config.learner_threads)
    bodies = load_robots(config.robot)
    first = N_LEVELS if config.start_from else _FIRST_LEVELS
    threads = config.threads or default_threads()
    settings = config.robots, threads, config.seed, config.tracking_weight, first
    randomisation = Randomisation.parsed(config.randomisation)
    scope = TrainingScope.of(config.terrains, config.skills, blind=bool(config.model))
    scope = replace(scope, action_filter=config.action_filter, sim=config.sim)
    if scope.blind and len(bodies) > 1:
        raise ValueError(f"{config.model} is trained on one robot, not on a family")
    with closing(ExpertTask(bodies, *settings, randomisation, scope)) as task:
        networks = build(task.slices) if build is not None and scope.blind else None
        algorithm = ppo_algorithm.make_algorithm(config, task, networks)
        progress, extra = checkpoint.load_training(out, asdict(config), _FIXED, algorithm)
        if extra:
            levels = extra["levels"].numpy()
            successes = extra["successes"].numpy()
            task.begin(progress.iteration, levels, successes)
        elif config.start_from:
            weights = load_trained(config.start_from).weights
            if len(bodies) > 1 and not drives_a_family(weights):
                weights = reading_the_body(weights)
            checkpoint.set_actor(algorithm, weights)
        training = _Training(config, out, task, algorithm, progress, networks)
        training.set_stage()
        run = algorithm, task, config, progress, out
        ppo_algorithm.run_updates(*run, training.row, training.save, report)
    return training.place, training.card()


@dataclass
class _Training:
    """A training in progress: its state, history rows and checkpoints."""

    config: ExpertTrainingConfig
    out: Path
    task: ExpertTask
    algorithm: PPO
    progress: checkpoint.Progress
    networks: Networks | None

    def __post_init__(self) -> None:
        self._kept = self.progress.steps // max(1, self.config.keep_every)

    @property
    def place(self) -> Path:
        """Path of the trained weights or policy."""
        return self.out / (POLICY if self.networks else WEIGHTS)

    def set_stage(self) -> None:
        """Set what changes as the training goes on: whether the actor learns, and the speeds."""
        config = self.config
        done = self.progress
        alone = config.critic_updates if config.start_from else 0
        self.algorithm.get_policy().requires_grad_(done.iteration >= alone)
        widened = done.steps / max(1, config.full_speed_steps)
        self.task.speed_scale = 1.0 if config.start_from else min(1.0, widened)

    def row(self, update: PpoUpdate) -> dict[str, Any]:
        """The row of the history; saves the half-trained expert to `kept` if it is due."""
        self.set_stage()
        every = self.config.keep_every
        steps = self.progress.steps
        if every and steps // every > self._kept:
            self._kept = steps // every
            name = str(steps) if self.networks else f"{steps}.safetensors"
            self._write(self.out / KEPT / name)
            if not self.networks:
                card = json.dumps(self.card(), indent=1).encode()
                write_bytes_durably(self.out / KEPT / f"{steps}.json", card)
        return _summary(self.config, self.task, update)

    def save(self) -> None:
        """Write the weights to ship, then the checkpoint."""
        self._write(self.place)
        task = self.task
        names = ("levels", "successes")
        curriculum = {name: torch.from_numpy(getattr(task, name)) for name in names}
        config = asdict(self.config)
        checkpoint.save_training(self.out, config, self.algorithm, self.progress, curriculum)

    def _write(self, path: Path) -> None:
        actor = self.algorithm.get_policy()
        if self.networks is not None:
            self.networks.save(actor, path, self.card())
        else:
            path.parent.mkdir(exist_ok=True)
            write_bytes_durably(path, save(checkpoint.network_weights(actor)))

    def card(self) -> dict[str, Any]:
        """Card of the expert or policy, without the table of its evaluation."""
        config = self.config
        done = self.progress
        return {
            "robot": config.robot,
            "skills": list(config.skills or SKILL_SHARES),
            "terrains": list(config.terrains or TERRAIN_SHARES),
            "steps": done.steps,
            "wall_s": done.wall_s,
            "seed": config.seed,
            "training": asdict(config),
        }


def _summary(config: ExpertTrainingConfig, task: ExpertTask, done: PpoUpdate) -> dict[str, Any]:
    """An update's row of the history; means are None where no episode ended.

    "cells" has {"terrain/skill": [success, survival, episodes]}, "levels" {skill: mean level}.
    """
    finished = task.finished
    task.finished = []
    cells: dict[str, list[tuple[bool, bool]]] = {}
    for episode in finished:
        ended = episode["success"], episode["survived"]
        cells.setdefault(episode["cell"], []).append(ended)

    def mean(key: str) -> float | None:
        return float(np.mean([e[key] for e in finished])) if finished else None

    return done.row(config.steps) | {
        "return": mean("return"),
        "success": mean("success"),
        "survival": mean("survived"),
        "level": float(task.levels.mean()),
        "levels": task.skill_levels(),
        "cells": {k: [*np.mean(v, axis=0).tolist(), len(v)] for k, v in sorted(cells.items())},
    }
