"""Stored data of the legged task: schema, plan of episodes, a part's arrays and catalog."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Annotated, Any

import numpy as np

from gaitforge.collectors.legged.episodes import EpisodeSpec
from gaitforge.collectors.legged.observations import (
    OBS_DIM,
    POLICY_SLICES,
    PRIVILEGED_DIM,
    PRIVILEGED_SLICES,
)
from gaitforge.collectors.legged.rollout import STATE_DIM, EpisodeResult
from gaitforge.collectors.robots.kinematics import COMMAND_NAMES, COMMAND_UNITS
from gaitforge.collectors.robots.robot import (
    BODY_DIM,
    BODY_SLICES,
    DESCRIPTOR_NAMES,
    DESCRIPTOR_UNITS,
    JOINTS_OF_A_LEG,
    LEGS,
    N_JOINTS,
    ROBOTS,
    SEVERAL,
    RobotCard,
    body_vector,
    descriptor,
    list_robots,
    robots_attribute,
)
from gaitforge.collectors.scenarios.randomisation import DEFAULT, DRAW_INDEX, Randomisation
from gaitforge.collectors.scenarios.schedules import (
    CONSTANT,
    MANOEUVRES,
    check_manoeuvres,
    fitting,
)
from gaitforge.collectors.scenarios.skills import SKILLS, matching_cells
from gaitforge.collectors.scenarios.terrains import N_LEVELS, OPEN_GROUND, TERRAINS, UNSEEN
from gaitforge.collectors.timing import CONTROL_DT_S
from gaitforge.common.limits import LATER, Range, Whole, check_ranges
from gaitforge.datasets import Field, Schema
from gaitforge.datasets.schema import joined_arrays

PLACES = tuple(f"{leg}_{joint}" for leg in LEGS for joint in JOINTS_OF_A_LEG)
"""Joint names in a store of several robots, which may name their joints differently."""


@dataclass(frozen=True)
class StoredForm:
    """Options for what a store keeps beside observation, action and reward.

    Attributes:
        state: store base pose and joint positions, for playback; 25 % more bytes. Replay from the
            seed gives them too.
        privileged: store the expert's privileged observation.
        half: float16 instead of float32 for all but the reward: half the size, no exact replay.
    """

    state: bool = False
    privileged: bool = False
    half: bool = False


def legged_schema(
    *robots: RobotCard, form: StoredForm | None = None, randomisation: Randomisation = DEFAULT
) -> Schema:
    """The store's schema: observation, action, reward, final observation, and what `form` adds.

    With several robots, joints are named by `PLACES`, and the attributes hold every robot; they
    also hold a single robot that is not shipped.
    """
    several = len(robots) > 1
    robot = robots[0]
    joints = PLACES if several else robot.joint_names
    scales = {card.action_scale_rad for card in robots}
    attributes: dict[str, Any] = {"joint_names": list(joints)}
    if not several:
        attributes["default_joint_pos_rad"] = robot.default_joint_pos_rad.tolist()
    if len(scales) == 1:
        attributes["action_scale_rad"] = robot.action_scale_rad
    attributes |= {
        "command_names": list(COMMAND_NAMES),
        "command_units": list(COMMAND_UNITS),
        "randomisation": randomisation.declared(*robots),
    }
    if several or robot.name not in list_robots():
        attributes[ROBOTS] = robots_attribute(robots)
    if several:
        units = zip(DESCRIPTOR_NAMES, DESCRIPTOR_UNITS, strict=True)
        attributes["descriptor"] = dict(units)
    return Schema(
        fields=_fields(joints, scales, form or StoredForm(), several),
        control_dt_s=CONTROL_DT_S,
        robot=SEVERAL if several else robot.name,
        attributes=attributes,
    )


def _fields(
    joint_names: Sequence[str], scales: set[float], form: StoredForm, bodies: bool
) -> tuple[Field, ...]:
    dtype = "float16" if form.half else "float32"
    text = "observation before the step: all that a learned policy sees"
    obs = Field("obs", (OBS_DIM,), dtype, "SI (1, rad/s, rad, m/s)", text, POLICY_SLICES)
    scale = f"{min(scales)} rad" if len(scales) == 1 else "action scales of the robot"
    unit = f"{scale} from the default pose"
    text = "joint position targets chosen by the policy, before any action noise"
    joints = {name: (i, i + 1) for i, name in enumerate(joint_names)}
    action = Field("action", (N_JOINTS,), dtype, unit, text, joints)
    text = "observation after the episode's last step"
    final_obs = replace(obs, name="final_obs", description=text, per="episode")
    fields = [obs, action, Field("reward", (), unit="1", description="reward of the step")]
    fields.append(final_obs)
    if bodies:
        text = "the robot's body as policies for many robots read it"
        body = Field("body", (BODY_DIM,), "float32", "1", text, BODY_SLICES, per="episode")
        fields.append(body)
    if form.state:
        text = "base position (world), quaternion wxyz and joint positions before the step"
        slices = {"base_pos": (0, 3), "base_quat": (3, 7), "joint_pos": (7, STATE_DIM)}
        fields.append(Field("state", (STATE_DIM,), dtype, "m, 1, rad", text, slices))
    if form.privileged:
        text = "what the expert saw and a learned policy does not, before the step"
        shape = (PRIVILEGED_DIM,)
        fields.append(Field("privileged", shape, dtype, "SI", text, PRIVILEGED_SLICES))
    return tuple(fields)


@dataclass(frozen=True)
class CollectionGrid:
    """The episodes of a dataset, with cells and levels spread evenly over parts.

    Attributes:
        parts, episodes_per_part: part k holds episodes [k, k + 1) x episodes_per_part of the plan.
        action_noise: standard deviations (action units) of the noise on executed actions, which
            episodes take in turn: data hold recoveries, and labels have no noise (Laskey et al.,
            DART, 2017).
        seed: random seed.
        manoeuvres: "constant" for commands that do not change within an episode, or those of
            `schedules.MANOEUVRES`; a cell's episodes take those that fit in turn.
    """

    terrains: tuple[str, ...] = tuple(TERRAINS)
    skills: tuple[str, ...] = tuple(SKILLS)
    levels: tuple[int, ...] = tuple(range(N_LEVELS))
    # At most ten times what a large dataset needs, to catch typing errors.
    parts: Annotated[int, Range(1, 100_000)] = 8
    episodes_per_part: Annotated[int, Range(1, 10_000)] = 288
    action_noise: tuple[float, ...] = (0.0, 0.25, 0.5)
    seed: Whole = 0
    manoeuvres: tuple[str, ...] = field(default=(CONSTANT,), metadata=LATER)

    def __post_init__(self) -> None:
        check_manoeuvres(self.manoeuvres, self.cells())
        check_ranges(self)
        if unseen := [terrain for terrain in self.terrains if terrain in UNSEEN]:
            raise ValueError(f"{', '.join(unseen)}: terrains to evaluate on, never collected")
        if not self.action_noise or not all(0.0 <= std < inf for std in self.action_noise):
            raise ValueError("action_noise needs at least one standard deviation, none negative")

    def cells(self) -> list[tuple[str, str]]:
        """The pairs of terrain and skill that go together."""
        return matching_cells(self.terrains, self.skills, self.levels)

    def part_ids(self, tag: str) -> list[str]:
        """Names of the parts; `tag` is the plan's, six hexadecimal digits."""
        return [f"{tag}-{k:05d}" for k in range(self.parts)]

    def part_specs(self, part_id: str) -> list[EpisodeSpec]:
        """The episodes of one part; a pure function of the plan and the part's name."""
        tag, number = part_id.split("-")
        first = int(number) * self.episodes_per_part
        seeds = np.random.SeedSequence([0xC0, self.seed, int(number)]).generate_state(
            self.episodes_per_part, np.uint64
        )
        unique = int(tag, 16) << 32
        halved = (seeds >> np.uint64(1)).tolist()
        return [self._spec(first + i, seed, unique) for i, seed in enumerate(halved)]

    def _spec(self, index: int, seed: int, unique: int) -> EpisodeSpec:
        cells = self.cells()
        terrain, skill = cells[index % len(cells)]
        turn = index // len(cells)
        level = self.levels[turn % len(self.levels)]
        # Steps of the golden ratio, and of the plastic number's inverse for the manoeuvre, keep
        # noise, level and manoeuvre uncorrelated.
        noise = self.action_noise[int(turn * 0.6180339887498949 % 1.0 * len(self.action_noise))]
        choices = fitting(self.manoeuvres, terrain, skill)
        manoeuvre = choices[int(turn * 0.7548776662466927 % 1.0 * len(choices))]
        return EpisodeSpec(
            unique + index, terrain, level, skill, seed, action_noise=noise, manoeuvre=manoeuvre
        )


