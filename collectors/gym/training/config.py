"""What a training is, and whether one is that of another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from collectors.gym.algorithms.ppo import PPOConfig
from collectors.gym.algorithms.sac import SACConfig
from collectors.gym.planning.planner import PlannerConfig
from collectors.gym.tasks import find_task
from collectors.gym.training.demonstrations import Demonstrations, check_can_plan

_FREE_TO_CHANGE = ("steps", "threads", "checkpoint_every")


@dataclass(frozen=True)
class GymTrainingConfig:
    """A training: by SAC from nothing, or by imitation of demonstrations and PPO from there.

    Attributes:
        env: id of the task, see `tasks.TASKS`.
        steps: of the environment in all.
        demonstrations: episodes that a planner plays before, see `demonstrations`; with them the
            training is one of `on_policy`, which `ppo` is for. 0 for one of `off_policy`, which
            `random_steps`, `steps_per_update` and `sac` are for.
        free_demonstrations: attempts that look for what the demonstrations are to be like, see
            `demonstrations`.
        planner: of the demonstrations; ppo: of what is learned from them, from where the noise on
            the actor's actions is at first of the strength `noise`, see `action_noise`.
        random_steps: the first ones, with uniform actions.
        steps_per_update: environment steps for one update. SAC's paper has 1; more of them give the
            buffer of a longer training for the same computation.
        sac: of the algorithm.
        evaluate_every: steps between evaluations; evaluation_episodes: of the mean action in each.
        checkpoint_every: steps between checkpoints, which wait for the episode's end.
        seed: of everything random; threads: of torch and of the planner.

    Raises:
        ValueError: no such task, none that a planner knows, or a number out of its range.
    """

    env: str = "Hopper-v5"
    steps: int = 1_000_000
    demonstrations: int = 0
    free_demonstrations: int = 8
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    noise: float = 0.07
    random_steps: int = 10_000
    steps_per_update: int = 1
    sac: SACConfig = field(default_factory=SACConfig)
    evaluate_every: int = 5_000
    evaluation_episodes: int = 5
    checkpoint_every: int = 20_000
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
        if not 0.0 < self.noise <= 1.0:
            raise ValueError(f"noise must lie in (0, 1], got {self.noise}")


def open_demonstrations(config: GymTrainingConfig, out: Path) -> Demonstrations:
    """Those of a training in its folder, to make them (`demonstrate`) or to learn from them.

    Raises:
        ValueError: as `Demonstrations`.
    """
    return Demonstrations(
        find_task(config.env),
        out,
        config.demonstrations,
        config.free_demonstrations,
        config.seed,
        config.planner,
        config.threads,
    )


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
