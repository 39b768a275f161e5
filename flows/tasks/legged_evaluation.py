"""Legged robots driven by a policy: its evaluation on a grid, and collection with it.

`LeggedEvaluation` has a grid of terrains, skills and levels.

`LeggedPolicyPlan` collects with a policy, alone or in turns with an expert that labels all steps.
It is a plan of its own beside `LeggedPlan`, whose records and names of parts stay as they are.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, Self

import numpy as np

from gaitforge.collectors.experts.expert import (
    DEFAULT_EXPERT,
    UnknownExpertError,
    load_expert,
    shipped_experts,
)
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import Driver, driven_steps
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.replaying import stored_randomisation
from gaitforge.collectors.legged.rewards import largest_return, rewards_of
from gaitforge.collectors.legged.rollout import EvaluationGrid, cell_measures, evaluate
from gaitforge.collectors.physics import released_version
from gaitforge.collectors.policy import Observation, Policy
from gaitforge.collectors.robots.robot import (
    DEFAULT_ROBOT,
    SEVERAL,
    RobotCard,
    absolute_robot,
    body_vector,
    is_robot,
    list_robots,
    load_robot,
    load_robots,
)
from gaitforge.collectors.scenarios.randomisation import Randomisation, Written, set_randomisation
from gaitforge.collectors.scenarios.schedules import CONSTANT, MANOEUVRES, fitting
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.collectors.timing import EPISODE_S, steps_in
from gaitforge.common.errors import listed
from gaitforge.common.limits import LATER, Positive, Range
from gaitforge.common.machine import default_threads
from gaitforge.datasets import Schema, Selection
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.part_records import plan_records
from gaitforge.flows.records.records import digest
from gaitforge.flows.tasks.evaluation import Cell, EvaluationPlan
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Workers
from gaitforge.flows.tasks.legged import LeggedPlan, LeggedSimulation, Robots
from gaitforge.flows.tasks.policy_sources import (
    EXPERT,
    EXPORTED,
    RUN,
    PolicySource,
    named_source,
    shipped_in_words,
    trained_robot,
)
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.onnx_policy import read_description
from gaitforge.learners.policy_network import PolicyNetwork


# Evaluation on a grid of terrains, skills and levels.
def cells_of(selection: Selection) -> dict[str, Any]:
    """The terrains, skills and levels of some episodes, in the order of reports.

    Manoeuvres, too, where commands change.
    """
    table = selection.episodes("terrain", "skill", "level")

    def present(column: str, order: Sequence[str]) -> tuple[str, ...]:
        names = set(table.column(column).to_pylist())
        return tuple(sorted(names, key=[*order, *sorted(names)].index))

    levels = tuple(sorted(table.column("level").unique().to_pylist()))
    terrains = present("terrain", [*TERRAINS])
    cells = {"terrains": terrains, "skills": present("skill", [*SKILLS]), "levels": levels}
    if "manoeuvre" in selection.catalog.column_names:
        table = selection.episodes("manoeuvre")
        names = {name or CONSTANT for name in table.column("manoeuvre").to_pylist()}
        cells["manoeuvres"] = tuple(n for n in (CONSTANT, *MANOEUVRES) if n in names)
    return cells


def middle(levels: Sequence[int]) -> int:
    """The middle one of terrain levels; of an even number the lower one."""
    return sorted(levels)[(len(levels) - 1) // 2]


@dataclass(frozen=True)
class LeggedEvaluation(EvaluationPlan):
    """What to evaluate policies of legged robots on.

    Attributes:
        grid: the episodes; sim: physics back end; robots: parallel ones; threads: that step them.
        robot: a name or a path; empty for the policy's own; several with commas, then each robot
            has cells of its own, and of several experts each drives its own.
        randomisation: as that of `LeggedPlan`.
        episode_s: seconds after which an episode is cut off.
        rewards: reward term -> weight per second, as `ExpertTrainingConfig.rewards`.
    """

    kind = "legged"
    expert = DEFAULT_EXPERT
    obs_slices = POLICY_SLICES
    falls = True

    grid: EvaluationGrid = field(default_factory=EvaluationGrid)
    sim: str = "mujoco"
    robots: Robots = 128
    threads: Workers = 0
    robot: str = ""
    randomisation: Written = field(default_factory=dict)
    episode_s: Annotated[float, Range(0.5, 60.0)] = field(default=EPISODE_S, metadata=LATER)
    rewards: Mapping[str, float] = field(default_factory=dict, metadata=LATER)

    def __post_init__(self) -> None:
        super().__post_init__()
        set_randomisation(self)
        rewards_of(self.rewards)

    def __str__(self) -> str:
        return f"{self.grid}; an episode's return is at most {self.largest_return:.3f}"

    @property
    def largest_return(self) -> float:
        """See `EvaluationPlan.largest_return`: every term with a positive weight is at most 1."""
        return largest_return(rewards_of(self.rewards), steps_in(self.episode_s))

    @classmethod
    def of_store(cls, schema: Schema) -> Self | None:
        """See `EvaluationPlan.of_store`: with the randomisation of the store's episodes."""
        plan = super().of_store(schema)
        return plan and replace(plan, randomisation=stored_randomisation(schema).written())

    @classmethod
    def of_run(cls, tree: Mapping[str, Any], run: Path) -> Self:
        """See `EvaluationPlan.of_run`: on the run's copy of its robot, if its path is gone."""
        plan = super().of_run(tree, run)
        return replace(plan, robot=trained_robot(run)) if plan.robot else plan

    def of_plans(self, plans: Sequence[CollectionPlan]) -> Self:
        """See `EvaluationPlan.of_plans`: on the robot of a user's folder, if there is no other."""
        paths = {card.name: card.path for plan in plans for card in plan.robot_cards()}
        if len(paths) != 1 or paths.keys() <= set(list_robots()):
            return self
        return replace(self, robot=absolute_robot(str(*paths.values())))

    def fitted(self, among: Selection, learned: Sequence[Selection]) -> Mapping[str, Any]:
        """See `EvaluationPlan.fitted`: where the episodes' commands change, under such commands.

        Cells that have none of the episodes' manoeuvres add constant commands.
        """
        names = cells_of(among).get("manoeuvres", (CONSTANT,))
        if names == (CONSTANT,):
            return {}
        if not all(fitting(names, terrain, skill) for terrain, _, skill in self.grid.cells()):
            names = (CONSTANT, *names)
        return {"manoeuvres": names}

    def scoring_expert(self, among: Selection) -> str:
        """See `EvaluationPlan.scoring_expert`: the robots' shipped ones, or else who collected."""
        named = [card.name for card in load_robots(self.robot)] if self.robot else []
        robots = named or [among.schema.robot]
        if robots in ([DEFAULT_ROBOT], [SEVERAL]):
            return ""
        if len(shipped := shipped_experts(robots)) == len(robots):
            return ",".join(shipped)
        plans = (record["plan"] for record in plan_records(among.store.address))
        return next((str(plan["expert"]) for plan in plans if plan.get("expert")), "")

    def trained_on(self, selection: Selection) -> Self:
        """See `EvaluationPlan.trained_on`: at the middle one of the episodes' levels.

        Raises:
            ValueError: terrains or skills that this program cannot simulate.
        """
        cells = cells_of(selection)
        return replace(
            self, grid=replace(self.grid, **{**cells, "levels": (middle(cells["levels"]),)})
        )

    def collecting_expert(self, selection: Selection) -> str:
        """See `EvaluationPlan.collecting_expert`; where it has no record, a robot's shipped one."""
        episodes = Counter(selection.episodes("part").column("part").to_pylist())
        counts = Counter[str]()
        for record in plan_records(selection.store.address):
            if expert := record["plan"].get("expert"):
                counts[str(expert)] += sum(episodes[part] for part in record["parts"])
        [(expert, count)] = counts.most_common(1) or [("", 0)]
        known = count or len(counts) == 1  # the parts of a compacted store have other names
        return expert if expert and known else super().collecting_expert(selection)

    def comparable(self, source: PolicySource) -> Self:
        """See `EvaluationPlan.comparable`: on the policy's robot."""
        plan = super().comparable(source)
        card = self.card_of(source)
        shipped = card.name in list_robots() and load_robot(card.name).path == card.path
        return replace(plan, robot=card.name if shipped else absolute_robot(str(card.path)))

    def usual_expert(self) -> str:
        """See `EvaluationPlan.usual_expert`: the shipped one of the plan's robot."""
        names = [card.name for card in load_robots(self.robot)] if self.robot else []
        return next(iter(shipped_experts(names)), self.expert)

    def content(self) -> Mapping[str, str]:
        """See `EvaluationPlan.content`: of the simulator, and of the files of an own robot."""
        own = [] if self.robot in ("", *list_robots()) else load_robots(self.robot)
        files = [file.read_bytes().hex() for card in own for file in (card.path, card.mjcf_path)]
        simulator = str(released_version(self.sim))
        return {**super().content(), "simulator": simulator, "robot": digest(files)}

    def expert_hash(self, name: str) -> str:
        """See `EvaluationPlan.expert_hash`; ValueError, too, for an expert of another robot."""
        try:
            LeggedPlan(expert=name, robot=self.robot).pairs()
        except UnknownExpertError as error:
            raise UnknownExpertError(f"{error}; {shipped_in_words()}") from None
        hashes = [load_expert(expert).hash for expert in name.split(",")]
        return hashes[0] if len(hashes) == 1 else digest(hashes)

    def work(self) -> int:
        """See `EvaluationPlan.work`."""
        return len(self.grid.specs()) * steps_in(self.episode_s) * max(1, len(self.each_robot()))

    def each_robot(self) -> dict[str, Self]:
        """Robot's name -> the plan for it alone; empty unless there are several."""
        cards = load_robots(self.robot) if self.robot else []
        plans = {card.name: replace(self, robot=str(card.path)) for card in cards}
        return plans if len(plans) > 1 else {}

    def roll_out(
        self, source: PolicySource, advance: Callable[[int], None]
    ) -> tuple[list[Cell], int]:
        """See `EvaluationPlan.roll_out`."""
        cells = []
        parameters = 0
        for name, plan in self.each_robot().items():
            mine, parameters = plan.roll_out(source, advance)
            cells += [replace(cell, where={"robot": name, **cell.where}) for cell in mine]
        return (cells, parameters) if cells else self._of_one_robot(source, advance)

    def _of_one_robot(
        self, source: PolicySource, advance: Callable[[int], None]
    ) -> tuple[list[Cell], int]:
        robots = min(self.robots, len(self.grid.specs()))
        policy, parameters = self.load(source, robots)
        card = self.card_of(source)
        with closing(self.environment(card, robots)) as env:
            by_cell = evaluate(policy, env, self.grid, advance)
        cells = []
        for results in by_cell:
            spec = results[0].spec
            where = {"terrain": spec.terrain, "skill": spec.skill, "level": spec.level}
            cells.append(Cell(where, results, cell_measures(results)))
        return cells, parameters

    def environment(self, card: RobotCard, robots: int) -> LeggedEnvironment:
        """The plan's simulator, with as many robots and the plan's randomisation."""
        randomisation = Randomisation.parsed(self.randomisation)
        threads = min(self.threads or default_threads(), robots)
        steps = steps_in(self.episode_s)
        rewards = rewards_of(self.rewards)
        return LeggedEnvironment(card, robots, threads, self.sim, steps, randomisation, rewards)

    def observations(self, source: PolicySource, count: int = 64) -> list[Observation]:
        """See `EvaluationPlan.observations`: on the grid's first episode, standing still."""
        observations = []
        with closing(self.environment(self.card_of(source), 1)) as env:
            env.reset(np.arange(1), self.grid.specs()[:1])
            for _ in range(count):
                observation = env.observe()
                # Computed now, so that the sensor's cost does not count as the policy's.
                assert observation.privileged.size
                observations.append(observation)
                env.step(np.zeros((1, len(env.robot.joint_names)), dtype=np.float32))
        return observations

    def load(self, source: PolicySource, robots: int) -> tuple[Policy, int]:
        """See `EvaluationPlan.load`; experts and exported policies, too."""
        if source.kind == EXPERT:
            plan = next(iter(self.each_robot().values()), self)
            _, name = LeggedPlan(expert=source.place, robot=plan.robot).pairs()[0]
            expert = load_expert(name, plan.robot).policy
            expert.name = source.name
            return expert, expert.parameters()
        return super().load(source, robots)

    def driven(self, source: PolicySource, network: PolicyNetwork, robots: int) -> LearnedPolicy:
        """See `EvaluationPlan.driven`."""
        if network.layout.body_fields:
            network.drive(body_vector(self.card_of(source)))
        return super().driven(source, network, robots)

    def card_of(self, source: PolicySource) -> RobotCard:
        """The robot that a policy drives, of several the first.

        Raises:
            ValueError: it drives several, and the plan names none.
        """
        robot = self.robot
        if source.kind == EXPERT and not robot:
            return load_expert(source.place.partition(",")[0]).policy.robot
        if source.kind == EXPORTED and not robot:
            robot = (read_description(source.folder)["control"] or {}).get("robot", "unknown")
        if source.kind == RUN and not robot:
            robot = trained_robot(source.folder)
            if robot == SEVERAL:
                raise ValueError(f"{source.place} drives several robots; name one: --robot aliengo")
        if not self.robot and robot and not is_robot(robot):
            raise ValueError(
                f"{source.place} is a policy of robot '{robot}', which is not here; --robot names "
                f"a card or its folder, or one of {listed(list_robots())}"
            )
        return load_robots(robot or DEFAULT_ROBOT)[0]


# Collection with a policy, alone or in turns with an expert.
@dataclass(frozen=True)
class LeggedPolicyPlan(LeggedPlan):
    """What to collect with a policy.

    Attributes:
        policy: folder of a training run or an exported policy, name of one that ships, or
            "module:Class".
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
