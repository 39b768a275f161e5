"""Legged robots: an expert on N simulated robots."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from math import ceil
from typing import Annotated

from gaitforge.collectors.experts.expert import (
    DEFAULT_EXPERT,
    drives_a_family,
    load_expert,
    robots_of_expert,
)
from gaitforge.collectors.legged import data
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.episodes import Driver, EpisodeSpec
from gaitforge.collectors.legged.rollout import run_episodes
from gaitforge.collectors.physics import processor_of, released_version
from gaitforge.collectors.policy import Policy
from gaitforge.collectors.robots.robot import RobotCard, load_robots, simulated_files
from gaitforge.collectors.scenarios.randomisation import Randomisation, Written, set_randomisation
from gaitforge.collectors.simulators import check_backend
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import Registered
from gaitforge.common.limits import Range
from gaitforge.datasets import Schema
from gaitforge.flows.progress import Advance
from gaitforge.flows.records.records import digest, to_tree
from gaitforge.flows.settings import override, with_named
from gaitforge.flows.tasks.interface import CollectionPlan, PartData, Rates, Simulation, Workers

Robots = Annotated[int, Range(1, 100_000)]
"""Parallel robots of a simulator."""
_RESULTS = "docs/results/collection.md"
"""Where the rates below were measured: one thread a part, 60 million steps."""
_BYTES_PER_STEP = 230.0
_STATE_BYTES = 56.0
_PRIVILEGED_BYTES = 189.0
_HALF_SHARE = 0.51
_MUJOCO_STEPS_PER_S = 8_700.0


@dataclass(frozen=True)
class LeggedPlan(CollectionPlan):
    """What to collect with legged robots.

    Attributes:
        grid: the episodes; sim: physics back end.
        expert: name or file of the policy that acts, or several of them with commas.
        robot: robots (names, cards, folders, or folders of robots' folders) with commas; empty for
            all robots of the experts. Each is driven by the experts of that robot, or else by the
            one for families. Parts take the pairs of robot and expert in turn.
        form: which fields are stored, and in which precision.
        randomisation: quantity -> distribution, where it is not the default; see
            `Randomisation.parsed`.
        robots: most parallel robots of a simulator; threads: of a local run.
    """

    kind = "legged"
    parallelism = "threads"
    evaluation = "gaitforge.flows.tasks.legged_evaluation:LeggedEvaluation"

    grid: data.CollectionGrid = field(default_factory=data.CollectionGrid)
    form: data.StoredForm = field(default_factory=data.StoredForm)
    expert: str = DEFAULT_EXPERT
    robot: str = ""
    sim: str = "mujoco"
    randomisation: Written = field(default_factory=dict)
    robots: Robots = 320
    threads: Workers = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_backend(self.sim)
        set_randomisation(self)

    @property
    def processor(self) -> str:
        """See `CollectionPlan.processor`."""
        return processor_of(self.sim)

    def simulator(self) -> tuple[str, str] | None:
        """See `CollectionPlan.simulator`."""
        version = released_version(self.sim)
        return None if version is None else (self.sim, version)

    def expected_steps(self) -> dict[str, int]:
        """See `CollectionPlan.expected_steps`; the list grows with `grid.parts`."""
        steps = self.grid.episodes_per_part * EPISODE_STEPS
        return dict.fromkeys(self.grid.part_ids(digest(self.content())[:6]), steps)

    def episode_ids(self) -> dict[str, range]:
        """See `CollectionPlan.episode_ids`."""
        count = self.grid.episodes_per_part
        ids = {}
        for part in self.part_ids():
            tag, number = part.split("-")
            first = (int(tag, 16) << 32) + int(number) * count
            ids[part] = range(first, first + count)
        return ids

    def rates(self) -> Rates:
        """See `CollectionPlan.rates`; the speed is that of MuJoCo on a CPU."""
        size = _BYTES_PER_STEP + _STATE_BYTES * self.form.state
        size += _PRIVILEGED_BYTES * self.form.privileged
        size *= _HALF_SHARE if self.form.half else 1.0
        return Rates(size, _MUJOCO_STEPS_PER_S if self.sim == "mujoco" else 0.0, _RESULTS)

    def content(self) -> dict[str, object]:
        """Settings that determine the parts; hashed into their names."""
        bodies = {"bodies": self._bodies()} if self.robot or "," in self.expert else {}
        return {
            **to_tree(replace(self.grid, parts=1)),
            "expert": self.actor_hash(),
            "sim": self.sim,
            "form": asdict(self.form),
            **bodies,
            **({"randomisation": self.randomisation} if self.randomisation else {}),
        }

    def _bodies(self) -> dict[str, str]:
        """Robot -> hash of its card and MJCF, and its experts' hashes."""
        hashes: dict[str, str] = {}
        for robot, expert in self.pairs():
            so_far = hashes.get(robot.name, digest(b"".join(simulated_files(robot)).hex()))
            hashes[robot.name] = f"{so_far} {load_expert(expert).hash}"
        return hashes

    def pairs(self) -> list[tuple[RobotCard, str]]:
        """The robots, each with each of its experts.

        Raises:
            ValueError: no such robot or expert, a robot that no expert drives, two of one name.
        """
        return list(_pairs(self.expert, self.robot))

    def robot_cards(self) -> list[RobotCard]:
        """See `CollectionPlan.robot_cards`."""
        return [robot for robot, _ in self.pairs()]

    def pair(self, part: str) -> tuple[RobotCard, str]:
        """The robot of a part, and its expert."""
        pairs = self.pairs()
        return pairs[int(part.rpartition("-")[2]) % len(pairs)]

    def actor_hash(self) -> str:
        """The hash of the policy whose actions are stored, or of several."""
        hashes = [load_expert(name).hash for name in self.expert.split(",")]
        return hashes[0] if len(hashes) == 1 else digest(hashes)

    def actor(self, robots: int, part: str = "") -> tuple[Policy, RobotCard]:
        """The policy whose actions are stored, for a number of robots, and its robot.

        Args:
            part: a part's name; empty for the first.
        """
        robot, expert = self.pair(part or "-0")
        return load_expert(expert, str(robot.path)).policy, robot

    def schema(self) -> Schema:
        """See `CollectionPlan.schema`."""
        bodies = {robot.name: robot for robot in self.robot_cards()}
        draws = Randomisation.parsed(self.randomisation)
        return data.legged_schema(*bodies.values(), form=self.form, randomisation=draws)

    def simulate(self, threads: int = 1) -> "LeggedSimulation":
        """See `CollectionPlan.simulate`."""
        return LeggedSimulation(self, threads)


class LeggedSimulation(Simulation):
    """An expert on N simulated robots, of the body that a part asks for.

    Attributes:
        env: the simulated robots; policy: its actions are stored; driver: drives in its place.
        specs: the episodes of a part; acting: makes another policy for a part, in place of the
            plan's.
    """

    def __init__(self, plan: LeggedPlan, threads: int):
        self._plan = plan
        self._threads = threads
        # Full waves: a last wave of a few episodes would leave the other robots idle.
        waves = ceil(plan.grid.episodes_per_part / plan.robots)
        self._robots = ceil(plan.grid.episodes_per_part / waves)
        self.driver: Driver | None = None
        self.specs: Callable[[str], list[EpisodeSpec]] = plan.grid.part_specs
        self.acting: Callable[[LeggedEnvironment], Policy] | None = None
        self._pairs = plan.pairs()
        self._randomisation = Randomisation.parsed(plan.randomisation)
        self._open("-0")

    def _open(self, part: str) -> None:
        self._opened = self._named(part)
        self.policy, robot = self._plan.actor(self._robots, part)
        self.env = LeggedEnvironment(
            robot, self._robots, self._threads, self._plan.sim, randomisation=self._randomisation
        )

    def _named(self, part: str) -> tuple[str, str]:
        """The names of a part's robot and expert."""
        robot, expert = self._plan.pair(part)
        return robot.name, expert

    def roll_out(self, part: str, schema: Schema, advance: Advance) -> PartData:
        """See `Simulation.roll_out`."""
        if self._named(part) != self._opened:
            self.env.close()
            self._open(part)
        policy = self.policy
        physics = self.env.physics
        if self.acting is not None:
            policy = self.acting(self.env)
            self.driver = None
        episodes = run_episodes(
            self.env,
            policy,
            self.specs(part),
            record=True,
            privileged=self._plan.form.privileged,
            progress=lambda n: advance(n, ""),
            driver=self.driver,
        )
        results = list(episodes)
        alone = len(self._pairs) == 1
        expert_hash = self._plan.actor_hash() if alone else load_expert(self._opened[1]).hash
        simulator = (physics.name, physics.version)
        expert = (policy.name, expert_hash)
        several = len({robot.name for robot, _ in self._pairs}) > 1
        names = self._randomisation.names
        catalog = data.part_catalog(results, self.env.robot, simulator, expert, several, names)
        return PartData(*data.part_arrays(results, schema, self.env.robot), catalog)

    def close(self) -> None:
        """See `Simulation.close`."""
        self.env.close()


@cache
def _pairs(experts: str, robots: str) -> tuple[tuple[RobotCard, str], ...]:
    """See `LeggedPlan.pairs`."""
    drivers: dict[str, list[str]] = {}
    for_families = []
    for name in dict.fromkeys(experts.split(",")):
        expert = load_expert(name)
        if drives_a_family(expert.weights):
            for_families.append(name)
        else:
            drivers.setdefault(expert.policy.robot.name, []).append(name)
    if robots:
        bodies = load_robots(robots)
    else:
        named = [body for name in experts.split(",") for body in robots_of_expert(name)]
        bodies = list({body.path: body for body in named}.values())
    names = [body.name for body in bodies]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"robot {', '.join(twice)} is named more than once")
    if lost := [name for name in names if name not in drivers and not for_families]:
        raise ValueError(
            f"no expert among {experts} drives {', '.join(lost)}; they drive "
            f"{', '.join(drivers)}, and a robot without an expert of its own needs one for families"
        )
    return tuple(
        (body, name) for body in bodies for name in drivers.get(body.name, for_families[:1])
    )


_OURS = {name: LeggedPlan(grid=grid) for name, grid in data.COLLECTION_PRESETS.items()}
_MIXED = "legged-mixed"
_OURS[_MIXED] = replace(_OURS[_MIXED], expert=",".join(data.MIXED_EXPERTS))
COLLECTIONS = Registered("collection", LeggedPlan, _OURS)
"""Name -> plan of a collection that ships: ours, and those of plug-ins and other packages."""


def legged_plan(
    preset: str, values: Mapping[str, object] | None = None, settings: Sequence[str] = ()
) -> LeggedPlan:
    """The plan of a preset with some values replaced.

    Args:
        values: field -> value, of the plan, its grid or what it stores; settings: as `override`
            takes them.

    Raises:
        ValueError: no such preset, or values that the plan refuses.
    """
    if preset not in COLLECTIONS:
        raise ValueError(f"unknown preset '{preset}'; {names_allowed(preset, COLLECTIONS)}")
    return override(with_named(COLLECTIONS[preset], values or {}), settings)
