"""Legged robots: an expert on N simulated robots."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from math import ceil
from typing import Any

from collectors.experts.expert import DEFAULT_EXPERT, load_expert
from collectors.legged import data
from collectors.legged.driving import Driver
from collectors.legged.environment import LeggedEnvironment
from collectors.legged.rollout import run_episodes
from collectors.policies import Policy
from collectors.robots.robot import RobotCard
from collectors.simulators import check_backend
from collectors.timing import EPISODE_STEPS
from datasets import Schema
from flows.progress import Advance
from flows.records.records import digest
from flows.settings import override, with_chosen
from flows.tasks.interface import MAX_WORKERS, CollectionPlan, PartData, Simulation

MAX_ROBOTS = 100_000


def check_parallelism(robots: int, threads: int) -> None:
    """Raise ValueError unless a simulator can have so many robots and threads."""
    if not (0 < robots <= MAX_ROBOTS and 0 < threads <= MAX_WORKERS):
        raise ValueError(
            f"{robots} robots on {threads} threads: both must be at least 1, and at most "
            f"{MAX_ROBOTS:,} and {MAX_WORKERS}"
        )


@dataclass(frozen=True)
class LeggedPlan(CollectionPlan):
    """What to collect with legged robots.

    Attributes:
        grid: the episodes; expert: name or file of the policy that acts; sim: physics back end.
        form: which fields are stored, and in which precision.
        robots: most parallel robots of a simulator; threads: of a local run.
    """

    kind = "legged"
    parallelism = "threads"

    grid: data.CollectionGrid = field(default_factory=data.CollectionGrid)
    form: data.StoredForm = field(default_factory=data.StoredForm)
    expert: str = DEFAULT_EXPERT
    sim: str = "mujoco"
    robots: int = 320
    threads: int = 2

    def __post_init__(self) -> None:
        check_backend(self.sim)
        check_parallelism(self.robots, self.threads)

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`; the list grows with `grid.parts`."""
        steps = self.grid.episodes_per_part * EPISODE_STEPS
        return dict.fromkeys(self.grid.part_ids(digest(self.content())[:6]), steps)

    def content(self) -> dict[str, Any]:
        """What the parts' names change with."""
        return {
            **asdict(replace(self.grid, parts=1)),
            "expert": self.actor_hash(),
            "sim": self.sim,
            "form": asdict(self.form),
        }

    def actor_hash(self) -> str:
        """Of the policy whose actions are stored."""
        return load_expert(self.expert).hash

    def actor(self, robots: int) -> tuple[Policy, RobotCard]:
        """The policy whose actions are stored, for a number of robots, and its robot."""
        expert = load_expert(self.expert).policy
        return expert, expert.robot

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`."""
        return data.legged_schema(self.actor(1)[1], self.form)

    def simulate(self, threads: int = 1) -> "LeggedSimulation":
        """See `CollectionPlan.simulate`."""
        return LeggedSimulation(self, threads)


class LeggedSimulation(Simulation):
    """An expert on N simulated robots.

    Attributes:
        env: the simulated robots; policy: its actions are stored; driver: drives in its place.
    """

    def __init__(self, plan: LeggedPlan, threads: int):
        self._plan = plan
        # Full waves: a last wave of a few episodes would leave the other robots idle.
        waves = ceil(plan.grid.episodes_per_part / plan.robots)
        robots = ceil(plan.grid.episodes_per_part / waves)
        self.policy, robot = plan.actor(robots)
        self.driver: Driver | None = None
        self.env = LeggedEnvironment(robot, robots, threads, plan.sim)

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`."""
        policy, physics, form = self.policy, self.env.physics, self._plan.form
        episodes = run_episodes(
            self.env,
            policy,
            self._plan.grid.part_specs(part),
            record=True,
            privileged=form.privileged,
            state=form.state,
            progress=lambda n: advance(n, ""),
            driver=self.driver,
        )
        results = list(episodes)
        simulator, expert = (physics.name, physics.version), (policy.name, self._plan.actor_hash())
        catalog = data.part_catalog(results, self.env.robot, simulator, expert)
        return PartData(*data.part_arrays(results, schema), catalog)

    def close(self) -> None:
        """See `Simulation.close`."""
        self.env.close()


def legged_plan(
    preset: str,
    grid: Mapping[str, Any],
    top: Mapping[str, Any],
    settings: Sequence[str],
    form: Mapping[str, Any] | None = None,
) -> LeggedPlan:
    """The plan of a preset with some values replaced.

    Args:
        grid, top, form: field -> value of the grid, of the plan and of what it stores; None leaves
            the field as it is. settings: as `override` takes them.

    Raises:
        ValueError: no such preset, or values that the plan refuses.
    """
    if preset not in data.COLLECTION_PRESETS:
        raise ValueError(
            f"unknown preset '{preset}'; allowed: {', '.join(data.COLLECTION_PRESETS)}"
        )
    chosen = with_chosen(data.COLLECTION_PRESETS[preset], grid)
    plan = LeggedPlan(grid=chosen, form=with_chosen(data.StoredForm(), form or {}))
    return override(with_chosen(plan, top), settings)
