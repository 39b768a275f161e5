"""The settings that the shipped policies were trained with.

Deviations from SAC's paper (the defaults), so that one core suffices: half as many updates, batches
of half the size, and a higher learning rate of the critics.
"""

from gaitforge.collectors.gym.algorithms.sac import SACConfig
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.config import GymTrainingConfig

_PLANNED = ("AdroitHandDoor-v1", "AdroitHandHammer-v1", "AdroitHandRelocate-v1")
"""Tasks that random exploration never solves."""


def recommended_training(env_id: str) -> GymTrainingConfig:
    """The settings for a task; ValueError where there is no such task, or SAC does not learn it."""
    if env_id in _PLANNED:
        raise ValueError(
            f"soft actor-critic does not learn {env_id}; in a clone of the repository, "
            f"`python -m recipes.adroit {env_id}` trains it"
        )
    sac = SACConfig(batch_size=128, critic_learning_rate=1e-3)
    return GymTrainingConfig(env=find_task(env_id).env_id, steps_per_update=2, sac=sac)
