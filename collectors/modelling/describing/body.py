"""Write a robot's body as a plain MJCF: every frame along the trunk's axes at joint zero."""

from collections.abc import Sequence
from pathlib import Path

import mujoco
import numpy as np

from gaitforge.collectors.modelling.describing.anatomy import NAMES, Anatomy
from gaitforge.collectors.modelling.describing.drives import Drives
from gaitforge.collectors.modelling.describing.shapes import Shape
from gaitforge.collectors.modelling.stretching import set_inertial
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_JOINTS, RobotCard
from gaitforge.collectors.timing import SUBSTEP_S

_GROUND = 1
_BARRIERS = 2
_BOTH = 3
_FRICTION = (0.7, 0.02, 0.01)
_FOOT_FRICTION = (0.8, 0.02, 0.01)
"""Frictions of the shipped robots; a foot's is redrawn in every episode."""
_SOLVER_ITERATIONS = 6


def part_mass(anatomy: Anatomy, part: int) -> tuple[float, np.ndarray, np.ndarray]:
    """Mass in kg, centre (3,) and inertia (3, 3) about it, of all bodies of a part."""
    model = anatomy.model
    data = anatomy.data
    bodies = [body for body, body_part in anatomy.parts.items() if body_part == part]
    masses = model.body_mass[bodies]
    places = (data.xipos[bodies] - data.xpos[anatomy.trunk]) @ anatomy.axes
    mass = float(masses.sum())
    centre = masses @ places / mass if mass else places[0]
    inertia = np.zeros((3, 3))
    for body, weight, offset in zip(bodies, masses, places - centre, strict=True):
        turned = anatomy.axes.T @ data.ximat[body].reshape(3, 3)
        inertia += turned @ np.diag(model.body_inertia[body]) @ turned.T
        inertia += weight * (offset @ offset * np.eye(3) - np.outer(offset, offset))
    return mass, centre, inertia


def write_body(
    path: Path, robot: RobotCard, anatomy: Anatomy, shapes: Sequence[Shape], drives: Drives
) -> None:
    """Write the MJCF of a robot that lacks only its gains."""
    spec = _empty(robot)
    trunk = spec.worldbody.add_body(name=robot.trunk_body, pos=[0, 0, robot.nominal_height_m])
    trunk.add_freejoint(name="root" if "root" not in robot.joint_names else "free")
    bodies = [trunk]
    origins = np.zeros((1 + N_JOINTS, 3))
    for i in range(N_JOINTS):
        first = i % JOINTS_PER_LEG == 0
        above = 0 if first else i
        shared = not first and _body_of(anatomy, i) == _body_of(anatomy, i - 1)
        origins[1 + i] = origins[above] if shared else anatomy.anchors[i]
        if shared:
            body = bodies[above]
        else:
            offset = origins[1 + i] - origins[above]
            name = anatomy.model.body(_body_of(anatomy, i)).name or NAMES[i]
            body = bodies[above].add_body(name=name, pos=_clean(offset))
        bodies.append(body)
        axis = np.zeros(3)
        axis[0 if first else 1] = anatomy.signs[i]
        body.add_joint(
            name=robot.joint_names[i],
            type=mujoco.mjtJoint.mjJNT_HINGE,
            pos=_clean(anatomy.anchors[i] - origins[1 + i]),
            axis=axis,
            range=[drives.lower[i], drives.upper[i]],
            armature=drives.armature[i],
            damping=drives.damping[i],
        )
    for part, body in enumerate(bodies):
        if part == len(bodies) - 1 or bodies[part + 1] is not body:
            mass, centre, inertia = part_mass(anatomy, part)
            set_inertial(body, mass, _clean(centre - origins[part]), inertia)
    for shape in shapes:
        _add_shape(bodies[shape.part], robot, shape, origins[shape.part])
    spec.compile()
    path.write_text(spec.to_xml(), encoding="utf-8")


def _empty(robot: RobotCard) -> mujoco.MjSpec:
    """A spec with the options of the shipped robots."""
    spec = mujoco.MjSpec()
    spec.modelname = robot.name
    spec.comment = (  # without the user's words, which could hold what XML forbids in comments
        "From what and how it was made is in the card, robot.json.\n"
        "SI units, x forward, y left, z up; frames are along the trunk's while all joints are at 0."
        "\nconaffinity says what a shape may meet: 1 the ground, 2 barriers, 3 both."
    )
    spec.compiler.degree = False
    spec.option.timestep = SUBSTEP_S
    spec.option.iterations = spec.option.ls_iterations = _SOLVER_ITERATIONS
    spec.option.disableflags |= int(mujoco.mjtDisableBit.mjDSBL_EULERDAMP)
    spec.default.geom.contype = 0
    spec.default.geom.conaffinity = _BARRIERS
    spec.default.geom.friction = _FRICTION
    return spec


def _add_shape(body: mujoco.MjsBody, robot: RobotCard, shape: Shape, origin: np.ndarray) -> None:
    quat = np.zeros(4)
    mujoco.mju_mat2Quat(quat, shape.axes.ravel())
    geom = body.add_geom(
        name=shape.name if shape.name in (*robot.foot_geoms, *robot.knee_geoms) else "",
        type=shape.kind,
        size=shape.size.round(6),
        pos=_clean(shape.pos - origin),
        quat=_clean(quat),
    )
    if shape.name in robot.foot_geoms:
        geom.conaffinity = _BOTH
        geom.friction = _FOOT_FRICTION
    elif shape.name in robot.knee_geoms:
        geom.conaffinity = _GROUND
    elif shape.part == 0:
        geom.conaffinity = _BOTH


def _body_of(anatomy: Anatomy, index: int) -> int:
    return int(anatomy.model.jnt_bodyid[anatomy.joints[index]])


def _clean(values: np.ndarray) -> np.ndarray:
    """Rounded as in the card, without a negative zero."""
    return values.round(6) + 0.0
