"""Closed-form kinematics of a leg with hip roll (x axis), thigh pitch and calf pitch (y axis).

Angles of links are in the leg's plane and independent of a robot's joint signs and zeros: a link at
angle a points along (-sin a, -cos a) in x and z, and turns with its joint about +y.
"""

from math import cos, sin, sqrt

import numpy as np

from gaitforge.collectors.exact_kernels import compiled
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_JOINTS, N_LEGS, RobotCard
from gaitforge.collectors.rotations import cosine, sine, wrapped


class LegKinematics:
    """Forward and inverse kinematics of all four legs of one robot, or of one for each row.

    Feet (N, 4, 3) are their centres in the trunk frame, m; joints (N, 12) rad. With R robots, N is
    a multiple of R, and row i is robot i % R.
    """

    def __init__(self, *robots: RobotCard):
        def of(key: str) -> np.ndarray:
            return np.stack([getattr(robot, key) for robot in robots])

        self._hip = of("hip_offset_m")
        self._side = (of("thigh_offset_m") + of("knee_offset_m") + of("foot_offset_m"))[..., 1]
        self._shift = of("thigh_offset_m")[..., ::2].copy()
        self._links, self._knee = of("link_lengths_m"), of("knee_signs")
        self._signs = of("joint_signs").reshape(-1, N_LEGS, JOINTS_PER_LEG)
        # Angles of a leg's parts are signs * joints + zeros.
        self._zeros = np.zeros(self._signs.shape)
        thigh = of("link_angles_rad")[..., 0]
        calf = of("link_angles_rad")[..., 1]
        turns = np.round(of("knee_bend_rad") / (2 * np.pi))
        self._zeros[..., 1] = thigh
        self._zeros[..., 2] = calf - thigh - 2 * np.pi * turns

    def foot_positions(self, joint_pos: np.ndarray) -> np.ndarray:
        """(N, 12) joint angles to (N, 4, 3) foot centres in the trunk frame."""
        q = joint_pos.reshape(-1, *self._signs.shape) * self._signs + self._zeros
        hip = q[..., 0]
        thigh = q[..., 1]
        knee = q[..., 1] + q[..., 2]
        upper = self._links[..., 0]
        lower = self._links[..., 1]
        x = -upper * sine(thigh) - lower * sine(knee) + self._shift[..., 0]
        drop = -upper * cosine(thigh) - lower * cosine(knee) + self._shift[..., 1]
        y = self._side * cosine(hip) - drop * sine(hip)
        z = self._side * sine(hip) + drop * cosine(hip)
        feet = np.stack([x, y, z], axis=-1) + self._hip
        return feet.reshape(-1, N_LEGS, 3)

    def joint_positions(self, feet: np.ndarray) -> np.ndarray:
        """(N, 4, 3) foot centres to (N, 12) joint angles, knees bent as in the default pose.

        A target out of reach gives the straight leg that points at it.
        """
        feet = feet.reshape(-1, N_LEGS, 3)
        inputs = _unturned(feet, self._hip, self._side, self._shift, self._links)
        x, y, z, drop, below, cos_calf = inputs.reshape(6, -1, *self._side.shape)
        angles = np.empty((*x.shape, JOINTS_PER_LEG))
        hip = np.arctan2(z, y) - np.arctan2(drop, self._side)
        calf = self._knee * np.arccos(cos_calf)
        thigh = np.arctan2(x, below) - np.arctan2(*_straight(calf, self._links))
        angles[..., 0], angles[..., 1] = wrapped(hip), wrapped(thigh - self._zeros[..., 1])
        angles[..., 2] = calf - self._zeros[..., 2]
        return (self._signs * angles).reshape(-1, N_JOINTS)

    def rise_gradient(self, joint_pos: np.ndarray, up: np.ndarray) -> np.ndarray:
        """(N, 12) m/rad, derivatives of each foot's position along `up` by its leg's joints.

        Args:
            up: (N, 1, 3) unit vectors in the trunk frame.
        """
        joints = joint_pos.reshape(-1, N_LEGS, JOINTS_PER_LEG)
        legs = self._signs, self._zeros, self._side, self._shift, self._links
        return _rise_gradient(joints, up, *legs).reshape(-1, N_JOINTS)


