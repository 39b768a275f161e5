"""The 16-number command and the distribution from which every skill draws it.

Raw SI units, no scaling on disk. The layout follows walk-these-ways' command vector, adapted to
Aliengo; the reward coefficient is replaced by the limit of acceleration, and a flag tells standing
from moving.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from collectors.robots.robot import RobotCard
from collectors.timing import CONTROL_DT_S, EPISODE_STEPS


class C(IntEnum):
    """Index of every number of the command."""

    VEL_X = 0
    VEL_Y = 1
    YAW_RATE = 2
    BODY_HEIGHT = 3
    BODY_PITCH = 4
    BODY_ROLL = 5
    STANCE_WIDTH = 6
    STANCE_LENGTH = 7
    SWING_HEIGHT = 8
    GAIT_FREQUENCY = 9
    GAIT_PHASE = 10
    GAIT_OFFSET = 11
    GAIT_BOUND = 12
    GAIT_DUTY = 13
    ACCEL_LIMIT = 14
    LOCOMOTE = 15


N_COMMANDS = len(C)
COMMAND_NAMES = tuple(c.name.lower() for c in C)
COMMAND_UNITS = (
    "m/s", "m/s", "rad/s", "m", "rad", "rad", "m", "m",
    "m", "Hz", "cycle", "cycle", "cycle", "1", "m/s^2", "1",
)  # fmt: skip

Range = tuple[float, float]

MAX_CRAWL_M = 0.18
HEIGHT_RAMP_MS = 0.4
ATTITUDE_RAMP_RADS = 2.0
"""How fast commanded height and attitude move from neutral: an episode starts upright."""
_RAMPED = [C.VEL_X, C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL]
_RAMP_RATES = (HEIGHT_RAMP_MS, ATTITUDE_RAMP_RADS, ATTITUDE_RAMP_RADS)


@dataclass(frozen=True)
class Skill:
    """A skill: ranges its commands are drawn from (uniformly) and terrains it is asked for on.

    `ranges` overrides the neutral trot's; `mirrored` commands take either sign with equal chance.
    """

    name: str
    terrains: tuple[str, ...]
    ranges: dict[C, Range]
    mirrored: tuple[C, ...] = ()


NEUTRAL: dict[C, Range] = {
    C.VEL_X: (0.0, 0.0),
    C.VEL_Y: (0.0, 0.0),
    C.YAW_RATE: (0.0, 0.0),
    C.BODY_HEIGHT: (0.0, 0.0),
    C.BODY_PITCH: (0.0, 0.0),
    C.BODY_ROLL: (0.0, 0.0),
    C.STANCE_WIDTH: (0.276, 0.30),
    C.STANCE_LENGTH: (0.47, 0.49),
    C.SWING_HEIGHT: (0.08, 0.12),
    C.GAIT_FREQUENCY: (2.5, 3.0),
    C.GAIT_PHASE: (0.5, 0.5),
    C.GAIT_OFFSET: (0.0, 0.0),
    C.GAIT_BOUND: (0.0, 0.0),
    C.GAIT_DUTY: (0.5, 0.55),
    C.ACCEL_LIMIT: (1.0, 2.0),
    C.LOCOMOTE: (1.0, 1.0),
}
"""A slow trot in place: phase 0.5 with offset and bound 0 moves diagonal pairs together."""

SKILLS: dict[str, Skill] = {
    s.name: s
    for s in (
        Skill(
            "stand",
            ("flat", "rough", "slope", "stairs", "obstacles"),
            {
                C.BODY_HEIGHT: (-0.10, 0.05),
                C.BODY_PITCH: (-0.3, 0.3),
                C.BODY_ROLL: (-0.3, 0.3),
                C.SWING_HEIGHT: (0.0, 0.0),
                C.GAIT_FREQUENCY: (0.0, 0.0),
                C.GAIT_PHASE: (0.0, 0.0),
                C.GAIT_DUTY: (1.0, 1.0),
                C.LOCOMOTE: (0.0, 0.0),
            },
        ),
        Skill(
            "rush",
            ("flat", "rough", "slope", "stairs", "obstacles"),
            {
                C.VEL_X: (1.0, 2.5),
                C.YAW_RATE: (-0.3, 0.3),
                C.SWING_HEIGHT: (0.08, 0.15),
                C.GAIT_FREQUENCY: (3.0, 4.0),
                C.ACCEL_LIMIT: (3.0, 6.0),
            },
        ),
        Skill(
            "crawl",
            ("flat", "rough"),
            {
                C.VEL_X: (0.4, 0.8),
                C.BODY_HEIGHT: (-MAX_CRAWL_M, -0.08),
                C.SWING_HEIGHT: (0.04, 0.08),
                C.GAIT_FREQUENCY: (2.0, 3.0),
                C.GAIT_DUTY: (0.6, 0.75),
            },
        ),
        Skill(
            "squeeze",
            ("flat", "rough"),
            {
                C.VEL_X: (0.4, 0.6),
                C.STANCE_WIDTH: (0.12, 0.22),
                C.GAIT_FREQUENCY: (2.5, 3.5),
            },
        ),
        Skill(
            "tilt",
            ("flat", "rough", "slope"),
            {
                C.VEL_X: (0.4, 0.6),
                C.BODY_ROLL: (0.3, 0.5),
                C.GAIT_FREQUENCY: (2.5, 3.5),
            },
            mirrored=(C.BODY_ROLL,),
        ),
        Skill(
            "run",
            ("flat", "rough", "slope"),
            {
                C.VEL_X: (1.5, 3.0),
                C.YAW_RATE: (-0.3, 0.3),
                C.SWING_HEIGHT: (0.06, 0.12),
                C.GAIT_FREQUENCY: (3.0, 4.0),
                C.GAIT_DUTY: (0.40, 0.50),
                C.ACCEL_LIMIT: (0.5, 2.0),
            },
        ),
    )
}
SKILL_NAMES = tuple(SKILLS)


def check_skill(skill: str) -> str:
    """Return the name, or raise ValueError naming the skills there are."""
    if skill not in SKILLS:
        raise ValueError(f"unknown skill '{skill}'; skills: {', '.join(SKILLS)}")
    return skill


def draw_command(
    skill: str, rng: np.random.Generator, robot: RobotCard, speed_scale: float = 1.0
) -> np.ndarray:
    """Draw one target command (16,) float64 of a skill, in a robot's own size.

    Args:
        speed_scale: shrinks the commanded speeds towards the lower end of their range (a training
            curriculum).
    """
    spec = SKILLS[check_skill(skill)]
    ranges = NEUTRAL | spec.ranges
    command = np.array([rng.uniform(*ranges[c]) for c in C])
    for c in spec.mirrored:
        command[c] *= rng.choice([-1.0, 1.0])
    low = ranges[C.VEL_X][0]
    command[C.VEL_X] = low + speed_scale * (command[C.VEL_X] - low)
    return command * command_scale(robot)


def length_scale(robot: RobotCard) -> float:
    """Leg length relative to Aliengo's 0.5 m, in whose size the ranges are written."""
    return robot.leg_length_m / 0.5


