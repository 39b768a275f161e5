"""Closed-form kinematics of a leg with hip roll (x axis), thigh pitch and calf pitch (y axis)."""

from __future__ import annotations

import numpy as np

from collectors.robots import N_LEGS, RobotCard


class LegKinematics:
    """Forward and inverse kinematics for all four legs at once.

    Feet are given as their centres in the trunk frame, (N, 4, 3) in m; joints as (N, 12) in rad.
    Rotation by q about y turns the hanging leg (0, 0, -l) into (-l sin q, 0, -l cos q).
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
        """(N, 4, 3) foot centres in the trunk frame to (N, 12) joint angles, knees bent backwards.

        A target out of reach is answered with the straight leg that points at it.
        """
        x, y, z = np.moveaxis(feet - self._hip, -1, 0)
        drop = -np.sqrt(np.maximum(y * y + z * z - self._side**2, 1e-6))
        hip = np.arctan2(z, y) - np.arctan2(drop, self._side)
        hip = (hip + np.pi) % (2 * np.pi) - np.pi
        cos_calf = (x * x + drop * drop - self._thigh**2 - self._calf**2) / (
            2 * self._thigh * self._calf
        )
        calf = -np.arccos(np.clip(cos_calf, -1.0, 1.0))
        straight_x = -self._calf * np.sin(calf)
        straight_z = -self._thigh - self._calf * np.cos(calf)
        thigh = np.arctan2(x, drop) - np.arctan2(straight_x, straight_z)
        thigh = (thigh + np.pi) % (2 * np.pi) - np.pi
        return np.stack([hip, thigh, calf], axis=-1).reshape(-1, 3 * N_LEGS)

    def rise_gradient(self, joint_pos: np.ndarray, up: np.ndarray) -> np.ndarray:
        """(N, 12) derivatives by its leg's joints of how far each foot is along `up`, in m/rad.

        Args:
            up: (N, 1, 3) unit vectors in the trunk frame.
        """
        q = joint_pos.reshape(-1, N_LEGS, 3)
        hip, thigh, knee = q[..., 0], q[..., 1], q[..., 1] + q[..., 2]
        x = -self._thigh * np.sin(thigh) - self._calf * np.sin(knee)
        drop = -self._thigh * np.cos(thigh) - self._calf * np.cos(knee)
        y = self._side * np.cos(hip) - drop * np.sin(hip)
        z = self._side * np.sin(hip) + drop * np.cos(hip)
        ux, uy, uz = np.moveaxis(up, -1, 0)
        # The leg swings in the plane of x and of its own downward axis, which the hip turns.
        along_drop = uz * np.cos(hip) - uy * np.sin(hip)
        calf_drop = self._calf * np.sin(knee)
        by_hip = uz * y - uy * z
        by_thigh = ux * drop - x * along_drop
        by_calf = -ux * self._calf * np.cos(knee) + calf_drop * along_drop
        return np.stack([by_hip, by_thigh, by_calf], axis=-1).reshape(-1, 3 * N_LEGS)