COLLECTION_PRESETS: dict[str, CollectionGrid] = {
    "demo": CollectionGrid(parts=8, episodes_per_part=300),
    "legged-1m9": CollectionGrid(parts=8, episodes_per_part=1250),
    "legged-6m": CollectionGrid(parts=25, episodes_per_part=1280),
    "legged-60m": CollectionGrid(parts=250, episodes_per_part=1280),
    "legged-mixed": CollectionGrid(parts=12, episodes_per_part=300, action_noise=(0.0, 0.5, 1.0)),
}
"""Datasets of one distribution in several sizes (the paper has 320,000 trajectories of 192 steps,
60 million in all), and one of mixed quality: `MIXED_EXPERTS` take turns in making its parts, with
noise of up to 0.25 rad. Those named `legged-clean-…` are as the FCNet paper describes its data."""
COLLECTION_PRESETS |= {
    f"legged-clean-{size}": replace(
        COLLECTION_PRESETS[f"legged-{size}"], action_noise=(0.0,), manoeuvres=tuple(MANOEUVRES)
    )
    for size in ("1m9", "6m", "60m")
}

MIXED_EXPERTS = ("aliengo-locomotion", "aliengo-medium", "aliengo-weak")
"""An expert, and two checkpoints of a similar training after 614,000 and 319,000 steps."""


