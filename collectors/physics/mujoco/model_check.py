"""Check a compiled model against its robot's card."""

from collections.abc import Iterable

import mujoco
import numpy as np

from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import JOINTS_OF_A_LEG, JOINTS_PER_LEG, LEGS, RobotCard

_MASS_TOLERANCE = 0.01
_LENGTH_TOLERANCE_M = 0.01
_RADIUS_TOLERANCE_M = 0.005
_ANGLE_TOLERANCE_RAD = 0.01
_TORQUE_TOLERANCE_NM = 0.01
_AXES = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 1.0, 0.0))
_BENT_RAD = 0.3


def check_model(robot: RobotCard, model: mujoco.MjModel) -> None:
    """Check joints, legs, limits, mass and lengths; raises RobotError for a contradiction."""
    _check_joints(robot, model)
    _check_legs(robot, model)
    _check_limits(robot, model)
    _check_mass(robot, model)
    _check_feet(robot, model)


def _check_joints(robot: RobotCard, model: mujoco.MjModel) -> None:
    """Check that the joints are the trunk's free joint and the card's twelve hinges."""
    file = robot.mjcf_path.name
    trunk = model.body(robot.trunk_body)
    free = np.flatnonzero(model.jnt_type == mujoco.mjtJoint.mjJNT_FREE)
    if not len(free):
        raise robot.wrong(f"{file} has no free joint; body '{robot.trunk_body}' needs one")
    moved = model.body(int(model.jnt_bodyid[free[0]]))
    if moved.id != trunk.id:
        raise robot.wrong(
            f"the free joint of {file} moves body '{moved.name}', not '{robot.trunk_body}'"
        )
    unnamed = [
        model.joint(i).name or f"joint {i}"
        for i in range(model.njnt)
        if i != free[0] and model.joint(i).name not in robot.joint_names
    ]
    if unnamed:
        raise robot.wrong(f"{file} has joints that the card does not name: {', '.join(unnamed)}")
    for name in robot.joint_names:
        if model.joint(name).type[0] != mujoco.mjtJoint.mjJNT_HINGE:
            raise robot.wrong(f"{name} has to be a hinge")


def _check_legs(robot: RobotCard, model: mujoco.MjModel) -> None:
    """Check that legs and joints are in order, and feet and knees on their legs."""
    data = posed(robot, model, np.zeros(len(robot.joint_names)))
    hips = data.xanchor[[model.joint(name).id for name in robot.joint_names[::JOINTS_PER_LEG]]]
    hips = hips - hips.mean(axis=0)
    for leg, signs in enumerate(robot.leg_signs):
        names = robot.joint_names[leg * JOINTS_PER_LEG : (leg + 1) * JOINTS_PER_LEG]
        joints = [model.joint(name) for name in names]
        above = model.body(robot.trunk_body).id
        turns = robot.joint_signs.reshape(-1, JOINTS_PER_LEG)[leg]
        axes = (turns[:, None] * _AXES).tolist()
        for joint, part, axis in zip(joints, JOINTS_OF_A_LEG, axes, strict=True):
            below = int(model.jnt_bodyid[joint.id])
            if not _carries(model, above, below):
                raise robot.wrong(
                    f"'{joint.name}' cannot be the {LEGS[leg]} leg's {part}: a leg's three joints "
                    f"are named together, {', '.join(JOINTS_OF_A_LEG)}, from the trunk outwards"
                )
            above = below
            direction = data.xaxis[joint.id]
            if not np.allclose(direction, axis, atol=1e-3):
                raise robot.wrong(
                    f"the axis of {joint.name}, {part} of {LEGS[leg]}, is {_vector(direction)} "
                    f"in the trunk's frame; by joint_signs it has to be {_vector(axis)}"
                )
        if not (hips[leg, :2] * signs > 0).all():
            raise robot.wrong(
                f"legs have to be named in the order {', '.join(LEGS)}, by where they are: "
                f"'{names[0]}', named as {LEGS[leg]}, is {hips[leg, 0]:.3f} m before and "
                f"{hips[leg, 1]:.3f} m left of the hips' middle"
            )
        thigh, calf = (int(model.jnt_bodyid[joint.id]) for joint in joints[1:])
        for key, geom, carrier in (
            ("foot_geoms", robot.foot_geoms[leg], calf),
            ("knee_geoms", robot.knee_geoms[leg], thigh),
        ):
            if not _carries(model, carrier, int(model.geom(geom).bodyid[0])):
                raise robot.wrong(f"{key}: '{geom}' is not on the {LEGS[leg]} leg, {names[2]}'s")


