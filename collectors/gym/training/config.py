"""Settings of a training, and the check that a folder's training has the same ones."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gaitforge.collectors.gym.algorithms.ppo import PPOConfig
from gaitforge.collectors.gym.algorithms.sac import SACConfig
from gaitforge.collectors.gym.planning.mppi import PlannerConfig
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.demonstrations import Demonstrations, check_can_plan
from gaitforge.collectors.training_folder import CHECKPOINT_EVERY_S, check_period, check_setting

_FREE_TO_CHANGE = ("steps", "threads", "checkpoint_every_s")


@dataclass(frozen=True)
class GymTrainingConfig:
    """A training by SAC, or by behaviour cloning of demonstrations and then PPO.

    Attributes:
        env: environment id, see `tasks.TASKS`.
        steps: environment steps in all.
        demonstrations: episodes of a planner to clone (`OnPolicy`, with `planner`, `ppo` and
            `noise`); 0 for SAC (`OffPolicy`, with `random_steps`, `steps_per_update` and `sac`).
        free_demonstrations: attempts in search of a reference, see `demonstrations`.
        noise: initial std of the actions, see `action_noise`.
        random_steps: first steps, with uniform actions.
        steps_per_update: environment steps per update. SAC's paper has 1; more of them give a
            longer training's buffer for the same computation.
        evaluate_every: steps between evaluations; evaluation_episodes: of the mean action in each.
        checkpoint_every_s: seconds between checkpoints, which wait for an episode's end.
        seed: random seed; threads: of torch and the planner.
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
    checkpoint_every_s: float = CHECKPOINT_EVERY_S
    seed: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        task = find_task(self.env)
        if self.demonstrations:
            check_can_plan(task)
        check_period(self.checkpoint_every_s)
        for name, value in asdict(self).items():
            least = 0 if name in ("seed", "demonstrations", "checkpoint_every_s") else 1
            if isinstance(value, int) and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if not 0.0 < self.noise <= 1.0:
            raise ValueError(f"noise must lie in (0, 1], got {self.noise}")


def open_demonstrations(config: GymTrainingConfig, out: Path) -> Demonstrations:
    """The demonstrations in a training's folder; raises ValueError as `Demonstrations`."""
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
    """Refuse a folder whose training has other settings: ValueError names the first that differs.

    Args:
        recorded: its settings as JSON values.
    """
    mine, theirs = dict(_flat(asdict(config))), dict(_flat(recorded))
    for name in mine | theirs:
        if name not in _FREE_TO_CHANGE:
            check_setting(out, name, theirs.get(name), mine.get(name))


def _flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ("sac.gamma", 0.99) and so on."""
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value
