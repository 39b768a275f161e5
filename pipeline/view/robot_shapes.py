"""A robot's bodies and shapes as a page draws them, from its MJCF."""

from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.rendering.colours import FEET, LEFT_LEGS, RIGHT_LEGS, TRUNK, Colour
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_LEGS, RobotCard
from gaitforge.pipeline.view.blocks import encoded

_KINDS = {
    mujoco.mjtGeom.mjGEOM_SPHERE: "sphere",
    mujoco.mjtGeom.mjGEOM_CAPSULE: "capsule",
    mujoco.mjtGeom.mjGEOM_ELLIPSOID: "ellipsoid",
    mujoco.mjtGeom.mjGEOM_CYLINDER: "cylinder",
    mujoco.mjtGeom.mjGEOM_BOX: "box",
    mujoco.mjtGeom.mjGEOM_MESH: "mesh",
}
_JOINTS = {mujoco.mjtJoint.mjJNT_HINGE: "hinge", mujoco.mjtJoint.mjJNT_SLIDE: "slide"}
_MOST_FACES = 20_000
"""Most faces of all visual meshes; with more, the collision shapes are drawn."""
_MESH_UNIT_M = 1e-4
_FIRST_JOINT = 7
"""Joint positions follow the base's position and quaternion in a pose."""


def robot_shapes(robot: RobotCard) -> dict[str, Any]:
    """Bodies in the order of the MJCF, parents first, each with its joints and shapes; SI units.

    A body's visual shapes are drawn if it has any and those of all bodies have at most
    `_MOST_FACES` faces; else its collision shapes. A joint's `index` is its place in a pose of
    `gaitforge.collectors.legged.rollout.EpisodeRecord`.

    Raises:
        ValueError: an MJCF that does not compile.
    """
    model = _compiled(robot)
    shown = _shown(model)
    colours = _body_colours(model, robot)
    bodies = [
        {
            "parent": int(model.body_parentid[b]) - 1,
            "pos": model.body_pos[b].tolist(),
            "quat": model.body_quat[b].tolist(),
            "joints": _joints(model, robot, b),
            "shapes": [_shape(model, robot, g, colours[b]) for g in shown[b]],
        }
        for b in range(1, model.nbody)
    ]
    feet = [model.geom(name) for name in robot.foot_geoms]
    return {
        "name": robot.name,
        "root": int(model.body(robot.trunk_body).id) - 1,
        "legLength": robot.leg_length_m,
        "bodies": bodies,
        "feet": [{"body": int(f.bodyid[0]) - 1, "pos": f.pos.tolist()} for f in feet],
        "footRadius": robot.foot_radius_m,
    }


def body_poses(robot: RobotCard, poses: np.ndarray) -> dict[str, np.ndarray]:
    """Position in m and quaternion wxyz (T, 7) of every body of `robot_shapes`, in its order.

    `poses` (T, 7 + J) are as in `Recording`; both are in the world frame.
    """
    model = _compiled(robot)
    data = mujoco.MjData(model)
    joints = [int(model.joint(name).qposadr[0]) for name in robot.joint_names]
    moved = np.empty((len(poses), model.nbody, 7))
    for pose, into in zip(poses, moved, strict=True):
        data.qpos[:_FIRST_JOINT] = pose[:_FIRST_JOINT]
        data.qpos[joints] = pose[_FIRST_JOINT:]
        mujoco.mj_kinematics(model, data)
        into[:, :3] = data.xpos
        into[:, 3:] = data.xquat
    return {model.body(b).name or f"body {b}": moved[:, b] for b in range(1, model.nbody)}


def _compiled(robot: RobotCard) -> mujoco.MjModel:
    try:
        return mujoco.MjModel.from_xml_path(str(robot.mjcf_path))
    except ValueError as error:
        raise robot.wrong(f"{robot.mjcf_path.name}: {str(error).splitlines()[0]}") from None


def _shown(model: mujoco.MjModel) -> list[list[int]]:
    """The geoms to draw of every body."""
    drawable = [g for g in range(model.ngeom) if int(model.geom_type[g]) in _KINDS]
    colliding = [g for g in drawable if model.geom_contype[g] or model.geom_conaffinity[g]]
    looks = [g for g in drawable if g not in colliding]
    meshes = [int(model.geom_dataid[g]) for g in looks if model.geom_dataid[g] >= 0]
    if sum(int(model.mesh_facenum[mesh]) for mesh in meshes) > _MOST_FACES:
        looks = []
    of_body = model.geom_bodyid
    dressed = {of_body[g] for g in looks}
    shown = [*looks, *(g for g in colliding if of_body[g] not in dressed)]
    return [[g for g in shown if of_body[g] == body] for body in range(model.nbody)]


def _joints(model: mujoco.MjModel, robot: RobotCard, body: int) -> list[dict[str, object]]:
    """The card's joints of a body; others are drawn at rest, the base's free joint by the root."""
    first = int(model.body_jntadr[body])
    count = int(model.body_jntnum[body])
    joints = [model.joint(j) for j in range(first, first + count)]
    return [
        {
            "kind": _JOINTS[mujoco.mjtJoint(int(j.type[0]))],
            "axis": j.axis.tolist(),
            "pos": j.pos.tolist(),
            "rest": float(model.qpos0[j.qposadr[0]]),
            "index": _FIRST_JOINT + robot.joint_names.index(j.name),
        }
        for j in joints
        if j.name in robot.joint_names and int(j.type[0]) in _JOINTS
    ]


def _shape(
    model: mujoco.MjModel, robot: RobotCard, geom: int, colour: Colour | None
) -> dict[str, object]:
    kind = _KINDS[mujoco.mjtGeom(int(model.geom_type[geom]))]
    material = int(model.geom_matid[geom])
    rgba = model.mat_rgba[material] if material >= 0 else model.geom_rgba[geom]
    if model.geom(geom).name in robot.foot_geoms:
        colour = FEET
    elif colour is None or material >= 0:
        red, green, blue = (int(part) for part in np.rint(rgba[:3] * 255))
        colour = red, green, blue
    shape: dict[str, object] = {
        "kind": kind,
        "size": model.geom_size[geom].tolist(),
        "pos": model.geom_pos[geom].tolist(),
        "quat": model.geom_quat[geom].tolist(),
        "colour": list(colour),
    }
    if kind == "mesh":
        mesh = model.mesh(int(model.geom_dataid[geom]))
        vertices = model.mesh_vert[int(mesh.vertadr[0]) :]
        start = int(mesh.faceadr[0])
        faces = model.mesh_face[start : start + int(mesh.facenum[0])]
        shape["triangles"] = encoded(vertices[faces.ravel()], _MESH_UNIT_M)
    return shape


def _body_colours(model: mujoco.MjModel, robot: RobotCard) -> list[Colour | None]:
    """Trunk and legs in the colours of our pictures; None for other bodies."""
    colours: list[Colour | None] = [None] * model.nbody
    trunk = model.body(robot.trunk_body).id
    for leg in range(N_LEGS):
        side = LEFT_LEGS if robot.leg_signs[leg, 1] > 0 else RIGHT_LEGS
        thigh = robot.joint_names[JOINTS_PER_LEG * leg + 1]
        colours[int(model.joint(thigh).bodyid[0])] = side
    for b in range(1, model.nbody):
        colours[b] = colours[b] or colours[model.body_parentid[b]] or None
        if b == trunk:
            colours[b] = TRUNK
    return colours