def _check_limits(robot: RobotCard, model: mujoco.MjModel) -> None:
    """Check that the MJCF allows the card's joint ranges and torques."""
    file = robot.mjcf_path.name
    for i, name in enumerate(robot.joint_names):
        joint = model.joint(name)
        low, high = joint.range
        lower = robot.joint_lower_rad[i]
        upper = robot.joint_upper_rad[i]
        default = robot.default_joint_pos_rad[i]
        limited = bool(model.jnt_limited[joint.id])
        if limited and not low - _ANGLE_TOLERANCE_RAD <= default <= high + _ANGLE_TOLERANCE_RAD:
            raise robot.wrong(
                f"the default position of {name}, {default:g}, "
                f"is outside the range {low:g} to {high:g} of {file}"
            )
        if limited and (lower < low - _ANGLE_TOLERANCE_RAD or upper > high + _ANGLE_TOLERANCE_RAD):
            raise robot.wrong(
                f"the limits of {name} are {lower:g} to {upper:g} in the card, "
                f"and {file} stops it at {low:g} to {high:g}"
            )
        torque = robot.torque_limit_nm[i]
        reach = np.abs(model.jnt_actfrcrange[joint.id]).min()
        if model.jnt_actfrclimited[joint.id] and torque > reach + _TORQUE_TOLERANCE_NM:
            raise robot.wrong(
                f"the torque limit of {name} is {torque:g} in the card, "
                f"and its actuatorfrcrange in {file} ends at {reach:g}"
            )


def _check_mass(robot: RobotCard, model: mujoco.MjModel) -> None:
    mass = float(model.body_subtreemass[model.body(robot.trunk_body).id])
    if abs(mass - robot.mass_kg) > _MASS_TOLERANCE * robot.mass_kg:
        raise robot.wrong(
            f"mass_kg is {robot.mass_kg:g}, the bodies of {robot.mjcf_path.name} weigh {mass:.3f}"
        )


def _check_feet(robot: RobotCard, model: mujoco.MjModel) -> None:
    """Compare the feet by the card's offsets with the MJCF's in two poses, and the foot radii."""
    default = robot.default_joint_pos_rad
    middle = (robot.joint_lower_rad + robot.joint_upper_rad) / 2
    bent = default + np.clip(middle - default, -_BENT_RAD, _BENT_RAD)
    for label, pose in (("the default pose", default), ("a bent pose", bent)):
        data = posed(robot, model, pose)
        feet = np.array([data.geom(name).xpos for name in robot.foot_geoms])
        expected = LegKinematics(robot).foot_positions(pose[None])[0]
        distance = np.linalg.norm(feet - expected, axis=1)
        worst = int(np.argmax(distance.round(6)))
        if distance[worst] > _LENGTH_TOLERANCE_M:
            raise robot.wrong(
                f"in {label} '{robot.foot_geoms[worst]}' is at {_vector(feet[worst])} in "
                f"{robot.mjcf_path.name}, and at {_vector(expected[worst])} by the card's offsets"
            )
    for name in robot.foot_geoms:
        foot = model.geom(name)
        round_foot = foot.type[0] == mujoco.mjtGeom.mjGEOM_SPHERE
        if round_foot and abs(foot.size[0] - robot.foot_radius_m) > _RADIUS_TOLERANCE_M:
            raise robot.wrong(
                f"foot_radius_m is {robot.foot_radius_m:g}, the radius of '{name}' {foot.size[0]:g}"
            )


def posed(
    robot: RobotCard, model: mujoco.MjModel, joint_pos: np.ndarray, height_m: float = 0.0
) -> mujoco.MjData:
    """Kinematics with the trunk's frame above the origin and joints (12,) in rad."""
    data = mujoco.MjData(model)
    start = int(model.joint(int(model.body(robot.trunk_body).jntadr[0])).qposadr[0])
    data.qpos[start : start + 7] = 0, 0, height_m, 1, 0, 0, 0
    for name, angle in zip(robot.joint_names, joint_pos, strict=True):
        data.joint(name).qpos[0] = angle
    mujoco.mj_kinematics(model, data)
    return data


def _carries(model: mujoco.MjModel, carrier: int, body: int) -> bool:
    """Whether a body is the carrier or its descendant."""
    while body > carrier:
        body = int(model.body_parentid[body])
    return body == carrier


def _vector(values: Iterable[float]) -> str:
    return f"({', '.join(f'{value + 0.0:.3f}' for value in values)})"
