"""Commands that change within an episode: stand, walk or run, a manoeuvre, brake, stand.

The FCNet paper's episodes each have standing and walking (Lu et al. 2024, C.2), and its operators
move the robot backward, turn, spin, crouch and sprint it (C.3.3). The paper tells no durations and
no speeds; those here are ours.

The speeds are limited by what the shipped Aliengo expert does, which was trained on constant
commands forward, at most 0.3 m/s sideways and 0.5 rad/s of yaw: docs/results/collection.md says how
closely it follows. Backward it reaches about half of the commanded speed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from gaitforge.collectors.robots.kinematics import NEUTRAL, C, Range, command_scale, ramped
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.skills import (
    ALL_SKILLS,
    STAND,
    S,
    Skill,
    Track,
    command_ranges,
)
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS
from gaitforge.common.errors import listed, names_allowed

CONSTANT = "constant"
"""The manoeuvre of an episode whose command does not change."""


@dataclass(frozen=True)
class Manoeuvre:
    """What the operator commands after the robot has started to walk.

    Attributes:
        ranges: of the velocities in the skill `stand`, whose robots walk in `SLOW_GAIT`, in
            Aliengo's size; other skills keep their own forward speed and gait.
        mirrored: commands whose sign is random.
        lead: the velocity that it is about; least: share of it that an episode's mean must reach
            to count as a success, which 95 % of the shipped Aliengo expert's episodes reach.
        terrains: where it is commanded, None for all.
        first_cycle: of the gait clock when walking begins. Up to cycle 4 the shipped experts speed
            up forward, as they were trained to.
    """

    name: str
    ranges: dict[C, Range]
    lead: C
    least: float
    mirrored: tuple[C, ...] = ()
    terrains: tuple[str, ...] | None = None
    first_cycle: int = 0


_ALL = (
    Manoeuvre("straight", {C.VEL_X: (0.4, 1.0)}, C.VEL_X, 0.7),
    Manoeuvre(
        "turn",
        {C.VEL_X: (0.4, 0.8), C.YAW_RATE: (0.3, 0.8)},
        C.YAW_RATE,
        0.4,
        mirrored=(C.YAW_RATE,),
    ),
    Manoeuvre(
        "sideways",
        {C.VEL_Y: (0.15, 0.3)},
        C.VEL_Y,
        0.7,
        mirrored=(C.VEL_Y,),
        terrains=("flat", "rough", "slope"),
        first_cycle=4,
    ),
    Manoeuvre("backward", {C.VEL_X: (-0.8, -0.4)}, C.VEL_X, 0.25, first_cycle=4),
    Manoeuvre(
        "spin", {C.YAW_RATE: (0.4, 1.0)}, C.YAW_RATE, 0.55, mirrored=(C.YAW_RATE,), first_cycle=4
    ),
)
MANOEUVRES: dict[str, Manoeuvre] = {manoeuvre.name: manoeuvre for manoeuvre in _ALL}

SLOW_GAIT: dict[C, Range] = NEUTRAL | {
    C.SWING_HEIGHT: (0.08, 0.1),
    C.GAIT_FREQUENCY: (2.2, 2.7),
    C.GAIT_DUTY: (0.64, 0.72),
}
"""The skill crawl's gait with the trunk up. In a neutral trot, which it was trained to rush in, the
shipped Aliengo expert drifts forward by 0.3 m/s; in this one by 0.1."""

# Durations in control steps, half-open.
_STAND_FIRST = (15, 35)
_STAND_BEFORE_PASSAGE = (10, 20)
_WALK_BEFORE_TURN = (35, 55)
_BRAKE_AT = (110, 130)
_BRAKE_AFTER_PASSAGE = (150, 160)
_IN_PLACE = 10
"""Steps of the gait in place between braking and standing."""
STEPS_TO_PASS = _BRAKE_AFTER_PASSAGE[0] - _STAND_BEFORE_PASSAGE[1]
"""The fewest steps in which a robot walks towards and through a passage."""
_BRAKE_MS2 = (2.0, 4.0)
_LONGEST_BRAKE_S = 0.6
"""Fast robots brake harder, at most at 5 m/s^2: the skill `rush` starts at 3 to 6."""
_SETTLING_STEPS = 15
_STILL_MS = 0.3
_STILL_S = 0.2
"""A schedule ends well if the trunk's rms speed over its last steps is below this."""
_SCHEDULES = 0x5CED


