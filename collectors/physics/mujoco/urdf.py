"""A robot as URDF, written from its compiled MuJoCo model.

Every body becomes a link. Feet and knees become links of their own, on fixed joints, for simulators
with one contact force a link; they take a little of their body's mass, so that the robot's mass,
centre of mass and inertia stay the same.
"""

import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.model import BARRIERS
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, RobotCard

MAX_JOINT_SPEED_RADS = 100.0
"""Speed limit in the URDF, which requires one; MuJoCo models have none."""
_PART_MASS_SHARES = (0.01, 0.001, 0.0001)
"""Candidate masses of a foot or knee over its body's; the first that leaves a possible inertia."""
FRICTION_SPEED_RADS = 4.0
"""Dry joint friction becomes viscous friction that equals it at this speed."""
_SPHERE = int(mujoco.mjtGeom.mjGEOM_SPHERE)
_CAPSULE = int(mujoco.mjtGeom.mjGEOM_CAPSULE)
_CYLINDER = int(mujoco.mjtGeom.mjGEOM_CYLINDER)
_BOX = int(mujoco.mjtGeom.mjGEOM_BOX)


@dataclass(frozen=True)
class RobotUrdf:
    """A robot's URDF and the names in it.

    Attributes:
        text: the XML, with the card's joint names.
        trunk, hips, feet, knees: names of links, legs in the card's order.
        beyond_barriers: links that do not collide with barriers, which URDF cannot express.
        damping, armature: (12,) in the card's order; Nms/rad, dry friction included, and kg m^2.
    """

    text: str
    trunk: str
    hips: tuple[str, ...]
    feet: tuple[str, ...]
    knees: tuple[str, ...]
    beyond_barriers: tuple[str, ...]
    damping: list[float]
    armature: list[float]


def robot_urdf(robot: RobotCard, model: mujoco.MjModel) -> RobotUrdf:
    """The URDF of a robot as `model.build_model` compiled it.

    RobotError where URDF cannot hold it: colliding shapes that are no primitives, two joints of one
    body, springs, tendons, equality constraints.
    """
    _check(robot, model)
    writer = _Writer(robot, model)
    root = ET.Element("robot", name=robot.name)
    for body in writer.bodies:
        writer.write_body(root, body)
    ET.indent(root)
    dofs = [int(model.joint(name).dofadr[0]) for name in robot.joint_names]
    damping = model.dof_damping[dofs] + model.dof_frictionloss[dofs] / FRICTION_SPEED_RADS
    hips = [int(model.joint(name).bodyid[0]) for name in robot.joint_names[::JOINTS_PER_LEG]]
    return RobotUrdf(
        text=ET.tostring(root, encoding="unicode"),
        trunk=writer.link_name(writer.bodies[0]),
        hips=tuple(writer.link_name(body) for body in hips),
        feet=tuple(writer.parts[model.geom(name).id] for name in robot.foot_geoms),
        knees=tuple(writer.parts[model.geom(name).id] for name in robot.knee_geoms),
        beyond_barriers=tuple(writer.beyond_barriers),
        damping=damping.tolist(),
        armature=model.dof_armature[dofs].tolist(),
    )


@dataclass(frozen=True)
class _Inertial:
    """Mass, centre of mass (3,) and inertia (3, 3) about it, in a link's axes."""

    mass: float
    com: np.ndarray
    inertia: np.ndarray

    def about_origin(self) -> np.ndarray:
        """(3, 3) inertia about the link's origin."""
        return self.inertia + _of_point(self.mass, self.com)

    def without(self, parts: Sequence[Self]) -> Self:
        """The inertial of the rest after `parts` are removed."""
        mass = self.mass - sum(part.mass for part in parts)
        moment = self.mass * self.com - sum((p.mass * p.com for p in parts), np.zeros(3))
        removed = sum((part.about_origin() for part in parts), np.zeros((3, 3)))
        com = moment / mass
        return type(self)(mass, com, self.about_origin() - removed - _of_point(mass, com))

    def possible(self) -> bool:
        """Whether no principal moment exceeds the sum of the other two."""
        low, middle, high = np.linalg.eigvalsh(self.inertia)
        return low > 0 and low + middle >= high


def _of_point(mass: float, position: np.ndarray) -> np.ndarray:
    """(3, 3) inertia of a point mass about the origin."""
    return mass * (position @ position * np.eye(3) - np.outer(position, position))


