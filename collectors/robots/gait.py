"""A kinematic gait: joint targets that walk a command on flat ground, which experts correct.

Feet follow a clock (walk-these-ways' phases): stance feet move against the commanded velocity,
swing feet return on a raised cosine. Inverse kinematics and a feed-forward of the weight give joint
targets. Policies that modulate a generator learn faster (Iscen et al., "Policies Modulating
Trajectory Generators", 2018). The clock never enters the stored observation.
"""

from math import cos, pi

import numpy as np

from gaitforge.collectors.exact_kernels import compiled
from gaitforge.collectors.robots.commands import C
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.timing import CONTROL_DT_S

# numba needs plain integers.
_VEL_X = int(C.VEL_X)
_VEL_Y = int(C.VEL_Y)
_YAW_RATE = int(C.YAW_RATE)
_HEIGHT = int(C.BODY_HEIGHT)
_STANCE_WIDTH = int(C.STANCE_WIDTH)
_STANCE_LENGTH = int(C.STANCE_LENGTH)
_SWING_HEIGHT = int(C.SWING_HEIGHT)
_FREQUENCY = int(C.GAIT_FREQUENCY)
_DUTY = int(C.GAIT_DUTY)
_LOCOMOTE = int(C.LOCOMOTE)


def leg_phases(command: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """(..., N, 4) phases in [0, 1) of FL, FR, RL, RR, of commands (N, 16) and clocks (..., N).

    Offsets (p + o + b, o, b, p) as in walk-these-ways; p, o, b: phase, offset and bound commands.
    """
    p = command[:, C.GAIT_PHASE]
    o = command[:, C.GAIT_OFFSET]
    b = command[:, C.GAIT_BOUND]
    offsets = np.stack([p + o + b, o, b, p], axis=1)
    cycles = clock[..., None] + offsets
    return cycles - np.floor(cycles)


class GaitReference:
    """Joint targets (N, 12) in rad from commands and clocks, for one robot or one for each row."""

    def __init__(self, *robots: RobotCard):
        self._kinematics = LegKinematics(*robots)
        self._signs = robots[0].leg_signs
        self._sizes = np.array([_sizes(robot) for robot in robots])
        self._lower, self._upper, self._torque_limit, self._kp, self._kd = (
            np.stack([getattr(robot, key) for robot in robots])
            for key in (
                "joint_lower_rad",
                "joint_upper_rad",
                "torque_limit_nm",
                "kp_nm_per_rad",
                "kd_nms_per_rad",
            )
        )

    def joint_targets(self, command: np.ndarray, clock: np.ndarray) -> np.ndarray:
        """PD targets of commands (N, 16) at clocks (N,); they carry the weight and lead motion."""
        clocks = np.stack([clock, clock + command[:, C.GAIT_FREQUENCY] * CONTROL_DT_S])
        phase = leg_phases(command, clocks)
        tilt = _tilt(command)
        feet, load = _place_feet(command, phase, tilt, self._signs, self._sizes)
        poses = self._kinematics.joint_positions(feet).reshape(2, len(command), -1)
        pose, next_pose = np.clip(poses, self._lower, self._upper)
        velocity = (next_pose - pose) / CONTROL_DT_S
        rise = self._kinematics.rise_gradient(pose, _upwards(tilt)).reshape(*load.shape, -1)
        torque = (-load[..., None] * rise).reshape(pose.shape)
        torque = np.clip(torque, -self._torque_limit, self._torque_limit)
        lead = (torque + self._kd * velocity) / self._kp
        return pose + lead


def _sizes(robot: RobotCard) -> tuple[float, ...]:
    """Nominal height, foot radius and x of the stance's middle in m, weight in N."""
    front, _, rear, _ = robot.feet_below_m[:, 0]
    return robot.nominal_height_m, robot.foot_radius_m, (front + rear) / 2, robot.weight_n


def _tilt(command: np.ndarray) -> np.ndarray:
    """(N, 4): sin and cos of the commanded pitch, then roll."""
    angles = command[:, C.BODY_PITCH : C.BODY_ROLL + 1]
    tilt = np.empty((len(command), 4))
    np.sin(angles, out=tilt[:, ::2])
    np.cos(angles, out=tilt[:, 1::2])
    return tilt


@compiled
def _to_trunk(tilt: np.ndarray, x: float, y: float, z: float) -> tuple[float, float, float]:
    """A level vector in the trunk's frame: the transpose of Ry(pitch) Rx(roll)."""
    sp, cp, sr, cr = tilt
    x, z = cp * x - sp * z, sp * x + cp * z
    return x, cr * y + sr * z, -sr * y + cr * z


@compiled
def _upwards(tilt: np.ndarray) -> np.ndarray:
    """(N, 1, 3): the vertical in trunk frames."""
    up = np.empty((len(tilt), 1, 3))
    for i in range(len(tilt)):
        up[i, 0] = _to_trunk(tilt[i], 0.0, 0.0, 1.0)
    return up


@compiled
def _place_feet(
    command: np.ndarray, phases: np.ndarray, tilt: np.ndarray, signs: np.ndarray, sizes: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Centres (2, N, 4, 3) of feet in the trunk frame at two phases (2, N, 4), m; loads (N, 4).

    Loads are the weight in N on each foot at the first phase. Sizes (R, 4): see `_sizes`.
    """
    feet = np.empty((2, len(command), 4, 3))
    load = np.empty((len(command), 4))
    for i in range(len(command)):
        nominal_height_m, foot_radius_m, middle_x, weight_n = sizes[i % len(sizes)]
        row = command[i]
        duty = row[_DUTY]
        moving = row[_LOCOMOTE]
        yaw_rate = row[_YAW_RATE]
        stance_s = duty / max(row[_FREQUENCY], 1e-6)
        height = nominal_height_m + row[_HEIGHT]
        for leg in range(4):
            load[i, leg] = weight_n / (4.0 * duty) if phases[0, i, leg] < duty else 0.0
            rest_x = signs[leg, 0] * row[_STANCE_LENGTH] / 2 + middle_x
            rest_y = signs[leg, 1] * row[_STANCE_WIDTH] / 2
            travel_x = (row[_VEL_X] - yaw_rate * rest_y) * stance_s
            travel_y = (row[_VEL_Y] + yaw_rate * rest_x) * stance_s
            for moment in range(2):
                phase = phases[moment, i, leg]
                # Share of the stance's travel: +1/2 at touch-down, -1/2 at lift-off.
                ahead = 0.5 - phase / duty
                lift = 0.0
                if phase >= duty:
                    swing = min(max((phase - duty) / max(1.0 - duty, 1e-6), 0.0), 1.0)
                    ahead = -0.5 * cos(pi * swing)
                    lift = 0.5 - 0.5 * cos(2 * pi * swing)
                ahead = moving * ahead
                lift = moving * lift
                z = lift * row[_SWING_HEIGHT] + foot_radius_m - height
                x = rest_x + ahead * travel_x
                y = rest_y + ahead * travel_y
                feet[moment, i, leg] = _to_trunk(tilt[i], x, y, z)
    return feet, load
