"""A kinematic gait: joint targets that walk the command on flat ground, which experts correct.

Feet follow a clock (walk-these-ways' phases), stance feet move against the commanded velocity,
swing feet return on a raised cosine; inverse kinematics and a feed-forward of the weight turn feet
into joint targets. Policies that modulate such a generator learn far faster than from nothing
(Iscen et al., "Policies Modulating Trajectory Generators", 2018). The clock is private to the
expert: it never enters the stored observation.
"""

from __future__ import annotations

import numpy as np

from collectors.commands import C
from collectors.kinematics import LegKinematics
from collectors.robots import RobotCard
from collectors.timing import CONTROL_DT_S

GRAVITY_MS2 = 9.81


def leg_phases(command: np.ndarray, clock: np.ndarray) -> np.ndarray:
    """(N, 4) phases in [0, 1) of FL, FR, RL, RR from commands (N, 16) and clocks (N,) in cycles.

    Offsets (p + o + b, o, b, p) as in walk-these-ways; p, o, b: phase, offset and bound commands.
    """
    p, o, b = command[:, C.GAIT_PHASE], command[:, C.GAIT_OFFSET], command[:, C.GAIT_BOUND]
    offsets = np.stack([p + o + b, o, b, p], axis=1)
    return (clock[:, None] + offsets) % 1.0


class GaitReference:
    """Joint targets (N, 12) in rad from commands and clocks, for one robot."""

    def __init__(self, robot: RobotCard):
        self._robot = robot
        self._kinematics = LegKinematics(robot)
        self._signs = robot.leg_signs
        self._weight_n = robot.mass_kg * GRAVITY_MS2

    def joint_targets(self, command: np.ndarray, clock: np.ndarray) -> np.ndarray:
        """PD targets that hold the gait's pose under the weight and lead its velocity.

        Args:
            command: (N, 16) the command in force.
            clock: (N,) gait clock in cycles.
        """
        step = command[:, C.GAIT_FREQUENCY] * CONTROL_DT_S
        pose = self._pose(command, clock)
        velocity = (self._pose(command, clock + step) - pose) / CONTROL_DT_S
        duty = command[:, C.GAIT_DUTY, None]
        stance = leg_phases(command, clock) < duty
        load = np.repeat(np.where(stance, self._weight_n / (4.0 * duty), 0.0), 3, axis=1)
        up = _to_trunk(command, *np.array([0.0, 0.0, 1.0])[:, None, None])
        torque = -load * self._kinematics.rise_gradient(pose, up)
        torque = np.clip(torque, -self._robot.torque_limit_nm, self._robot.torque_limit_nm)
        lead = (torque + self._robot.kd_nms_per_rad * velocity) / self._robot.kp_nm_per_rad
        return pose + lead

    def _pose(self, command: np.ndarray, clock: np.ndarray) -> np.ndarray:
        return np.clip(
            self._kinematics.joint_positions(self._feet(command, clock)),
            self._robot.joint_lower_rad,
            self._robot.joint_upper_rad,
        )

    def _feet(self, command: np.ndarray, clock: np.ndarray) -> np.ndarray:
        """(N, 4, 3) foot centres in the trunk frame."""
        phase = leg_phases(command, clock)
        duty = command[:, C.GAIT_DUTY, None]
        frequency = np.maximum(command[:, C.GAIT_FREQUENCY, None], 1e-6)
        moving = command[:, C.LOCOMOTE, None]
        in_stance = phase < duty
        stance = phase / duty
        swing = np.clip((phase - duty) / np.maximum(1.0 - duty, 1e-6), 0.0, 1.0)
        # Fraction of the stance's travel ahead of neutral: +1/2 at touch-down, -1/2 at lift-off.
        ahead = moving * np.where(in_stance, 0.5 - stance, -0.5 * np.cos(np.pi * swing))
        lift = moving * np.where(in_stance, 0.0, 0.5 - 0.5 * np.cos(2 * np.pi * swing))

        x = self._signs[:, 0] * command[:, C.STANCE_LENGTH, None] / 2
        y = self._signs[:, 1] * command[:, C.STANCE_WIDTH, None] / 2
        yaw_rate = command[:, C.YAW_RATE, None]
        stance_s = duty / frequency
        travel_x = (command[:, C.VEL_X, None] - yaw_rate * y) * stance_s
        travel_y = (command[:, C.VEL_Y, None] + yaw_rate * x) * stance_s
        height = self._robot.nominal_height_m + command[:, C.BODY_HEIGHT, None]
        z = lift * command[:, C.SWING_HEIGHT, None] + self._robot.foot_radius_m - height
        x = x + ahead * travel_x
        y = y + ahead * travel_y

        return _to_trunk(command, x, y, z)


def _to_trunk(command: np.ndarray, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Vectors of the level frame, (N, K) or (1, 1) each, in the trunk's: (N, K or 1, 3).

    The trunk is pitched and rolled as commanded; this is the transpose of Ry(pitch) Rx(roll).
    """
    sp, cp = np.sin(command[:, C.BODY_PITCH, None]), np.cos(command[:, C.BODY_PITCH, None])
    sr, cr = np.sin(command[:, C.BODY_ROLL, None]), np.cos(command[:, C.BODY_ROLL, None])
    x, z = cp * x - sp * z, sp * x + cp * z
    y, z = cr * y + sr * z, -sr * y + cr * z
    return np.stack(np.broadcast_arrays(x, y, z), axis=-1)
