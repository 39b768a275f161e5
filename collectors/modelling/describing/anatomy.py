"""Find trunk and legs of a quadruped in a compiled MJCF."""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import mujoco
import numpy as np

from collectors.modelling.describing.mjcf import Mjcf
from collectors.modelling.describing.notes import Notes, shown
from collectors.robots.robot import JOINTS_OF_A_LEG, JOINTS_PER_LEG, LEGS, N_LEGS

_AXIS_TOLERANCE = 0.02
_AXES = {"hip": 0, "thigh": 1, "calf": 1}


@dataclass(frozen=True)
class Anatomy:
    """A quadruped in an MJCF: joints (12) in a card's order, places in the trunk's frame.

    Attributes:
        model: the MJCF's.
        data: kinematics with the legs' joints at 0, welded ones where they stay.
        trunk: id of its body.
        joints: ids.
        joint_names: the MJCF's, or made of leg and kind where it has none.
        parts: of every body of the robot, 0 for the trunk or 1 + i for what joint i moves.
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


def find_anatomy(mjcf: Mjcf, weld: tuple[str, ...], notes: Notes) -> Anatomy:
    """Find the trunk, and the legs by their joints' axes and places.

    RobotError for anything but four legs of hip roll, thigh and calf pitch, or other joints that
    are not to be welded.
    """
    model = mjcf.model
    names = [model.joint(j).name for j in range(model.njnt)]
    if unknown := sorted(set(weld) - set(names)):
        raise notes.wrong(f"no joint {', '.join(unknown)} to weld; it has {', '.join(names)}")
    free = int(mujoco.mjtJoint.mjJNT_FREE)
    moving = [j for j in range(model.njnt) if model.jnt_type[j] != free and names[j] not in weld]
    data = mujoco.MjData(model)
    data.qpos[:] = mjcf.poses[0][1]
    data.qpos[model.jnt_qposadr[moving]] = 0.0
    mujoco.mj_kinematics(model, data)
    branches = _branches(model, moving)
    roots = {head: int(model.body_rootid[model.jnt_bodyid[head]]) for head in branches}
    if not branches:
        raise notes.wrong("it has no moving joints")
    found = {
        root: [c for head, c in branches.items() if roots[head] == root]
        for root in sorted(set(roots.values()))
    }
    legs_of = {
        root: [chain for chain in chains if not _why_no_leg(model, data, root, chain)]
        for root, chains in found.items()
    }
    trunk = max(found, key=lambda root: len(legs_of[root]))
    _check_legs(model, data, trunk, found[trunk], notes)
    joints = _in_order(model, data, trunk, legs_of[trunk], notes)
    made = [f"{leg}_{kind}" for leg in LEGS for kind in JOINTS_OF_A_LEG]
    joint_names = tuple(names[j] or made[i] for i, j in enumerate(joints))
    parts = _parts(model, trunk, joints)
    anatomy = Anatomy(model, data, trunk, joints, joint_names, parts)
    _note(anatomy, mjcf, weld, notes)
    return anatomy


def _branches(model: mujoco.MjModel, moving: list[int]) -> dict[int, list[int]]:
    """By its first joint, each tree of joints below a root body, in the MJCF's order."""
    head_of: dict[int, int] = {}
    branches: dict[int, list[int]] = {}
    for j in moving:
        body, above = int(model.jnt_bodyid[j]), None
        while above is None and body > 0:
            on_body = [k for k in moving if k < j and model.jnt_bodyid[k] == body]
            above = on_body[-1] if on_body else None
            body = int(model.body_parentid[body])
        head_of[j] = j if above is None else head_of[above]
        branches.setdefault(head_of[j], []).append(j)
    return branches