def part_arrays(
    results: Sequence[EpisodeResult], schema: Schema, robot: RobotCard | None = None
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Arrays of a part, episodes in plan order, see `joined_arrays`; `robot` for body fields."""
    steps, per_episode = joined_arrays([result.record for result in _ordered(results)], schema)
    if "body" in schema.names("episode") and robot is not None:
        per_episode["body"] = np.tile(body_vector(robot), (len(results), 1))
    return steps, per_episode


def part_catalog(
    results: Sequence[EpisodeResult],
    robot: RobotCard,
    simulator: tuple[str, str],
    expert: tuple[str, str],
    described: bool = False,
    draws: Sequence[str] = DEFAULT.names,
) -> dict[str, list[Any]]:
    """Catalog columns of a part, a row per episode in plan order.

    Args:
        simulator: name and version; expert: name and hash; described: add the columns of the
            robot's descriptor; draws: the names of the stored ones.
    """
    rows = [_row(r, robot, simulator, expert, draws) for r in _ordered(results)]
    if described:
        body = dict(zip(DESCRIPTOR_NAMES, descriptor(robot).tolist(), strict=True))
        rows = [row | body for row in rows]
    names = {name: None for row in rows for name in row}
    return {name: [row.get(name) for row in rows] for name in names}


def _row(
    result: EpisodeResult,
    robot: RobotCard,
    simulator: tuple[str, str],
    expert: tuple[str, str],
    names: Sequence[str],
) -> dict[str, object]:
    spec = result.spec
    draws = result.draws
    assert result.record is not None, "parts are made of recorded episodes"
    command = result.record.obs[:, slice(*POLICY_SLICES["command"])].mean(axis=0)
    passage = draws.passage or OPEN_GROUND
    schedule = {} if draws.schedule is None else draws.schedule.columns()
    return {
        "episode": spec.index,
        "length": result.length,
        "seed": spec.seed,
        "terrain": spec.terrain,
        "level": spec.level,
        "terrain_variant": draws.terrain_variant,
        "skill": spec.skill,
        "robot": robot.name,
        "simulator": simulator[0],
        "simulator_version": simulator[1],
        "expert": expert[0],
        "expert_hash": expert[1],
        "action_noise": spec.action_noise,
        "return": result.episode_return,
        "success": result.success,
        "fell": result.terminated,
        "terminated": result.terminated,
        "truncated": not result.terminated,
        "passage": passage.kind,
        "passage_start_m": passage.start_m,
        "passage_depth_m": passage.depth_m,
        "passage_opening_m": passage.opening_m,
        "push_step": draws.push_step,
        "push_velocity_x": float(draws.push_velocity[0]),
        "push_velocity_y": float(draws.push_velocity[1]),
        **schedule,
        **{f"command_{n}": float(v) for n, v in zip(COMMAND_NAMES, command, strict=True)},
        **{name: float(draws.draws[DRAW_INDEX[name]]) for name in names},
    }


def _ordered(results: Sequence[EpisodeResult]) -> list[EpisodeResult]:
    return sorted(results, key=lambda r: r.spec.index)
