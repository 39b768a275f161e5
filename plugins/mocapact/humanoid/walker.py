"""dm_control's CMU humanoid of 2020 on a floor, compiled, with index tables, and its tracked poses.

`TrackedPoses` are the tracked poses of walker and reference, by kinematics.
"""

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Self

import mujoco
import numpy as np

from gaitforge.common.extensions import load_extra
from gaitforge.plugins.mocapact.humanoid.observation import JOINT_NAMES, N_BODIES

PHYSICS_DT_S = 0.005
SUBSTEPS = 6
"""Physics steps a control step (0.03 s)."""

ARENA_SIZE_M = (8.0, 8.0)
"""Half sizes of the drawn floor; contacts have no edge."""

PREFIX = "walker/"
END_EFFECTORS = ("rradius", "lradius", "rfoot", "lfoot")
APPENDAGES = (*END_EFFECTORS, "head")


def load_mocapact(module: str) -> Any:
    """A module of the extra `humanoid`: of dm_control or h5py.

    ValueError, with the command to install it, if it is missing or of an unfit version.
    """
    return load_extra(module, "the humanoid", "humanoid")


def quiet_loading() -> AbstractContextManager[object]:
    """Silences protobuf's deprecation warnings in dm_control's clip loader."""
    return warnings.catch_warnings(action="ignore", category=DeprecationWarning)


def make_arena() -> Any:
    """A new floor (`dm_control.locomotion.arenas.Floor`)."""
    return load_mocapact("dm_control.locomotion.arenas.floors").Floor(ARENA_SIZE_M)


def walker_class() -> Any:
    """dm_control's walker that MoCapAct uses: position actuators, 70 kg, 31 tracked bodies."""
    walkers = load_mocapact("dm_control.locomotion.walkers.cmu_humanoid")
    return walkers.CMUHumanoidPositionControlledV2020


@dataclass(frozen=True)
class CmuHumanoid:
    """The compiled model and its index tables.

    Attributes:
        joints: (56,) places of the alphabetical joints in the last 56 numbers of qpos, qvel and
            reference poses, which have the model's order.
        joint_range: (56, 2) rad, alphabetical.
        whole: the parent of all bodies; root: the pelvis, at the same place.
        bodies: (31,) the tracked bodies; appendages: (5,) forearms, feet, head.
    """

    model: mujoco.MjModel
    joints: np.ndarray
    joint_range: np.ndarray
    whole: int
    root: int
    bodies: np.ndarray
    appendages: np.ndarray

    def body(self, name: str) -> int:
        """The index of a body."""
        return self.model.body(PREFIX + name).id


@cache
def load_humanoid() -> CmuHumanoid:
    """The tracking task's model; ValueError without dm_control."""
    arena = make_arena()
    walker = walker_class()(name=PREFIX.rstrip("/"))
    walker.create_root_joints(arena.attach(walker))
    arena.mjcf_model.option.timestep = PHYSICS_DT_S
    mjcf = load_mocapact("dm_control.mjcf")
    model = mjcf.Physics.from_mjcf_model(arena.mjcf_model).model.ptr
    ids = np.array([model.joint(PREFIX + name).id for name in JOINT_NAMES])
    root = model.body(f"{PREFIX}root").id
    return CmuHumanoid(
        model=model,
        joints=model.jnt_qposadr[ids] - 7,
        joint_range=model.jnt_range[ids].copy(),
        whole=int(model.body_parentid[root]),
        root=root,
        bodies=np.arange(root + 1, root + 1 + N_BODIES),
        appendages=np.array([model.body(PREFIX + name).id for name in APPENDAGES]),
    )


# Tracked poses of walker and reference.
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