def _why_no_leg(model: mujoco.MjModel, data: mujoco.MjData, trunk: int, chain: list[int]) -> str:
    """Why a branch of joints is no leg; empty for a leg."""
    names = [model.joint(j).name or f"joint {j}" for j in chain]
    if len(chain) != JOINTS_PER_LEG:
        return f"the branch of {names[0]} has {len(chain)} joints ({', '.join(names)})"
    bodies = [int(model.jnt_bodyid[j]) for j in chain]
    for above, below in pairwise(bodies):
        while below > above:
            below = int(model.body_parentid[below])
        if below != above:
            return f"the branch of {names[0]} forks"
    axes = data.xaxis[chain] @ data.xmat[trunk].reshape(3, 3)
    for j, name, axis, kind in zip(chain, names, axes, JOINTS_OF_A_LEG, strict=True):
        if model.jnt_type[j] != mujoco.mjtJoint.mjJNT_HINGE:
            return f"{name} is no hinge"
        along = np.eye(3)[_AXES[kind]]
        if np.linalg.norm(np.abs(axis) - along) > _AXIS_TOLERANCE:
            found = ", ".join(f"{value + 0.0:.3f}" for value in axis)
            return (
                f"the axis of {name}, a leg's {kind}, is ({found}) in the frame of body "
                f"'{model.body(trunk).name}'; it has to be along {'xy'[_AXES[kind]]}"
            )
    return ""


def _check_legs(
    model: mujoco.MjModel, data: mujoco.MjData, trunk: int, chains: list[list[int]], notes: Notes
) -> None:
    """RobotError unless four branches are legs and there are no others."""
    reasons = {chain[0]: _why_no_leg(model, data, trunk, chain) for chain in chains}
    legs = [chain for chain in chains if not reasons[chain[0]]]
    others = [model.joint(j).name or f"joint {j}" for c in chains if reasons[c[0]] for j in c]
    body = model.body(trunk).name
    if len(legs) == N_LEGS and not others:
        return
    if len(legs) == N_LEGS:
        raise notes.wrong(
            f"{', '.join(others)}: joints of no leg; to fix them give --weld {','.join(others)}"
        )
    heads = ", ".join(model.joint(chain[0]).name for chain in legs) or "none"
    why = "; ".join(reason for reason in reasons.values() if reason)
    hint = "; fix joints that are none of a leg's three by --weld JOINT,JOINT" if others else ""
    raise notes.wrong(
        f"a robot has four legs, each of hip roll, thigh pitch and calf pitch; body '{body}' has "
        f"{len(legs)} ({heads})" + (f": {why}{hint}" if why else "")
    )


def _in_order(
    model: mujoco.MjModel,
    data: mujoco.MjData,
    trunk: int,
    legs: list[list[int]],
    notes: Notes,
) -> tuple[int, ...]:
    """The legs' joints as FL, FR, RL, RR by where the hips are."""
    hips = (data.xanchor[[leg[0] for leg in legs]] - data.xpos[trunk]) @ data.xmat[trunk].reshape(
        3, 3
    )
    hips = hips - hips.mean(axis=0)
    places = sorted(range(N_LEGS), key=lambda i: (hips[i, 0] < 0, hips[i, 1] < 0))
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]])
    if not (hips[places, :2] * signs > 0).all():
        names = ", ".join(model.joint(leg[0]).name for leg in legs)
        raise notes.wrong(
            f"the hips ({names}) are not front left, front right, rear left and rear right of "
            f"their middle; x of body '{model.body(trunk).name}' has to point forwards, y left"
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


def _note(anatomy: Anatomy, mjcf: Mjcf, weld: tuple[str, ...], notes: Notes) -> None:
    model, names = anatomy.model, anatomy.joint_names
    free = model.body_jntnum[anatomy.trunk] and (
        model.jnt_type[model.body_jntadr[anatomy.trunk]] == mujoco.mjtJoint.mjJNT_FREE
    )
    source = "its free joint" if free else "it carries the legs; a free joint is added"
    notes.decide("trunk", anatomy.trunk_name, source)
    for leg, label in enumerate(LEGS):
        joints = names[JOINTS_PER_LEG * leg : JOINTS_PER_LEG * (leg + 1)]
        notes.decide(f"leg {label}", ", ".join(joints), "places of the hips, axes")
    notes.decide("joint signs", shown(anatomy.signs), "axes")
    if weld:
        notes.decide("welded", ", ".join(weld), f"--weld, in {mjcf.poses[0][0]}")
