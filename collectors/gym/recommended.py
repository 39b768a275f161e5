"""The settings that the shipped policies were trained with, task by task.

They differ from the paper's (`GymTrainingConfig`'s and `SACConfig`'s own defaults) where a training
on one core would take too long: half as many updates, of half as many rows, with faster critics.
"""

from __future__ import annotations

from dataclasses import replace

from collectors.gym.planner import PlannerConfig
from collectors.gym.sac import SACConfig
from collectors.gym.tasks import find_task
from collectors.gym.training import GymTrainingConfig

_ONE_CORE = SACConfig(batch_size=128, critic_learning_rate=1e-3)
_IMITATING = replace(
    _ONE_CORE,
    temperature=0.05,
    layer_norm=True,
    entropy_in_values=False,
    imitation=10.0,
    imitation_noise=0.3,
    actor_tau=0.005,
)
# With the learning rate of the door, the hammer's policy goes from nothing to all within 500 steps,
# and there is no medium one.
_WITH_DEMONSTRATIONS = {
    "AdroitHandDoor-v1": {"steps": 55_000, "evaluate_every": 500, "sac": _IMITATING},
    "AdroitHandHammer-v1": {
        "steps": 15_000,
        "evaluate_every": 200,
        "sac": replace(_IMITATING, learning_rate=1e-4),
    },
    "AdroitHandRelocate-v1": {
        "steps": 55_000,
        "evaluate_every": 500,
        "sac": _IMITATING,
        "planner": PlannerConfig(effort=0.1, horizon=48, knots=5),
    },
}


def recommended_training(env_id: str) -> GymTrainingConfig:
    """The settings for a task; those that a planner knows begin with its demonstrations.

    Raises:
        ValueError: no such task.
    """
    config = GymTrainingConfig(env=find_task(env_id).env_id, steps_per_update=2, sac=_ONE_CORE)
    if env_id not in _WITH_DEMONSTRATIONS:
        return config
    return replace(
        config,
        random_steps=1_000,
        noise_color=1.0,
        demonstrations=40,
        evaluation_episodes=10,
        **_WITH_DEMONSTRATIONS[env_id],
    )
