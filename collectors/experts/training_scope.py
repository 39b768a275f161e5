"""What a training of experts covers: terrains, skills, the actor's sight, episodes and rewards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gaitforge.collectors.legged.rewards import REWARDS, Rewards
from gaitforge.collectors.scenarios.skills import SKILLS, matching_cells
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import listed

TERRAIN_SHARES = {t.name: t.share for t in TERRAINS.values() if t.share > 0}
SKILL_SHARES = {s.name: s.share for s in SKILLS.values() if s.share > 0}
"""Skills that experts are trained on if none are named; the critic's one-hot inputs are in this
order."""


@dataclass(frozen=True)
class TrainingScope:
    """The terrains and skills that are trained, with their shares, what the actor sees, and where.

    Attributes:
        blind: the actor sees the stored observation alone, as a learner does, and its actions are
            joint targets; the critic sees the simulator's state beside it. Else the actor sees that
            state, and its actions correct the kinematic gait.
        action_filter: the newest action's share in what a blind actor's robot executes, beside the
            last executed one.
        sim: the physics back end.
        episode_steps: control steps after which an episode is cut off.
        rewards: the terms of the reward.
    """

    terrains: Mapping[str, float] = field(default_factory=lambda: TERRAIN_SHARES)
    skills: Mapping[str, float] = field(default_factory=lambda: SKILL_SHARES)
    blind: bool = False
    action_filter: float = 1.0
    sim: str = "mujoco"
    episode_steps: int = EPISODE_STEPS
    rewards: Rewards = field(default_factory=lambda: REWARDS)

    @classmethod
    def of(
        cls, terrains: Sequence[str], skills: Sequence[str], blind: bool = False
    ) -> "TrainingScope":
        """The scope of the named terrains and skills (all for none); shares keep their proportions.

        Raises:
            ValueError: an unknown name, or one that goes with none of the others.
        """
        chosen = tuple(terrains or TERRAIN_SHARES), tuple(skills or SKILL_SHARES)
        cells = matching_cells(*chosen, (0,))
        lone = {*chosen[0], *chosen[1]} - {name for cell in cells for name in cell}
        if lone:
            raise ValueError(
                f"{listed(sorted(lone))}: none of the chosen skills is commanded on one of the "
                "chosen terrains"
            )
        return cls(_shares(chosen[0], TERRAIN_SHARES), _shares(chosen[1], SKILL_SHARES), blind)


def _shares(names: Sequence[str], shares: Mapping[str, float]) -> dict[str, float]:
    """Their shares, which add up to 1; names without one weigh as much as the mean of all."""
    weights = {name: shares.get(name, 1.0 / len(shares)) for name in names}
    return {name: weight / sum(weights.values()) for name, weight in weights.items()}
