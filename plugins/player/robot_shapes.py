"""A robot's bodies and shapes as a page draws them, from its MJCF, and the numbers of a page.

`encoded` gives a matrix as int16 differences between rows, deflated, as base64 text. Layout before
deflating, little-endian: rows and columns, uint32; the first row, then the unit of each column,
float64; the low bytes of all differences, then the high ones, column after column.
`page/src/blocks.ts` reads it.
"""

import base64
import struct
import zlib
from typing import Any

import mujoco
import numpy as np

from gaitforge.collectors.rendering.colours import FEET, LEFT_LEGS, RIGHT_LEGS, TRUNK, Colour
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_LEGS, RobotCard

# Numbers of a page: matrices as text.
POSITION_UNIT_M = 1e-4
ANGLE_UNIT_RAD = 1e-4
"""Units of poses: rounding is at most half a unit, far below what is visible (1 mm, 0.1°)."""
SERIES_LEVELS = 16_000
"""Half the range of a series in units, so that every difference fits."""
_LARGEST = 32_767
_HEAD = struct.Struct("<II")


def encoded(values: np.ndarray, unit: np.ndarray | float) -> str:
    """A finite matrix (R, C) with R >= 1 as text.

    `unit` is above 0, and that of every column, or one for all. Values are rounded to half a unit.
    Where a difference between rows takes more than int16 units, the column's unit grows until it
    fits. The rounding does not add up over the rows.
    """
    values = np.asarray(values, dtype=np.float64)
    rows, columns = values.shape
    jump = np.abs(np.diff(values, axis=0)).max(axis=0, initial=0.0)
    # One unit of slack: both ends of a difference are rounded.
    units = np.maximum(np.broadcast_to(unit, columns), jump / (_LARGEST - 1))
    levels = np.rint((values - values[0]) / units).astype(np.int64)
    differences = np.diff(levels, axis=0).T.astype("<i2")
    pairs = np.frombuffer(differences.tobytes(), np.uint8).reshape(-1, 2)
    head = _HEAD.pack(rows, columns) + np.stack([values[0], units]).astype("<f8").tobytes()
    packed = zlib.compress(head + pairs[:, 0].tobytes() + pairs[:, 1].tobytes(), 9)
    return base64.b64encode(packed).decode()


def decoded(text: str) -> np.ndarray:
    """The matrix (R, C) float64 of a text that `encoded` wrote."""
    raw = zlib.decompress(base64.b64decode(text))
    rows, columns = _HEAD.unpack_from(raw)
    first, units = np.frombuffer(raw, "<f8", 2 * columns, _HEAD.size).reshape(2, columns)
    low, high = np.frombuffer(raw, np.uint8, offset=_HEAD.size + 16 * columns).reshape(2, -1)
    pairs = np.ascontiguousarray(np.stack([low, high], axis=1))
    differences = pairs.view("<i2").reshape(columns, rows - 1).T
    levels = np.concatenate([np.zeros((1, columns), np.int64), np.cumsum(differences, axis=0)])
    return first + units * levels


def encoded_series(values: np.ndarray) -> str:
    """Curves (T, C) as text, each to 1/16,000 of its largest value; not finite becomes 0."""
    values = np.nan_to_num(np.asarray(values, np.float64), nan=0.0, posinf=0.0, neginf=0.0)
    largest = np.abs(values).max(axis=0, initial=0.0)
    return encoded(values, np.where(largest > 0, largest / SERIES_LEVELS, 1.0))


def encoded_poses(poses: np.ndarray) -> str:
    """Poses (T, 7 + J) as text: position in m, quaternion wxyz, joint positions in rad.

    A quaternion and its negative are the same rotation; signs are chosen so that it never jumps.
    """
    poses = np.array(poses, dtype=np.float64)
    turned = np.sign((poses[1:, 3:7] * poses[:-1, 3:7]).sum(axis=1))
    poses[1:, 3:7] *= np.cumprod(np.where(turned < 0, -1.0, 1.0))[:, None]
    units = np.full(poses.shape[1], ANGLE_UNIT_RAD)
    units[:3] = POSITION_UNIT_M
    return encoded(poses, units)


# Bodies and shapes.
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
