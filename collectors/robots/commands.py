"""The 16-number command: its layout, neutral values, ramps and scaling to a robot's size.

Raw SI units, also on disk. The layout is walk-these-ways' command vector; an acceleration limit
replaces the reward coefficient, and a flag tells standing from moving.
"""

from enum import IntEnum

import numpy as np

from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.timing import CONTROL_DT_S, EPISODE_STEPS


class C(IntEnum):
    """Index of each number of the command."""

    VEL_X, VEL_Y, YAW_RATE, BODY_HEIGHT, BODY_PITCH, BODY_ROLL = range(6)
    STANCE_WIDTH, STANCE_LENGTH, SWING_HEIGHT, GAIT_FREQUENCY, GAIT_PHASE = range(6, 11)
    GAIT_OFFSET, GAIT_BOUND, GAIT_DUTY, ACCEL_LIMIT, LOCOMOTE = range(11, 16)


N_COMMANDS = len(C)
COMMAND_NAMES = tuple(c.name.lower() for c in C)
COMMAND_UNITS = (
    "m/s", "m/s", "rad/s", "m", "rad", "rad", "m", "m",
    "m", "Hz", "cycle", "cycle", "cycle", "1", "m/s^2", "1",
)  # fmt: skip

Range = tuple[float, float]

HEIGHT_RAMP_MS = 0.4
ATTITUDE_RAMP_RADS = 2.0
"""Ramp rates of the commanded height and attitude; an episode starts upright."""
_RAMPED = [C.VEL_X, C.BODY_HEIGHT, C.BODY_PITCH, C.BODY_ROLL]
_RAMP_RATES = (HEIGHT_RAMP_MS, ATTITUDE_RAMP_RADS, ATTITUDE_RAMP_RADS)


NEUTRAL: dict[C, Range] = {
    **dict.fromkeys(list(C)[: C.STANCE_WIDTH], (0.0, 0.0)),
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
"""A slow trot in place: phase 0.5, offset and bound 0 move diagonal legs together."""


def length_scale(robot: RobotCard) -> float:
    """Leg length over Aliengo's 0.5 m, for which command ranges are written."""
    return robot.leg_length_m / 0.5


def command_scale(robot: RobotCard) -> np.ndarray:
    """(16,) factors from Aliengo's commands to a robot's.

    Equal Froude numbers (Alexander and Jayes, 1983): lengths scale with the leg, speeds with its
    square root, frequencies with the inverse root. Stances follow the robot's own hips.
    """
    scale = length_scale(robot)
    factors = np.ones(N_COMMANDS)
    factors[[C.BODY_HEIGHT, C.SWING_HEIGHT]] = scale
    factors[[C.VEL_X, C.VEL_Y]] = np.sqrt(scale)
    factors[[C.YAW_RATE, C.GAIT_FREQUENCY]] = 1.0 / np.sqrt(scale)
    front_left, _, rear_left, _ = robot.feet_below_m
    factors[C.STANCE_WIDTH] = (front_left[1] + rear_left[1]) / 2 / (0.051 + 0.0868)
    factors[C.STANCE_LENGTH] = (front_left[0] - rear_left[0]) / 2 / 0.2407
    return factors


def ramped(target: np.ndarray, time_s: np.ndarray) -> np.ndarray:
    """The command (N, 16) in force `time_s` (N,) after the start, as policies read it.

    Speed rises at the acceleration limit (walk-these-ways' deployment profile), height and attitude
    at `HEIGHT_RAMP_MS` and `ATTITUDE_RAMP_RADS`.
    """
    reach = np.empty((len(target), len(_RAMPED)))
    reach[:, 0] = target[:, C.ACCEL_LIMIT]
    reach[:, 1:] = _RAMP_RATES
    reach *= time_s[:, None]
    command = target.copy()
    command[:, _RAMPED] = np.clip(target[:, _RAMPED], -reach, reach)
    return command


def commanded_distance_m(command: np.ndarray) -> float:
    """Distance in m that a perfect follower of the ramped command (16,) walks in an episode."""
    time = np.arange(EPISODE_STEPS) * CONTROL_DT_S
    return float(np.minimum(command[C.VEL_X], command[C.ACCEL_LIMIT] * time).sum() * CONTROL_DT_S)