class _Writer:
    """Writes the bodies of a model as links; a link's frame is at its joint."""

    def __init__(self, robot: RobotCard, model: mujoco.MjModel):
        self._robot = robot
        self._model = model
        trunk = model.body(robot.trunk_body).id
        self.bodies = [trunk]
        for body in range(trunk + 1, model.nbody):
            if int(model.body_parentid[body]) in self.bodies:
                self.bodies.append(body)
        self.parts = {
            model.geom(name).id: f"gaitforge_{kind}_{leg}"
            for kind, names in (("foot", robot.foot_geoms), ("knee", robot.knee_geoms))
            for leg, name in enumerate(names)
        }
        barrier = int(model.body_geomadr[model.body(f"{BARRIERS}_0").id])
        self._barrier_bit = int(model.geom_contype[barrier])
        self.beyond_barriers: list[str] = []

    def link_name(self, body: int) -> str:
        """The body's name, or a generated one."""
        return self._model.body(body).name or f"gaitforge_body_{body}"

    def write_body(self, root: ET.Element, body: int) -> None:
        """Add a body's link, those of its feet and knees, and their joints."""
        model = self._model
        first = int(model.body_geomadr[body])
        count = int(model.body_geomnum[body])
        geoms = [g for g in range(first, first + count) if model.geom_conaffinity[g]]
        parts = [g for g in geoms if g in self.parts]
        inertials = self._split(body, parts)
        if body != self.bodies[0]:
            self._write_joint(root, body)
        self._write_link(
            root, self.link_name(body), inertials[0], [g for g in geoms if g not in parts], True
        )
        for geom, inertial in zip(parts, inertials[1:], strict=True):
            position, rotation = self._geom_frame(geom)
            joint = _add_joint(root, self.parts[geom] + "_joint", "fixed", position, rotation)
            ET.SubElement(joint, "parent", link=self.link_name(body))
            ET.SubElement(joint, "child", link=self.parts[geom])
            centred = _Inertial(inertial.mass, np.zeros(3), inertial.inertia)
            self._write_link(root, self.parts[geom], centred, [geom], False)

    def _split(self, body: int, parts: list[int]) -> list[_Inertial]:
        """The body's inertia without its feet and knees, and theirs, in its link's frame."""
        model = self._model
        axes = matrix(model.body_iquat[body])
        whole = _Inertial(
            float(model.body_mass[body]),
            model.body_ipos[body] - self._anchor(body),
            axes @ np.diag(model.body_inertia[body]) @ axes.T,
        )
        if not parts:
            return [whole]
        for share in _PART_MASS_SHARES:
            mass = share * whole.mass
            solid = [
                _Inertial(
                    mass,
                    self._geom_frame(geom)[0],
                    np.eye(3) * 0.4 * mass * float(model.geom_rbound[geom]) ** 2,
                )
                for geom in parts
            ]
            remainder = whole.without(solid)
            if remainder.possible():
                return [remainder, *solid]
        raise self._robot.wrong(
            f"the inertia of body '{self.link_name(body)}' is too small for its mass"
        )

    def _anchor(self, body: int) -> np.ndarray:
        """(3,) the body's joint in its frame: its link's origin."""
        model = self._model
        if body == self.bodies[0] or not model.body_jntnum[body]:
            return np.zeros(3)
        return model.jnt_pos[int(model.body_jntadr[body])]

    def _geom_frame(self, geom: int) -> tuple[np.ndarray, np.ndarray]:
        """Position (3,) and axes (3, 3) of a shape in its link's frame."""
        model = self._model
        position = model.geom_pos[geom] - self._anchor(int(model.geom_bodyid[geom]))
        return position, matrix(model.geom_quat[geom])

    def _write_joint(self, root: ET.Element, body: int) -> None:
        model = self._model
        robot = self._robot
        rotation = matrix(model.body_quat[body])
        parent = int(model.body_parentid[body])
        position = model.body_pos[body] + rotation @ self._anchor(body) - self._anchor(parent)
        names = {"parent": self.link_name(parent), "child": self.link_name(body)}
        if not model.body_jntnum[body]:
            joint = _add_joint(root, names["child"] + "_joint", "fixed", position, rotation)
        else:
            adr = int(model.body_jntadr[body])
            axis = model.jnt_axis[adr]
            name = model.joint(adr).name
            limited = bool(model.jnt_limited[adr])
            # URDF measures angles from the file's pose, MuJoCo from the joint's reference.
            turn = np.zeros(4)
            mujoco.mju_axisAngle2Quat(turn, axis, -float(model.qpos0[model.jnt_qposadr[adr]]))
            rotation = rotation @ matrix(turn)
            kind = "revolute" if limited else "continuous"
            joint = _add_joint(root, name, kind, position, rotation)
            ET.SubElement(joint, "axis", xyz=_text(axis))
            effort = robot.torque_limit_nm[robot.joint_names.index(name)]
            limits = {"effort": _number(effort), "velocity": _number(MAX_JOINT_SPEED_RADS)}
            if limited:
                low, high = model.jnt_range[adr]
                limits |= {"lower": _number(low), "upper": _number(high)}
            ET.SubElement(joint, "limit", limits)
        for role, link in names.items():
            ET.SubElement(joint, role, link=link)

    def _write_link(
        self, root: ET.Element, name: str, inertial: _Inertial, geoms: list[int], placed: bool
    ) -> None:
        """Write a link and its shapes, `placed` as in their body, else at the origin."""
        model = self._model
        link = ET.SubElement(root, "link", name=name)
        element = ET.SubElement(link, "inertial")
        ET.SubElement(element, "origin", xyz=_text(inertial.com), rpy="0 0 0")
        ET.SubElement(element, "mass", value=_number(inertial.mass))
        moments = {
            f"i{'xyz'[row]}{'xyz'[col]}": _number(inertial.inertia[row, col])
            for row in range(3)
            for col in range(row, 3)
        }
        ET.SubElement(element, "inertia", moments)
        for geom in geoms:
            frame = self._geom_frame(geom) if placed else (np.zeros(3), np.eye(3))
            _write_shapes(link, int(model.geom_type[geom]), model.geom_size[geom], *frame)
        if geoms and not any(model.geom_conaffinity[geom] & self._barrier_bit for geom in geoms):
            self.beyond_barriers.append(name)


