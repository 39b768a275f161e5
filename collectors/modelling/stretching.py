"""Stretch the parts of a robot's MJCF: their shapes, joints' places, masses and inertias."""

from collections.abc import Mapping
from dataclasses import dataclass

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.urdf import matrix as rotation_matrix


@dataclass(frozen=True)
class Stretch:
    """A part's symmetric stretch (3, 3) in the trunk's axes, and the factor of its density."""

    matrix: np.ndarray
    density: float = 1.0

    @property
    def mass(self) -> float:
        """Factor of the part's mass."""
        return self.density * float(np.linalg.det(self.matrix))


def along(direction: np.ndarray, factor: float) -> np.ndarray:
    """(3, 3): a stretch along a direction (3,), nothing across."""
    unit = direction / np.linalg.norm(direction)
    return np.eye(3) + (factor - 1.0) * np.outer(unit, unit)


def stretch_robot(
    spec: mujoco.MjSpec, trunk: str, parts: Mapping[str, Stretch], round_geoms: Mapping[str, float]
) -> float:
    """Stretch the trunk and every part below it in place; returns the factor of the whole mass.

    Args:
        parts: stretches of the trunk (by its name) and of the parts below joints (by the joint's
            name); a part goes down to the next joint that is named.
        round_geoms: factors of shapes that grow evenly, so that feet stay round.
    """
    model = spec.compile()
    data = mujoco.MjData(model)
    root = model.body(trunk)
    start = int(model.jnt_qposadr[int(root.jntadr[0])])
    data.qpos[start : start + 7] = 0, 0, 0, 1, 0, 0, 0
    mujoco.mj_kinematics(model, data)
    mass = 0.0
    for body in spec.bodies:
        b = int(body.id)
        part = _part_of(model, b, root.id, parts)
        if part is None:
            continue
        axes = data.xmat[b].reshape(3, 3)
        matrix = axes.T @ part.matrix @ axes
        parent = int(model.body_parentid[b])
        above = _part_of(model, parent, root.id, parts)
        if above is not None:
            turned = data.xmat[parent].reshape(3, 3)
            body.pos = turned.T @ above.matrix @ turned @ model.body_pos[b]
        _stretch_inertia(body, model, matrix, part)
        mass += float(body.mass)
        for joint in body.joints:
            joint.pos = matrix @ model.jnt_pos[int(joint.id)]
        for geom in body.geoms:
            _stretch_geom(geom, model, matrix, round_geoms.get(geom.name))
    return mass / float(model.body_subtreemass[root.id])


def _part_of(
    model: mujoco.MjModel, body: int, trunk: int, parts: Mapping[str, Stretch]
) -> Stretch | None:
    """The stretch of a body; None outside of the robot."""
    while body > trunk:
        first = int(model.body_jntadr[body])
        for joint in range(first, first + int(model.body_jntnum[body])):
            if model.joint(joint).name in parts:
                return parts[model.joint(joint).name]
        body = int(model.body_parentid[body])
    return parts[model.body(trunk).name] if body == trunk else None


def _stretch_inertia(
    body: mujoco.MjsBody, model: mujoco.MjModel, matrix: np.ndarray, part: Stretch
) -> None:
    """Second moments of mass stretch as the mass does: S = m_factor A S A^T."""
    b = int(body.id)
    turned = rotation_matrix(model.body_iquat[b])
    inertia = turned @ np.diag(model.body_inertia[b]) @ turned.T
    moments = np.trace(inertia) / 2 * np.eye(3) - inertia
    moments = part.mass * matrix @ moments @ matrix.T
    inertia = np.trace(moments) * np.eye(3) - moments
    mass = part.mass * float(model.body_mass[b])
    set_inertial(body, mass, matrix @ model.body_ipos[b], inertia)


def set_inertial(
    body: mujoco.MjsBody, mass: float, centre: np.ndarray, inertia: np.ndarray
) -> None:
    """Set a body's mass in kg, its centre (3,) and the inertia (3, 3) about it, in its frame."""
    body.explicitinertial = True
    body.mass = mass
    body.ipos = centre
    body.iquat = [1.0, 0.0, 0.0, 0.0]
    body.ialt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    rows = (0, 1, 2, 0, 0, 1)
    columns = (0, 1, 2, 1, 2, 2)
    body.inertia = np.zeros(3)
    body.fullinertia = inertia[rows, columns]


def _stretch_geom(
    geom: mujoco.MjsGeom, model: mujoco.MjModel, matrix: np.ndarray, grown: float | None
) -> None:
    """A primitive shape keeps its kind and axes; its sizes follow the stretch of its axes."""
    g = int(geom.id)
    lengths = np.linalg.norm(matrix @ rotation_matrix(model.geom_quat[g]), axis=0)
    if grown is not None:
        lengths[:] = grown
    kinds = mujoco.mjtGeom
    if geom.type == kinds.mjGEOM_SPHERE:
        lengths[:] = np.cbrt(lengths.prod())
    elif geom.type in (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_CYLINDER):
        # Sizes are radius and half length along z.
        lengths[:2] = np.sqrt(lengths[0] * lengths[1]), lengths[2]
    geom.size = model.geom_size[g] * lengths
    geom.pos = matrix @ model.geom_pos[g]
    geom.quat = model.geom_quat[g]
    geom.alt.type = mujoco.mjtOrientation.mjORIENTATION_QUAT
    geom.fromto[:] = np.nan
