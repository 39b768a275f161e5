"""Legged robots driven by a policy, alone or in turns with an expert that labels all steps.

A plan of its own beside `LeggedPlan`, whose records and names of parts stay as they are.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.legged.driving import Driver, driven_steps
from gaitforge.collectors.policy import Policy
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.common.ranges import Positive, Range
from gaitforge.datasets import Schema
from gaitforge.flows.progress import Advance
from gaitforge.flows.tasks.interface import PartData
from gaitforge.flows.tasks.legged import LeggedPlan, LeggedSimulation
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_source import PolicySource, named_source


@dataclass(frozen=True)
class LeggedPolicyPlan(LeggedPlan):
    """What to collect with a policy.

    Attributes:
        policy: folder of a training run or an exported policy, or "module:Class".
        expert: labels every step and drives where the policy does not; empty for none, then the
            policy drives all the time and its own actions are stored.
        share: share of the stretches in which the policy drives; stretch: its control steps.
    """

    kind = "legged-policy"

    policy: str = ""
    share: Annotated[float, Range(0, 1, above=True)] = 0.3
    stretch: Positive = 12

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.policy:
            raise ValueError("a policy is needed: a folder, or module:Class")

    @property
    def source(self) -> PolicySource:
        """The policy. Raises ValueError where there is none."""
        return named_source(self.policy)

    def content(self) -> dict[str, object]:
        """See `LeggedPlan.content`. A network's last bits may change with the number of robots."""
        policy = {"policy": self.source.name, "policy_hash": self.source.weights_hash()}
        shared = {"share": self.share, "stretch": self.stretch} if self.expert else {}
        return {**super().content(), **policy, "robots": self.robots, **shared}

    def unknown_policy(self) -> str:
        """See `CollectionPlan.unknown_policy`."""
        return "" if self.source.is_known else self.policy

    def actor_hash(self) -> str:
        """See `LeggedPlan.actor_hash`."""
        return super().actor_hash() if self.expert else self.source.weights_hash()

    def pairs(self) -> list[tuple[RobotCard, str]]:
        """See `LeggedPlan.pairs`: the policy's robot.

        Raises:
            ValueError: the expert's robot is not the policy's.
        """
        robot = LeggedEvaluation(robot=self.robot).card_of(self.source)
        if self.expert:
            driven = load_expert(self.expert, str(robot.path)).policy.robot
            if driven.name != robot.name:
                raise ValueError(f"the policy drives {robot.name}, but the expert {driven.name}")
        return [(robot, self.expert)]

    def actor(self, robots: int, part: str = "") -> tuple[Policy, RobotCard]:
        """See `LeggedPlan.actor`."""
        if self.expert:
            return super().actor(robots, part)
        return self.driver(robots)

    def driver(self, robots: int) -> tuple[Policy, RobotCard]:
        """The policy for a number of robots, and its robot."""
        drives = LeggedEvaluation(robot=self.robot)
        return drives.load(self.source, robots)[0], drives.card_of(self.source)

    def simulate(self, threads: int = 1) -> "LeggedPolicySimulation":
        """See `CollectionPlan.simulate`."""
        return LeggedPolicySimulation(self, threads)


def driven_by(plan: LeggedPlan, policy: str, expert: str, **settings: float) -> LeggedPolicyPlan:
    """The plan with a policy that drives; the arguments are fields of `LeggedPolicyPlan`.

    A folder becomes absolute: workers may run elsewhere. Raises ValueError as the plan.
    """
    if Path(policy).is_dir():
        policy = str(Path(policy).absolute())
    values = {field.name: getattr(plan, field.name) for field in fields(plan)}
    return LeggedPolicyPlan(**{**values, "policy": policy, "expert": expert, **settings})


class LeggedPolicySimulation(LeggedSimulation):
    """A policy on N simulated robots, and the expert that labels its states."""

    _plan: LeggedPolicyPlan

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`.

        Catalog columns beside those of `LeggedPlan`: policy and policy_hash, policy_share and
        policy_stretch as `driven_steps` takes them, and policy_steps, the steps that it drove.
        """
        plan = self._plan
        source = self._plan.source
        robots = self.env.num_robots
        # Loaded for each part: what a policy remembers of earlier parts would change this one.
        policy, _ = plan.driver(robots)
        if plan.expert:
            self.driver = Driver(policy, robots, plan.share, plan.stretch)
            share = plan.share
        else:
            self.policy = policy
            share = 1.0
        data = super().roll_out(part, schema, advance)
        same = {"policy": policy.name, "policy_hash": source.weights_hash()}
        same |= {"policy_share": share, "policy_stretch": plan.stretch}
        episodes = list(zip(data.catalog["seed"], data.catalog["length"], strict=True))
        columns = {name: [value] * len(episodes) for name, value in same.items()}
        driven = [int(driven_steps(seed, share, plan.stretch, n).sum()) for seed, n in episodes]
        return replace(data, catalog={**data.catalog, **columns, "policy_steps": driven})
