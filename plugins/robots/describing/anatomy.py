"""Find trunk and legs of a quadruped in a compiled MJCF."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import mujoco
import numpy as np

from gaitforge.collectors.robots.robot import JOINTS_OF_A_LEG, JOINTS_PER_LEG, LEGS, N_LEGS
from gaitforge.plugins.robots.describing.notes import Notes, as_argument, shown
from gaitforge.plugins.robots.describing.reading import Mjcf

_AXIS_TOLERANCE = 0.02
_AXES = {"hip": 0, "thigh": 1, "calf": 1}
NAMES = [f"{leg}_{kind}" for leg in LEGS for kind in JOINTS_OF_A_LEG]
"""Names of joints and bodies that have none in the file."""


@dataclass(frozen=True)
class Anatomy:
    """A quadruped in an MJCF: joints (12) in a card's order, places in the trunk's frame.

    Attributes:
        model: the MJCF's.
        data: kinematics with the legs' joints at 0 and welded joints at their fixed angles.
        trunk: id of the trunk's body.
        joints: ids of the joints.
        joint_names: the MJCF's, or leg and kind for joints without a name.
        parts: body -> part, for every body of the robot: 0 is the trunk, 1 + i what joint i moves.
    """

    model: mujoco.MjModel
    data: mujoco.MjData
    trunk: int
    joints: tuple[int, ...]
    joint_names: tuple[str, ...]
    parts: dict[int, int]

    @property
    def trunk_name(self) -> str:
        """Name of the trunk's body."""
        return self.model.body(self.trunk).name or "trunk"

    @cached_property
    def axes(self) -> np.ndarray:
        """(3, 3) the trunk's axes in the world, as columns."""
        return self.data.xmat[self.trunk].reshape(3, 3).copy()

    @cached_property
    def signs(self) -> np.ndarray:
        """(12,) +1 or -1 as in a card."""
        axes = self.data.xaxis[list(self.joints)] @ self.axes
        columns = [_AXES[kind] for kind in JOINTS_OF_A_LEG] * N_LEGS
        return np.sign(axes[range(len(columns)), columns])

    @cached_property
    def anchors(self) -> np.ndarray:
        """(12, 3) places of the joints, m."""
        return self.places(self.data.xanchor[list(self.joints)])

    def places(self, points: np.ndarray) -> np.ndarray:
        """Points (..., 3) of the world in the trunk's frame, to a hundredth of a millimetre."""
        return ((points - self.data.xpos[self.trunk]) @ self.axes).round(5) + 0.0

    def positions(self, qpos: np.ndarray) -> np.ndarray:
        """(12,) joint angles in a pose of the whole MJCF."""
        return qpos[self.model.jnt_qposadr[list(self.joints)]]


def find_anatomy(mjcf: Mjcf, notes: Notes) -> Anatomy:
    """Find the trunk, and the legs by their joints' axes and places.

    RobotError for anything but four legs of hip roll, thigh and calf pitch, or other joints that
    are not to be welded.
    """
    model = mjcf.model
    weld = notes.answers.weld
    names = [model.joint(j).name or f"joint {j}" for j in range(model.njnt)]
    if unknown := sorted(set(weld) - set(names)):
        raise notes.wrong(f"no joint {', '.join(unknown)} to weld; it has {', '.join(names)}")
    free = model.jnt_type == mujoco.mjtJoint.mjJNT_FREE
    moving = [j for j in range(model.njnt) if not free[j] and names[j] not in weld]
    if not moving:
        raise notes.wrong("it has no moving joints")
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.poses[0][1]
    data.qpos[model.jnt_qposadr[moving]] = 0.0
    mujoco.mj_kinematics(model, data)
    roots = model.body_rootid[model.jnt_bodyid].tolist()
    floating = {root for j, root in enumerate(roots) if free[j]}
    carriers = [roots[j] for j in moving]
    trunk = max(carriers, key=lambda root: (root in floating, carriers.count(root)))
    if left_out := sorted({model.body(root).name for root in carriers if root != trunk}):
        source = f"one robot is taken, {model.body(trunk).name or 'the trunk'}"
        notes.decide("left out", f"bodies of other joints: {', '.join(left_out)}", source)
    branches = _branches(model, [j for j in moving if roots[j] == trunk])
    axes = data.xmat[trunk].reshape(3, 3)
    reasons = [_why_no_leg(model, data.xaxis @ axes, names, branch) for branch in branches]
    legs = _check_legs(branches, reasons, names, model.body(trunk).name, notes)
    hips = data.xanchor[[leg[0] for leg in legs]] @ axes
    joints = _in_order(legs, hips - hips.mean(axis=0), names, notes)
    joint_names = tuple(model.joint(j).name or NAMES[i] for i, j in enumerate(joints))
    anatomy = Anatomy(model, data, trunk, joints, joint_names, _parts(model, trunk, joints))
    source = "its free joint" if floating else "it carries the legs; a free joint is added"
    _note(anatomy, source, notes)
    if weld:
        notes.decide("welded", ", ".join(weld), f"--weld, in {mjcf.poses[0][0]}")
    return anatomy