def _check(robot: RobotCard, model: mujoco.MjModel) -> None:
    """Refuse a model that URDF cannot express."""
    file = robot.mjcf_path.name
    trunk = model.body(robot.trunk_body).id
    for body in range(trunk, model.nbody):
        if model.body_jntnum[body] > 1:
            raise robot.wrong(f"{file}: URDF has one joint a body, '{model.body(body).name}' more")
    if model.jnt_stiffness.any() or model.neq or model.ntendon:
        raise robot.wrong(f"{file}: URDF has no springs, equality constraints and tendons")
    for geom in range(model.ngeom):
        of_robot = model.body_rootid[model.geom_bodyid[geom]] == model.body_rootid[trunk]
        collides = of_robot and model.geom_conaffinity[geom]
        if collides and model.geom_type[geom] not in (_SPHERE, _CAPSULE, _CYLINDER, _BOX):
            name = model.geom(geom).name or f"of '{model.body(model.geom_bodyid[geom]).name}'"
            raise robot.wrong(
                f"{file}: the shape {name} collides and is no sphere, capsule, cylinder or box"
            )


def _write_shapes(
    link: ET.Element, kind: int, size: np.ndarray, position: np.ndarray, rotation: np.ndarray
) -> None:
    """Write one collision element, or three for a capsule, which URDF lacks."""

    def add(where: np.ndarray, shape: str, **sizes: str) -> None:
        element = ET.SubElement(link, "collision")
        ET.SubElement(element, "origin", xyz=_text(where), rpy=_text(_roll_pitch_yaw(rotation)))
        ET.SubElement(ET.SubElement(element, "geometry"), shape, sizes)

    if kind == _BOX:
        add(position, "box", size=_text(2 * size))
    elif kind == _SPHERE:
        add(position, "sphere", radius=_number(size[0]))
    else:
        add(position, "cylinder", radius=_number(size[0]), length=_number(2 * size[1]))
    if kind == _CAPSULE:
        for end in (size[1], -size[1]):
            add(position + rotation[:, 2] * end, "sphere", radius=_number(size[0]))


def _add_joint(
    root: ET.Element, name: str, kind: str, position: np.ndarray, rotation: np.ndarray
) -> ET.Element:
    joint = ET.SubElement(root, "joint", name=name, type=kind)
    if kind == "fixed":
        # For Isaac Gym's importer.
        joint.set("dont_collapse", "true")
    ET.SubElement(joint, "origin", xyz=_text(position), rpy=_text(_roll_pitch_yaw(rotation)))
    return joint


def matrix(quat: np.ndarray) -> np.ndarray:
    """(3, 3) of a quaternion wxyz (4,)."""
    result = np.zeros(9)
    mujoco.mju_quat2Mat(result, quat)
    return result.reshape(3, 3)


def _roll_pitch_yaw(rotation: np.ndarray) -> np.ndarray:
    """(3,) fixed-axis angles: the rotation is Rz(yaw) Ry(pitch) Rx(roll)."""
    across = float(np.hypot(rotation[0, 0], rotation[1, 0]))
    pitch = np.arctan2(-rotation[2, 0], across)
    if across < 1e-9:
        return np.array([np.arctan2(-rotation[1, 2], rotation[1, 1]), pitch, 0.0])
    roll = np.arctan2(rotation[2, 1], rotation[2, 2])
    return np.array([roll, pitch, np.arctan2(rotation[1, 0], rotation[0, 0])])


def _number(value: float) -> str:
    return repr(float(value) + 0.0)  # no minus zero


def _text(values: np.ndarray) -> str:
    return " ".join(_number(value) for value in values)
