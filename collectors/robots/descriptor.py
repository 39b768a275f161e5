"""A robot's body in numbers: what policies that drive many robots read beside the observation."""

import numpy as np

from collectors.robots.robot import JOINTS_OF_A_LEG, JOINTS_PER_LEG, RobotCard

_MIDDLE_LENGTH_M, _MIDDLE_MASS_KG = 0.5, 25.0
"""Aliengo's leg and mass, for scaling."""
_LENGTHS = (
    *("body_front_thigh_m", "body_front_calf_m", "body_rear_thigh_m", "body_rear_calf_m"),
    *("body_trunk_half_length_m", "body_trunk_half_width_m", "body_trunk_half_height_m"),
    *("body_hip_x_m", "body_hip_y_m", "body_foot_y_m", "body_nominal_height_m"),
)
_DRIVES = tuple(
    f"body_{joint}_{what}" for what in ("kp", "kd", "torque") for joint in JOINTS_OF_A_LEG
)
_BENDS = ("body_front_knee", "body_rear_knee")
DESCRIPTOR_NAMES = ("body_mass_kg", *_LENGTHS, *_DRIVES, *_BENDS)
"""Lengths are of left legs; gains and torque limits of the front left leg, in Nm/rad, Nms/rad and
Nm; knees: -1 where they bend backwards, +1 where forwards."""
_DRIVE_UNITS = ("Nm/rad", "Nms/rad", "Nm")
DESCRIPTOR_UNITS = (
    *("kg", *["m"] * len(_LENGTHS)),
    *(unit for unit in _DRIVE_UNITS for _ in JOINTS_OF_A_LEG),
    *("1", "1"),
)
DESCRIPTOR_DIM = len(DESCRIPTOR_NAMES)


def descriptor(robot: RobotCard) -> np.ndarray:
    """(DESCRIPTOR_DIM,) float64 in the order of DESCRIPTOR_NAMES, SI units."""
    links, hips, feet = robot.link_lengths_m, robot.hip_offset_m, robot.feet_below_m
    leg = slice(0, JOINTS_PER_LEG)
    front, rear = 0, 2
    return np.array(
        [
            robot.mass_kg,
            *links[front],
            *links[rear],
            *robot.trunk_half_size_m,
            (hips[front, 0] - hips[rear, 0]) / 2,
            (hips[front, 1] + hips[rear, 1]) / 2,
            (feet[front, 1] + feet[rear, 1]) / 2,
            robot.nominal_height_m,
            *robot.kp_nm_per_rad[leg],
            *robot.kd_nms_per_rad[leg],
            *robot.torque_limit_nm[leg],
            robot.knee_signs[front],
            robot.knee_signs[rear],
        ]
    )


def scaled(bodies: np.ndarray) -> np.ndarray:
    """(..., DESCRIPTOR_DIM) descriptors as networks read them: of the order of 1, float32.

    Mass and lengths as logarithms relative to Aliengo's, gains and torques as logarithms of their
    shares of weight times leg length (dimensionless), knees as they are.
    """
    bodies = np.asarray(bodies, dtype=np.float64)
    mass, rest = bodies[..., :1], bodies[..., 1:]
    lengths, drives, knees = np.split(rest, [len(_LENGTHS), len(_LENGTHS) + len(_DRIVES)], axis=-1)
    leg = (lengths[..., :4].sum(axis=-1, keepdims=True)) / 2
    moment = 9.81 * mass * leg
    time = np.sqrt(leg / 9.81)
    shares = drives / moment
    shares[..., 3:6] /= time
    parts = (
        np.log(mass / _MIDDLE_MASS_KG),
        np.log(lengths / _MIDDLE_LENGTH_M),
        np.log(shares),
        knees,
    )
    return np.concatenate(parts, axis=-1).astype(np.float32)
