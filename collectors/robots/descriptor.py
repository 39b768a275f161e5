"""A robot's body in numbers, a further input of policies that drive many robots."""

import numpy as np

from gaitforge.collectors.robots.robot import (
    JOINTS_OF_A_LEG,
    JOINTS_PER_LEG,
    N_JOINTS,
    N_LEGS,
    RobotCard,
)
from gaitforge.collectors.rotations import wrapped
from gaitforge.collectors.timing import GRAVITY_MS2
from gaitforge.datasets.schema import consecutive_slices

_MIDDLE_LENGTH_M = 0.5
_MIDDLE_MASS_KG = 25.0
"""Aliengo's leg length and mass, for scaling."""
_LENGTHS = (
    "body_front_thigh_m",
    "body_front_calf_m",
    "body_rear_thigh_m",
    "body_rear_calf_m",
    "body_trunk_half_length_m",
    "body_trunk_half_width_m",
    "body_trunk_half_height_m",
    "body_hip_x_m",
    "body_hip_y_m",
    "body_foot_y_m",
    "body_nominal_height_m",
)
_DRIVES = tuple(
    f"body_{joint}_{quantity}" for quantity in ("kp", "kd", "torque") for joint in JOINTS_OF_A_LEG
)
_BENDS = ("body_front_knee", "body_rear_knee")
DESCRIPTOR_NAMES = ("body_mass_kg", *_LENGTHS, *_DRIVES, *_BENDS)
"""Lengths are of left legs; gains and torque limits of the front left leg, in Nm/rad, Nms/rad and
Nm; knees: -1 where they bend backwards, +1 where forwards."""
_DRIVE_UNITS = ("Nm/rad", "Nms/rad", "Nm")
DESCRIPTOR_UNITS = (
    "kg",
    *["m"] * len(_LENGTHS),
    *(unit for unit in _DRIVE_UNITS for _ in JOINTS_OF_A_LEG),
    "1",
    "1",
)


def descriptor(robot: RobotCard) -> np.ndarray:
    """(DESCRIPTOR_DIM,) float64 in the order of DESCRIPTOR_NAMES, SI units."""
    links = robot.link_lengths_m
    hips = robot.hip_offset_m
    feet = robot.feet_below_m
    leg = slice(0, JOINTS_PER_LEG)
    front = 0
    rear = 2
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


def body_vector(robot: RobotCard) -> np.ndarray:
    """(BODY_DIM,) float32: the body as networks read it, in the order of `BODY_SLICES`.

    Numbers of the order of 1: logarithms of lengths over leg lengths, of masses and leg lengths
    over Aliengo's, of gains and torque limits over weight times leg length (with the time
    sqrt(leg length / g)); angles in rad; signs.
    """
    leg = robot.leg_length_m
    moment = robot.weight_n * robot.leg_length_m
    values = descriptor(robot)
    lengths = values[5:12]  # the trunk's half length and all lengths after it
    time_s = np.sqrt(leg / GRAVITY_MS2)
    side = np.abs(robot.feet_below_m[:, 1] - robot.hip_offset_m[:, 1])
    links = np.concatenate([side[:, None], robot.link_lengths_m], axis=1)
    angles = robot.joint_signs * robot.default_joint_pos_rad
    angles = angles.reshape(N_LEGS, JOINTS_PER_LEG) + np.stack(
        [np.zeros(N_LEGS), robot.link_angles_rad[:, 0], np.diff(robot.link_angles_rad)[:, 0]],
        axis=1,
    )
    parts = {
        "body_trunk": [
            np.log(robot.mass_kg / _MIDDLE_MASS_KG),
            np.log(leg / _MIDDLE_LENGTH_M),
            *np.log(np.abs(lengths) / leg),
        ],
        "body_stiffness": np.log(robot.kp_nm_per_rad / moment),
        "body_damping": np.log(robot.kd_nms_per_rad / (moment * time_s)),
        "body_torque": np.log(robot.torque_limit_nm / moment),
        "body_link": np.log(links.ravel() / leg),
        "body_pose": wrapped(angles).ravel(),
        "body_sign": robot.joint_signs,
    }
    return np.concatenate([np.asarray(parts[name]) for name in BODY_SLICES]).astype(np.float32)


_PER_JOINT = ("stiffness", "damping", "torque", "link", "pose", "sign")
BODY_SLICES = consecutive_slices(
    {"body_trunk": 2 + 7, **{f"body_{name}": N_JOINTS for name in _PER_JOINT}}
)
"""Trunk: mass, leg length, the trunk's half sizes, hip x and y, foot y and nominal height. Of each
joint in the card's order: gains, torque limit, length of the link below, angle in the default pose
(of thighs from the vertical, of calves from the thigh) and sign."""
BODY_DIM = max(stop for _, stop in BODY_SLICES.values())
