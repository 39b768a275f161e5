"""Tracked poses of walker and reference, by kinematics."""

from dataclasses import dataclass, fields
from typing import Self

import mujoco
import numpy as np

from gaitforge.plugins.mocapact.humanoid.walker import CmuHumanoid


@dataclass(frozen=True)
class TrackedPoses:
    """N poses of the walker, or the N frames of a reference.

    Attributes:
        qpos: (N, 63) root position (world, m), root quaternion wxyz, joint angles (rad, model's
            order).
        qvel: (N, 62) root velocity (world, m/s), angular velocity (root frame, rad/s), joint
            velocities (rad/s).
        body_pos: (N, 31, 3) world, m; body_quat: (N, 31, 4) wxyz.
        center_of_mass: (N, 3) world, m.
        appendages: (N, 5, 3) forearms, feet and head from the root, in the root frame, m.
    """

    qpos: np.ndarray
    qvel: np.ndarray
    body_pos: np.ndarray
    body_quat: np.ndarray
    center_of_mass: np.ndarray
    appendages: np.ndarray

    def __len__(self) -> int:
        return len(self.qpos)

    def at(self, rows: np.ndarray | slice) -> Self:
        """The poses of these rows."""
        return type(self)(*(getattr(self, field.name)[rows] for field in fields(self)))

    @classmethod
    def empty(cls, humanoid: CmuHumanoid, count: int) -> Self:
        """Uninitialised poses, for `read_pose`."""
        model = humanoid.model
        bodies = len(humanoid.bodies)
        return cls(
            qpos=np.empty((count, model.nq)),
            qvel=np.empty((count, model.nv)),
            body_pos=np.empty((count, bodies, 3)),
            body_quat=np.empty((count, bodies, 4)),
            center_of_mass=np.empty((count, 3)),
            appendages=np.empty((count, len(humanoid.appendages), 3)),
        )


def read_pose(humanoid: CmuHumanoid, data: mujoco.MjData, poses: TrackedPoses, row: int) -> None:
    """Write the pose of `data`'s qpos and qvel into a row."""
    mujoco.mj_kinematics(humanoid.model, data)
    mujoco.mj_comPos(humanoid.model, data)
    root = humanoid.root
    first = humanoid.bodies[0]
    last = humanoid.bodies[-1] + 1
    xpos = data.xpos
    poses.qpos[row] = data.qpos
    poses.qvel[row] = data.qvel
    poses.body_pos[row] = xpos[first:last]
    poses.body_quat[row] = data.xquat[first:last]
    poses.center_of_mass[row] = data.subtree_com[humanoid.whole]
    from_root = xpos[humanoid.appendages] - xpos[root]
    poses.appendages[row] = from_root @ data.xmat[root].reshape(3, 3)


def track(humanoid: CmuHumanoid, qpos: np.ndarray, qvel: np.ndarray) -> TrackedPoses:
    """The tracked poses at qpos (N, 63) and qvel (N, 62)."""
    poses = TrackedPoses.empty(humanoid, len(qpos))
    data = mujoco.MjData(humanoid.model)
    for row in range(len(qpos)):
        data.qpos[:] = qpos[row]
        data.qvel[:] = qvel[row]
        read_pose(humanoid, data, poses, row)
    return poses


def finite_velocities(model: mujoco.MjModel, qpos: np.ndarray, dt_s: float) -> np.ndarray:
    """(T, 62) velocities that lead from each of the poses (T, 63) to the next; the last repeats."""
    qvel = np.empty((len(qpos), model.nv))
    for row in range(len(qpos) - 1):
        mujoco.mj_differentiatePos(model, qvel[row], dt_s, qpos[row], qpos[row + 1])
    qvel[-1] = qvel[-2] if len(qpos) > 1 else 0.0
    return qvel