@dataclass(frozen=True)
class Schedule:
    """The commands of an episode in five segments: stand, walk, manoeuvre, brake, stand.

    Attributes:
        starts: control step at which each segment begins; one may be empty.
        targets: (5, 16) the segments' target commands, in the robot's size.
    """

    manoeuvre: str
    starts: tuple[int, ...]
    targets: np.ndarray

    def commands(self, steps: int) -> np.ndarray:
        """(steps, 16) float64: the command in force at each step, ramped by `ramped`."""
        commands = np.empty((steps, len(C)))
        reached = np.zeros((1, len(C)))
        stops = (*(min(start, steps) for start in self.starts[1:]), steps)
        for target, start, stop in zip(self.targets, self.starts, stops, strict=True):
            if stop > start:
                repeated = np.repeat(target[None], stop - start + 1, axis=0)
                time_s = np.arange(stop - start + 1) * CONTROL_DT_S
                segment = ramped(repeated, time_s, reached)
                commands[start:stop] = segment[:-1]
                reached = segment[-1:]
        return commands

    def clock(self, commands: np.ndarray) -> np.ndarray:
        """(T,) gait clock in cycles of `commands` (T, 16); 0 while the robot is to stand."""
        frequency = commands[:, C.GAIT_FREQUENCY]
        cycles = frequency * (np.arange(len(commands)) - self.starts[1]) * CONTROL_DT_S
        return np.where(frequency > 0, MANOEUVRES[self.manoeuvre].first_cycle + cycles, 0.0)

    def columns(self) -> dict[str, object]:
        """Catalog columns: steps, and the manoeuvre's velocities."""
        _, walk, manoeuvre, brake, stand = self.starts
        moving = self.targets[2]
        return {
            "manoeuvre": self.manoeuvre,
            "walk_step": walk,
            "manoeuvre_step": manoeuvre,
            "brake_step": brake,
            "stand_step": stand,
            "manoeuvre_vel_x": float(moving[C.VEL_X]),
            "manoeuvre_vel_y": float(moving[C.VEL_Y]),
            "manoeuvre_yaw_rate": float(moving[C.YAW_RATE]),
            "brake_accel": float(self.targets[3, C.ACCEL_LIMIT]),
        }

    def succeeded(self, track: Track) -> bool:
        """Whether an episode that did not end in a fall followed its commands.

        The manoeuvre's leading velocity reaches `Manoeuvre.least` of the commanded mean, the robot
        stands still at the end, and a passage was passed.
        """
        manoeuvre = MANOEUVRES[self.manoeuvre]
        first = self.starts[2] + _SETTLING_STEPS
        steps = slice(first, self.starts[3])
        commanded = self.commands(self.starts[3])[first:, manoeuvre.lead].mean()
        mean = track.values[steps, _LEADS[manoeuvre.lead]].mean()
        followed = mean * np.sign(commanded) >= manoeuvre.least * abs(commanded)
        still = track.rms(_STILL_S, S.SPEED) < _STILL_MS + 0.35 * track.action_noise
        return bool(followed and still and (track.passage is None or track.passed()))


_LEADS = {C.VEL_X: S.VEL_X, C.VEL_Y: S.VEL_Y, C.YAW_RATE: S.YAW_RATE}


def check_manoeuvres(manoeuvres: Sequence[str], cells: Sequence[tuple[str, str]]) -> None:
    """ValueError for an unknown manoeuvre, none, or a cell that has none of them.

    Args:
        cells: terrains and skills.
    """
    for name in manoeuvres:
        if name not in (allowed := [CONSTANT, *MANOEUVRES]):
            raise ValueError(f"unknown manoeuvre '{name}'; {names_allowed(name, allowed)}")
    for terrain, skill in cells:
        if not fitting(manoeuvres, terrain, skill):
            choices = listed([CONSTANT, *fitting(tuple(MANOEUVRES), terrain, skill)])
            raise ValueError(
                f"the skill {skill} on {terrain} has none of the manoeuvres "
                f"{', '.join(manoeuvres) or '(none)'}; allowed are {choices}"
            )


def fitting(manoeuvres: Sequence[str], terrain: str, skill: str) -> list[str]:
    """Those of some manoeuvres that a skill has on a terrain, in their order."""
    allowed = [CONSTANT]
    for name in ALL_SKILLS[skill].manoeuvres_on(terrain) or MANOEUVRES:
        where = MANOEUVRES[name].terrains
        if where is None or terrain in where:
            allowed.append(name)
    return [name for name in manoeuvres if name in allowed]


