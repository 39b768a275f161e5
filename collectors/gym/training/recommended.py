"""The settings that the shipped policies were trained with.

Deviations from SAC's paper (the defaults), so that one core suffices: half as many updates, of half
as many rows, with faster critics.
"""

from dataclasses import replace
from typing import Any

from gaitforge.collectors.gym.algorithms.ppo import PPOConfig
from gaitforge.collectors.gym.algorithms.sac import SACConfig
from gaitforge.collectors.gym.planning.mppi import PlannerConfig
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.config import GymTrainingConfig

_ONE_CORE = SACConfig(batch_size=128, critic_learning_rate=1e-3)
_WITH_DEMONSTRATIONS: dict[str, dict[str, Any]] = {
    "AdroitHandDoor-v1": {"demonstrations": 25, "steps": 1_200_000, "evaluate_every": 12_000},
    "AdroitHandHammer-v1": {
        "demonstrations": 25,
        "ppo": PPOConfig(imitations=64, imitation_updates=12, imitation_learning_rate=3e-4),
        "steps": 1_500_000,
        "evaluate_every": 12_000,
    },
    "AdroitHandRelocate-v1": {
        "demonstrations": 30,
        "planner": PlannerConfig(effort=0.1, horizon=48, knots=5),
        "steps": 8_000_000,
        "evaluate_every": 24_000,
    },
}


def recommended_training(env_id: str) -> GymTrainingConfig:
    """The settings for a task; raises ValueError where there is no such task."""
    config = GymTrainingConfig(env=find_task(env_id).env_id, steps_per_update=2, sac=_ONE_CORE)
    if env_id not in _WITH_DEMONSTRATIONS:
        return config
    return replace(config, evaluation_episodes=10, **_WITH_DEMONSTRATIONS[env_id])
