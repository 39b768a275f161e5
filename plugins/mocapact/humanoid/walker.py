"""dm_control's CMU humanoid of 2020 on a floor, compiled, with index tables."""

import warnings
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cache
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.optional import load_mocapact
from gaitforge.plugins.mocapact.humanoid.observation import JOINT_NAMES, N_BODIES

PHYSICS_DT_S = 0.005
SUBSTEPS = 6
"""Physics steps a control step (0.03 s)."""

ARENA_SIZE_M = (8.0, 8.0)
"""Half sizes of the drawn floor; contacts have no edge."""

PREFIX = "walker/"
END_EFFECTORS = ("rradius", "lradius", "rfoot", "lfoot")
APPENDAGES = (*END_EFFECTORS, "head")


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