def ranges_of_commands(robot: RobotCard, manoeuvres: Sequence[str]) -> list[Range]:
    """`command_ranges` with those of manoeuvres: bounds of each of the 16 numbers, SI units."""
    bounds = command_ranges(robot)
    named = [MANOEUVRES[name] for name in manoeuvres if name != CONSTANT]
    if not named:
        return bounds
    joined = [SLOW_GAIT, {C.ACCEL_LIMIT: (_BRAKE_MS2[0], bounds[C.VEL_X][1] / _LONGEST_BRAKE_S)}]
    for manoeuvre in named:
        spans = manoeuvre.ranges.items()
        mirrored = manoeuvre.mirrored
        joined.append(
            {c: (-high, high) if c in mirrored else (low, high) for c, (low, high) in spans}
        )
    scale = command_scale(robot)
    scale[C.ACCEL_LIMIT] = 1.0
    for ranges in joined:
        for c, (low, high) in ranges.items():
            span = bounds[c]
            bounds[c] = min(span[0], low * scale[c]), max(span[1], high * scale[c])
    return bounds


def in_time(command: np.ndarray, skill: Skill, terrain: str, robot: RobotCard) -> np.ndarray:
    """A skill's command (16,), in the faster half of its speeds where a passage is to be passed.

    A robot that stands first, and again at the end, has less time for the passage.
    """
    if skill.passage is None or terrain not in skill.passage.terrains:
        return command
    command = command.copy()
    fastest = skill.ranges[C.VEL_X][1] * command_scale(robot)[C.VEL_X]
    command[C.VEL_X] = (command[C.VEL_X] + fastest) / 2
    return command


def draw_schedule(
    name: str, skill: Skill, passage: bool, command: np.ndarray, robot: RobotCard, seed: int
) -> Schedule:
    """Draw an episode's schedule; a pure function of its arguments.

    Args:
        name: of the manoeuvre; passage: whether something stands on the track.
        command: (16,) the skill's target command, in the robot's size.
    """
    rng = np.random.default_rng([_SCHEDULES, seed])
    manoeuvre = MANOEUVRES[name]
    first = int(rng.integers(*(_STAND_BEFORE_PASSAGE if passage else _STAND_FIRST)))
    between = int(rng.integers(*_WALK_BEFORE_TURN))
    brake = int(rng.integers(*(_BRAKE_AFTER_PASSAGE if passage else _BRAKE_AT)))
    trot = np.array([rng.uniform(*SLOW_GAIT[c]) for c in C]) * command_scale(robot)
    velocities = {c: rng.uniform(*span) for c, span in manoeuvre.ranges.items()}
    for c in manoeuvre.mirrored:
        velocities[c] *= rng.choice([-1.0, 1.0])
    braking = rng.uniform(*_BRAKE_MS2)

    is_stand = skill.name == STAND.name
    stand = command.copy() if is_stand else _standing(command)
    walk = trot if is_stand else command
    moving = walk.copy()
    for c, value in velocities.items():
        if is_stand or c != C.VEL_X:
            moving[c] = value * command_scale(robot)[c]
    turn = first if is_stand or name == "straight" else first + between
    speed = _reached(walk, moving, turn - first, brake - turn)
    stop = moving.copy()
    stop[[C.VEL_X, C.VEL_Y, C.YAW_RATE]] = 0.0
    stop[C.ACCEL_LIMIT] = max(braking, speed / _LONGEST_BRAKE_S)
    last = brake + ceil(speed / stop[C.ACCEL_LIMIT] / CONTROL_DT_S) + _IN_PLACE
    targets = np.stack([stand, walk, moving, stop, stand])
    return Schedule(name, (0, first, turn, brake, min(last, EPISODE_STEPS)), targets)


def _reached(walk: np.ndarray, moving: np.ndarray, walking: int, turning: int) -> float:
    """|v_x| in m/s that is commanded after some steps of walking and of the manoeuvre."""
    reached = np.zeros((1, len(C)))
    for target, steps in ((walk, walking), (moving, turning)):
        reached = ramped(target[None], np.array([steps * CONTROL_DT_S]), reached)
    return float(abs(reached[0, C.VEL_X]))


def _standing(command: np.ndarray) -> np.ndarray:
    """The command of a robot that stands upright with the feet as `command` has them."""
    stand = command.copy()
    for c, (low, _) in STAND.ranges.items():
        stand[c] = low
    stand[[C.VEL_X, C.VEL_Y, C.YAW_RATE, C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL]] = 0.0
    return stand
