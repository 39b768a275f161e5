"""Choose a default pose: the MJCF's, or a crouch by inverse kinematics."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gaitforge.collectors.modelling.describing.notes import Notes, joint_values
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, KNEES, N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.rotations import wrapped

CROUCH = 0.76
"""Standing height over leg length; near that of the shipped robots."""
_LOWEST = 0.5
_HIGHEST = 0.95
_LEVEL = 0.03
"""How far feet may be from level, as a share of the leg's length."""
_BENT_RAD = 0.3
_PROVISIONAL_BEND_RAD = 1.2
_SLACK_RAD = 1e-3

Pose = tuple[str, np.ndarray]


def choose_pose(robot: RobotCard, poses: Sequence[Pose], notes: Notes) -> Pose:
    """Name and joint angles (12,) of a default pose; a guess if `notes` holds questions on it.

    Args:
        robot: a card that lacks only its default pose and gains.
        poses: the file's, of which the first is taken in which the robot stands.
    """
    answer = joint_values("--pose", notes.answers.pose_rad, robot.joint_names)
    if np.isfinite(answer).all():
        return "--pose", answer
    if np.isfinite(answer).any():
        raise notes.wrong("--pose has to name all joints: hip=RAD,thigh=RAD,calf=RAD")
    if notes.answers.knees is None:
        for name, angles in poses:
            if _stands(robot, angles):
                return name, np.clip(angles, robot.joint_lower_rad, robot.joint_upper_rad)
    crouches = [crouch(robot, np.full(N_LEGS, sign)) for sign in (-1, 1)]
    legs = [_within(robot, pose).reshape(N_LEGS, -1).all(axis=1) for pose in crouches]
    if notes.answers.knees is not None:
        forward = np.array(KNEES[notes.answers.knees]) > 0
        source = f"--knees {notes.answers.knees}"
    else:
        forward = legs[1]
        source = "knees as the joints' ranges allow"
        if (legs[0] & legs[1]).any():
            notes.ask(f"--knees {'|'.join(KNEES)} (where the knees point)")
    if not np.where(forward, legs[1], legs[0]).all():
        notes.ask("--pose hip=RAD,thigh=RAD,calf=RAD (no crouch is within the joints' ranges)")
    pose = np.where(np.repeat(forward, JOINTS_PER_LEG), crouches[1], crouches[0])
    why = "the file has no pose that is level on bent legs"
    return f"a crouch at {CROUCH:g} of the leg's length, {source}; {why}", pose


def crouch(robot: RobotCard, bends: np.ndarray) -> np.ndarray:
    """(12,) rad: level feet below the thighs, knees bent with the signs of `bends` (4,)."""
    thigh, calf = robot.link_angles_rad.T
    start = np.zeros(N_JOINTS)
    turn = _PROVISIONAL_BEND_RAD * bends - (calf - thigh)
    start[2::JOINTS_PER_LEG] = robot.joint_signs[2::JOINTS_PER_LEG] * turn
    below = np.full((N_LEGS, 1), (1 - CROUCH) * robot.leg_length_m - robot.reach_m)
    feet = np.concatenate([robot.feet_below_m, below], axis=1)
    bent = LegKinematics(replace(robot, default_joint_pos_rad=start))
    pose = bent.joint_positions(feet[None])[0]
    middle = (robot.joint_lower_rad + robot.joint_upper_rad) / 2
    return pose + 2 * np.pi * np.round((middle - pose) / (2 * np.pi))


def calf_ups(robot: RobotCard, pose: np.ndarray) -> np.ndarray:
    """(4, 3): the vertical in each calf's frame, which is the trunk's with all joints at 0."""
    hip, thigh, calf = (robot.joint_signs * pose).reshape(N_LEGS, JOINTS_PER_LEG).T
    forward = -np.sin(thigh + calf)
    up = np.cos(thigh + calf)
    # The transpose of Rx(hip) Ry(thigh + calf), times z.
    return np.stack([forward * np.cos(hip), np.sin(hip), up * np.cos(hip)], axis=1)


def _stands(robot: RobotCard, angles: np.ndarray) -> bool:
    """Whether legs are bent, feet level and below the trunk, and joints within their limits."""
    posed = replace(robot, default_joint_pos_rad=angles)
    feet = LegKinematics(posed).foot_positions(angles[None])[0]
    height = -feet[:, 2]
    reach = posed.reach_m
    return bool(
        _within(robot, angles).all()
        and np.ptp(height) < _LEVEL * robot.leg_length_m
        and (np.abs(wrapped(posed.knee_bend_rad)) > _BENT_RAD).all()
        and _LOWEST * reach < height.mean() < _HIGHEST * reach
    )


def _within(robot: RobotCard, angles: np.ndarray) -> np.ndarray:
    """(12,) whether joints are within their limits."""
    low = robot.joint_lower_rad - _SLACK_RAD
    high = robot.joint_upper_rad + _SLACK_RAD
    return (angles >= low) & (angles <= high)
