"""Closed-form kinematics of a leg with hip roll (x axis), thigh pitch and calf pitch (y axis)."""

from math import cos, sin, sqrt

import numpy as np

from collectors.compiling import compiled
from collectors.robots.robot import N_LEGS, RobotCard
from collectors.rotations import wrapped


class LegKinematics:
    """Forward and inverse kinematics of all four legs.

    Feet (N, 4, 3) are their centres in the trunk frame, m; joints (N, 12) rad. Rotation by q about
    y turns the hanging leg (0, 0, -l) into (-l sin q, 0, -l cos q).
    """

    def __init__(self, robot: RobotCard):
        self._hip = robot.hip_positions_m
        self._side = robot.leg_signs[:, 1] * robot.thigh_offset_m
        self._thigh = robot.thigh_length_m
        self._calf = robot.calf_length_m

    def foot_positions(self, joint_pos: np.ndarray) -> np.ndarray:
        """(N, 12) joint angles to (N, 4, 3) foot centres in the trunk frame."""
        q = joint_pos.reshape(-1, N_LEGS, 3)
        hip, thigh, knee = q[..., 0], q[..., 1], q[..., 1] + q[..., 2]
        x = -self._thigh * np.sin(thigh) - self._calf * np.sin(knee)
        drop = -self._thigh * np.cos(thigh) - self._calf * np.cos(knee)
        y = self._side * np.cos(hip) - drop * np.sin(hip)
        z = self._side * np.sin(hip) + drop * np.cos(hip)
        return np.stack([x, y, z], axis=-1) + self._hip

    def joint_positions(self, feet: np.ndarray) -> np.ndarray:
        """(N, 4, 3) foot centres to (N, 12) joint angles, knees bent backwards.

        A target out of reach gives the straight leg that points at it.
        """
        feet = feet.reshape(-1, N_LEGS, 3)
        place, joints = np.empty((5, *feet.shape[:2])), np.empty(feet.shape)
        lengths = self._thigh, self._calf
        _unturned(feet, self._hip, self._side, *lengths, place)
        x, y, z, drop, cos_calf = place
        hip = np.arctan2(z, y) - np.arctan2(drop, self._side)
        calf = -np.arccos(cos_calf)
        straight = np.empty((2, *calf.shape))
        _straight(calf, *lengths, straight)
        thigh = np.arctan2(x, drop) - np.arctan2(straight[0], straight[1])
        joints[..., 0], joints[..., 1], joints[..., 2] = wrapped(hip), wrapped(thigh), calf
        return joints.reshape(-1, 3 * N_LEGS)

    def rise_gradient(self, joint_pos: np.ndarray, up: np.ndarray) -> np.ndarray:
        """(N, 12) m/rad, derivatives of each foot's position along `up` by its leg's joints.

        Args:
            up: (N, 1, 3) unit vectors in the trunk frame.
        """
        joints = joint_pos.reshape(-1, N_LEGS, 3)
        gradient = np.empty(joints.shape)
        _rise_gradient(joints, up, self._side, self._thigh, self._calf, gradient)
        return gradient.reshape(-1, 3 * N_LEGS)


def standing_height_m(robot: RobotCard) -> float:
    """Height of the trunk's origin over flat ground in the default pose."""
    feet = LegKinematics(robot).foot_positions(robot.default_joint_pos_rad[None])
    return float(robot.foot_radius_m - feet[0, :, 2].min())


@compiled
def _unturned(
    feet: np.ndarray,
    hips: np.ndarray,
    side: np.ndarray,
    thigh: float,
    calf: float,
    place: np.ndarray,
) -> None:
    """Into place (5, N, 4): feet relative to hips, depth in the leg's plane (< 0), cos(calf)."""
    for i in range(feet.shape[0]):
        for leg in range(feet.shape[1]):
            x, y = feet[i, leg, 0] - hips[leg, 0], feet[i, leg, 1] - hips[leg, 1]
            z = feet[i, leg, 2] - hips[leg, 2]
            drop = -sqrt(max(y * y + z * z - side[leg] * side[leg], 1e-6))
            bend = (x * x + drop * drop - thigh * thigh - calf * calf) / (2 * thigh * calf)
            place[0, i, leg], place[1, i, leg], place[2, i, leg] = x, y, z
            place[3, i, leg], place[4, i, leg] = drop, min(max(bend, -1.0), 1.0)


@compiled
def _straight(angles: np.ndarray, thigh: float, calf: float, foot: np.ndarray) -> None:
    """Into foot (2, N, 4): x and z of the foot under a thigh at 0 with the calf at `angles`."""
    for i in range(angles.shape[0]):
        for leg in range(angles.shape[1]):
            foot[0, i, leg] = -calf * sin(angles[i, leg])
            foot[1, i, leg] = -thigh - calf * cos(angles[i, leg])


@compiled
def _rise_gradient(
    joints: np.ndarray,
    up: np.ndarray,
    side: np.ndarray,
    thigh: float,
    calf: float,
    gradient: np.ndarray,
) -> None:
    for i in range(joints.shape[0]):
        ux, uy, uz = up[i, 0]
        for leg in range(joints.shape[1]):
            hip, pitch = joints[i, leg, 0], joints[i, leg, 1]
            knee = pitch + joints[i, leg, 2]
            sin_hip, cos_hip, sin_knee, cos_knee = sin(hip), cos(hip), sin(knee), cos(knee)
            x = -thigh * sin(pitch) - calf * sin_knee
            drop = -thigh * cos(pitch) - calf * cos_knee
            y = side[leg] * cos_hip - drop * sin_hip
            z = side[leg] * sin_hip + drop * cos_hip
            # The leg swings in the plane of x and of its own downward axis, which the hip turns.
            along_drop = uz * cos_hip - uy * sin_hip
            gradient[i, leg, 0] = uz * y - uy * z
            gradient[i, leg, 1] = ux * drop - x * along_drop
            gradient[i, leg, 2] = -ux * calf * cos_knee + calf * sin_knee * along_drop
