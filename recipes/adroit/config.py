"""Settings of a training, and those of the shipped policies."""

from dataclasses import asdict, dataclass, field
from typing import Any

from gaitforge.common.errors import listed
from gaitforge.common.limits import Positive, Share
from gaitforge.plugins.gym.training.settings import TrainingSettings
from recipes.adroit.mppi import PlannerConfig
from recipes.adroit.objectives import OBJECTIVES
from recipes.adroit.ppo import PPOConfig


@dataclass(frozen=True)
class AdroitConfig(TrainingSettings):
    """Demonstrations of a planner, their behaviour cloning, then PPO.

    Attributes:
        demonstrations: episodes to clone.
        free_demonstrations: attempts in search of a reference, see `demonstrations`.
        noise: initial std of the actions, see `on_policy.action_noise`.
    """

    demonstrations: Positive = 25
    free_demonstrations: Positive = 8
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    ppo: PPOConfig = field(default_factory=PPOConfig)
    noise: Share = 0.07

    def __post_init__(self) -> None:
        if self.env not in OBJECTIVES:
            raise ValueError(f"no planner for {self.env}; allowed: {listed(OBJECTIVES)}")
        super().__post_init__()
        for part in ("planner", "ppo"):
            for name, value in asdict(self)[part].items():
                if not 0.0 <= value < float("inf"):
                    raise ValueError(f"{part}.{name} must be a number from 0, got {value}")


_SHIPPED: dict[str, dict[str, Any]] = {
    "AdroitHandDoor-v1": {"steps": 1_200_000, "evaluate_every": 12_000},
    "AdroitHandHammer-v1": {
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


def recommended(env_id: str) -> AdroitConfig:
    """The settings that a shipped policy was trained with."""
    return AdroitConfig(env=env_id, evaluation_episodes=10, **_SHIPPED.get(env_id, {}))
