"""Settings of trainings by SAC: those that are recommended, and whether a folder has the same."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gaitforge.collectors.training_folder import CHECKPOINT_EVERY_S, check_setting
from gaitforge.common.limits import NotNegative, Positive, Whole, check_ranges
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.training.sac import SACConfig

_FREE_TO_CHANGE = ("steps", "threads", "checkpoint_every_s")


@dataclass(frozen=True)
class TrainingSettings:
    """Settings of trainings by any algorithm.

    Attributes:
        env: environment id, see `tasks.TASKS`.
        steps: environment steps in all.
        evaluate_every: steps between evaluations of the mean action; evaluation_episodes: of each.
        checkpoint_every_s: seconds between checkpoints, which wait for an episode's end.
        seed: random seed; threads: torch's number of threads.
    """

    env: str = "Hopper-v5"
    steps: Positive = 1_000_000
    evaluate_every: Positive = 5_000
    evaluation_episodes: Positive = 5
    checkpoint_every_s: NotNegative = CHECKPOINT_EVERY_S
    seed: Whole = 0
    threads: Positive = 1

    def __post_init__(self) -> None:
        find_task(self.env)
        check_ranges(self)


@dataclass(frozen=True)
class GymTrainingConfig(TrainingSettings):
    """A training by SAC.

    Attributes:
        random_steps: first steps, with uniform actions.
        steps_per_update: environment steps per update. SAC's paper has 1; more steps per update
            fill a larger buffer for the same computation.
    """

    random_steps: Positive = 10_000
    steps_per_update: Positive = 1
    sac: SACConfig = field(default_factory=SACConfig)


def check_same(config: TrainingSettings, recorded: Mapping[str, Any], out: Path) -> None:
    """Refuse a folder whose training has other settings: ValueError names the first that differs.

    Args:
        recorded: that training's settings as JSON values.
    """
    mine = dict(_flat(asdict(config)))
    theirs = dict(_flat(recorded))
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


_PLANNED = ("AdroitHandDoor-v1", "AdroitHandHammer-v1", "AdroitHandRelocate-v1")
"""Tasks that random exploration never solves."""


def recommended_training(env_id: str) -> GymTrainingConfig:
    """The settings that a task's shipped policies were trained with.

    Deviations from SAC's paper (the defaults), so that one core suffices: half as many updates,
    batches of half the size, and a higher learning rate of the critics.

    Raises:
        ValueError: there is no such task, or SAC does not learn it.
    """
    if env_id in _PLANNED:
        raise ValueError(
            f"soft actor-critic does not learn {env_id}; in a clone of the repository, "
            f"`python -m recipes.adroit {env_id}` trains it"
        )
    sac = SACConfig(batch_size=128, critic_learning_rate=1e-3)
    return GymTrainingConfig(env=find_task(env_id).env_id, steps_per_update=2, sac=sac)