def command_scale(robot: RobotCard) -> np.ndarray:
    """(16,) factors from Aliengo's commands to a robot's.

    Equal Froude numbers (Alexander and Jayes, 1983): lengths grow with the leg, speeds with its
    square root, frequencies fall with it. Stances follow the robot's own hips.
    """
    scale = length_scale(robot)
    factors = np.ones(N_COMMANDS)
    factors[[C.BODY_HEIGHT, C.SWING_HEIGHT]] = scale
    factors[[C.VEL_X, C.VEL_Y]] = np.sqrt(scale)
    factors[[C.YAW_RATE, C.GAIT_FREQUENCY]] = 1.0 / np.sqrt(scale)
    factors[C.STANCE_WIDTH] = (robot.hip_offset_m[1] + robot.thigh_offset_m) / (0.051 + 0.0868)
    factors[C.STANCE_LENGTH] = robot.hip_offset_m[0] / 0.2407
    return factors


def ramped(target: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """The command in force `time_s` (N,) after the start: (N, 16) to (N, 16).

    Speed rises at the limit of acceleration, as in walk-these-ways' deployment profile; height and
    attitude move at `HEIGHT_RAMP_MS` and `ATTITUDE_RAMP_RADS`. What the policy reads is the ramped
    command.
    """
    reach = np.empty((len(target), len(_RAMPED)))
    reach[:, 0] = target[:, C.ACCEL_LIMIT]
    reach[:, 1:] = _RAMP_RATES
    reach *= time_s[:, None]
    command = target.copy()
    command[:, _RAMPED] = np.clip(target[:, _RAMPED], -reach, reach)
    return command


def commanded_distance_m(command: np.ndarray, steps: int = EPISODE_STEPS) -> float:
    """Distance a perfect follower of the ramped command (16,) walks in an episode, m."""
    time = np.arange(steps) * CONTROL_DT_S
    return float(np.minimum(command[C.VEL_X], command[C.ACCEL_LIMIT] * time).sum() * CONTROL_DT_S)