def _branches(model: mujoco.MjModel, moving: list[int]) -> list[list[int]]:
    """Joints by branch: each list starts with the joint nearest to the root."""
    heads: dict[int, int] = {}
    branches: dict[int, list[int]] = {}
    for j in moving:
        body = int(model.jnt_bodyid[j])
        above = -1
        while above < 0 and body > 0:
            above = max((k for k in moving if k < j and model.jnt_bodyid[k] == body), default=-1)
            body = int(model.body_parentid[body])
        heads[j] = j if above < 0 else heads[above]
        branches.setdefault(heads[j], []).append(j)
    return list(branches.values())


def _why_no_leg(
    model: mujoco.MjModel, axes: np.ndarray, names: list[str], branch: list[int]
) -> str:
    """Why a branch is no leg, by axes (njnt, 3) in the trunk's frame; empty for a leg."""
    joints = [names[j] for j in branch]
    if len(branch) != JOINTS_PER_LEG:
        return f"the branch of {joints[0]} has {len(branch)} joints ({', '.join(joints)})"
    bodies = [int(model.jnt_bodyid[j]) for j in branch]
    for above, below in pairwise(bodies):
        while below > above:
            below = int(model.body_parentid[below])
        if below != above:
            return f"the branch of {joints[0]} forks"
    for j, kind in zip(branch, JOINTS_OF_A_LEG, strict=True):
        if model.jnt_type[j] != mujoco.mjtJoint.mjJNT_HINGE:
            return f"{names[j]} is no hinge"
        if np.linalg.norm(np.abs(axes[j]) - np.eye(3)[_AXES[kind]]) > _AXIS_TOLERANCE:
            vector = ", ".join(f"{value + 0.0:.3f}" for value in axes[j])
            return (
                f"the axis of {names[j]}, a leg's {kind}, is ({vector}) in the trunk's frame; it "
                f"has to be along {'xy'[_AXES[kind]]}"
            )
    return ""


def _check_legs(
    branches: list[list[int]], reasons: list[str], names: list[str], body: str, notes: Notes
) -> list[list[int]]:
    """The branches that are legs; RobotError unless they are four, and all."""
    legs = [branch for branch, why in zip(branches, reasons, strict=True) if not why]
    extra_joints = [names[j] for branch in branches if branch not in legs for j in branch]
    if len(legs) == N_LEGS and not extra_joints:
        return legs
    if len(legs) == N_LEGS:
        listed = ",".join(map(as_argument, extra_joints))
        raise notes.wrong(f"{listed}: joints of no leg; to fix them give --weld {listed}")
    heads = ", ".join(names[leg[0]] for leg in legs) or "none"
    why = "; ".join(reason for reason in reasons if reason)
    hint = (
        "; fix joints that are none of a leg's three by --weld JOINT,JOINT" if extra_joints else ""
    )
    raise notes.wrong(
        f"a robot has four legs, each of hip roll, thigh pitch and calf pitch; body '{body}' has "
        f"{len(legs)} ({heads})" + (f": {why}{hint}" if why else "")
    )


def _in_order(
    legs: list[list[int]], hips: np.ndarray, names: list[str], notes: Notes
) -> tuple[int, ...]:
    """The legs' joints as FL, FR, RL, RR, by hip positions (4, 3) about their middle."""
    places = sorted(range(N_LEGS), key=lambda i: (hips[i, 0] < 0, hips[i, 1] < 0))
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    if not (hips[places, :2] * signs > 0).all():
        raise notes.wrong(
            f"the hips ({', '.join(names[leg[0]] for leg in legs)}) are not front left, front "
            "right, rear left and rear right of their middle; the trunk's x has to point forwards"
        )
    return tuple(j for i in places for j in legs[i])


def _parts(model: mujoco.MjModel, trunk: int, joints: tuple[int, ...]) -> dict[int, int]:
    parts = {trunk: 0}
    moved = {int(model.jnt_bodyid[j]): 1 + i for i, j in enumerate(joints)}
    for body in range(trunk + 1, model.nbody):
        parent = int(model.body_parentid[body])
        if parent in parts:
            parts[body] = moved.get(body, parts[parent])
    return parts


def _note(anatomy: Anatomy, source: str, notes: Notes) -> None:
    notes.decide("trunk", anatomy.trunk_name, source)
    for leg, label in enumerate(LEGS):
        joints = anatomy.joint_names[JOINTS_PER_LEG * leg : JOINTS_PER_LEG * (leg + 1)]
        notes.decide(f"leg {label}", ", ".join(joints), "places of the hips, axes")
    notes.decide("joint signs", shown(anatomy.signs), "axes")