def standing_height_m(robot: RobotCard) -> float:
    """Height of the trunk's origin over flat ground in the default pose."""
    feet = LegKinematics(robot).foot_positions(robot.default_joint_pos_rad[None])
    return float(robot.foot_radius_m - feet[0, :, 2].min())


@compiled
def _unturned(
    feet: np.ndarray, hips: np.ndarray, sides: np.ndarray, shifts: np.ndarray, links: np.ndarray
) -> np.ndarray:
    """(6, N, 4) inputs of inverse kinematics.

    x, y, z from the hip joint, x without the thigh joint's shift; depth in the leg's plane (< 0)
    from the hip joint and from the thigh joint; the cosine of the knee's bend.
    """
    inputs = np.empty((6, *feet.shape[:2]))
    for i in range(feet.shape[0]):
        r = i % len(hips)
        for leg in range(feet.shape[1]):
            side = sides[r, leg]
            upper = links[r, leg, 0]
            lower = links[r, leg, 1]
            x = feet[i, leg, 0] - hips[r, leg, 0]
            y = feet[i, leg, 1] - hips[r, leg, 1]
            x = x - shifts[r, leg, 0]
            z = feet[i, leg, 2] - hips[r, leg, 2]
            drop = -sqrt(max(y * y + z * z - side * side, 1e-6))
            below = drop - shifts[r, leg, 1]
            bend = (x * x + below * below - upper * upper - lower * lower) / (2 * upper * lower)
            inputs[0, i, leg] = x
            inputs[1, i, leg] = y
            inputs[2, i, leg] = z
            inputs[3, i, leg] = drop
            inputs[4, i, leg] = below
            inputs[5, i, leg] = min(max(bend, -1.0), 1.0)
    return inputs


@compiled
def _straight(angles: np.ndarray, links: np.ndarray) -> np.ndarray:
    """(2, K, R, 4): x and z of the foot under a thigh at 0, knees bent by `angles` (K, R, 4)."""
    foot = np.empty((2, *angles.shape))
    for k in range(angles.shape[0]):
        for r in range(angles.shape[1]):
            for leg in range(angles.shape[2]):
                upper, lower = links[r, leg]
                foot[0, k, r, leg] = -lower * sin(angles[k, r, leg])
                foot[1, k, r, leg] = -upper - lower * cos(angles[k, r, leg])
    return foot


@compiled
def _rise_gradient(
    joints: np.ndarray,
    up: np.ndarray,
    signs: np.ndarray,
    zeros: np.ndarray,
    sides: np.ndarray,
    shifts: np.ndarray,
    links: np.ndarray,
) -> np.ndarray:
    gradient = np.empty(joints.shape)
    for i in range(joints.shape[0]):
        ux, uy, uz = up[i, 0]
        r = i % len(signs)
        for leg in range(joints.shape[1]):
            sign, side, (upper, lower) = signs[r, leg], sides[r, leg], links[r, leg]
            hip = sign[0] * joints[i, leg, 0]
            pitch = sign[1] * joints[i, leg, 1] + zeros[r, leg, 1]
            knee = pitch + (sign[2] * joints[i, leg, 2] + zeros[r, leg, 2])
            sin_hip = sin(hip)
            cos_hip = cos(hip)
            sin_knee = sin(knee)
            cos_knee = cos(knee)
            # From the thigh joint, then from the hip joint.
            x = -upper * sin(pitch) - lower * sin_knee
            below = -upper * cos(pitch) - lower * cos_knee
            drop = below + shifts[r, leg, 1]
            y = side * cos_hip - drop * sin_hip
            z = side * sin_hip + drop * cos_hip
            # The leg swings in the plane of x and of its own downward axis, which the hip turns.
            along_drop = uz * cos_hip - uy * sin_hip
            gradient[i, leg, 0] = sign[0] * (uz * y - uy * z)
            gradient[i, leg, 1] = sign[1] * (ux * below - x * along_drop)
            gradient[i, leg, 2] = sign[2] * (-ux * lower * cos_knee + lower * sin_knee * along_drop)
    return gradient
