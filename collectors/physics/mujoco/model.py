"""The simulated model of a robot, its check against the robot's card, and the stability of gains.

The model is a robot's MJCF with ground, barriers, motors and sensors.

The check compares a compiled model with its robot's card.

For gains, `stiffness` tells how near they come to instability at the physics step.
"""

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from itertools import product
from math import cos, sin

import mujoco
import numpy as np

from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import JOINTS_OF_A_LEG, JOINTS_PER_LEG, LEGS, RobotCard
from gaitforge.collectors.scenarios.terrains import GRID, MAX_BARRIERS, Barrier, TerrainTile
from gaitforge.collectors.timing import GRAVITY_MS2, SUBSTEP_S
from gaitforge.common.errors import failures

# The check of a compiled model.
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
        joint = model.joint(name)
        if joint.type[0] != mujoco.mjtJoint.mjJNT_HINGE:
            raise robot.wrong(f"{name} has to be a hinge")
        for what in ("damping", "armature", "frictionloss"):
            value = float(getattr(model, f"dof_{what}")[joint.dofadr[0]])
            if value < 0:
                raise robot.wrong(f"the {what} of {name} in {file} is {value:g}, below 0")


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


# The simulated model.
GROUND = "gaitforge_ground"
BARRIERS = "gaitforge_barriers"
_HIP = "gaitforge_hip"
_GROUND_BIT = 1
_BARRIER_BIT = 2
_BOTH_BITS = _GROUND_BIT | _BARRIER_BIT
_MAX_EXTENT_M = 10.0
_MAX_RELIEF_M = 4.0
_MAX_BARRIER_HALF_SIZE_M = 2.0
_BARRIER_FRICTION = 0.3
"""Friction of smooth panels; feet have their own."""
_BARRIER_PRIORITY = 1
_FOOT_PRIORITY = 2
_AWAY_M = -50.0


def build_model(robot: RobotCard) -> mujoco.MjModel:
    """The robot's MJCF on a height field, with barriers parked out of reach.

    Position servos in the card's joint order, and the task's sensors, replace those of the MJCF.
    Shapes collide with ground and barriers only; a floor in the MJCF collides with nothing. Step
    and gravity are the task's, solver options the MJCF's.

    Raises:
        RobotError: an MJCF that does not compile, is incomplete, or contradicts the card.
    """
    with _errors_of(robot):
        spec = mujoco.MjSpec.from_file(str(robot.mjcf_path))
    _check_names(spec, robot)
    for element in [*spec.sensors, *spec.actuators, *spec.keys, *spec.pairs]:
        spec.delete(element)
    _set_collisions(spec, robot)
    _add_ground(spec)
    _add_barriers(spec)
    _add_motors(spec, robot)
    _add_sensors(spec, robot)
    spec.option.timestep = SUBSTEP_S
    spec.option.gravity = [0.0, 0.0, -GRAVITY_MS2]
    with _errors_of(robot):
        model = spec.compile()
    check_model(robot, model)
    return model


def write_tile(model: mujoco.MjModel, ground: int, tile: TerrainTile) -> None:
    """Write a tile into the height field: data from 0 to 1, scaled by `hfield_size[2]`.

    ground: id of the geom `GROUND`.
    """
    low, relief, heights = tile.scaled
    model.hfield_size[0, :3] = tile.extent_m, tile.extent_m, relief
    model.hfield_data[:] = heights
    model.geom_pos[ground, 2] = low


def barrier_bodies(model: mujoco.MjModel) -> list[int]:
    """Ids of the bodies that barriers are made of."""
    return [model.body(f"{BARRIERS}_{slot}").id for slot in range(MAX_BARRIERS)]


def write_barriers(
    model: mujoco.MjModel, bodies: Sequence[int], barriers: Sequence[Barrier]
) -> None:
    """Place barriers and park the rest; bounds were compiled for the largest size.

    bodies: `barrier_bodies`.
    """
    if len(barriers) > MAX_BARRIERS:
        raise ValueError(f"{len(barriers)} barriers; a model holds {MAX_BARRIERS}")
    for slot, body in enumerate(bodies):
        geom = model.body_geomadr[body]
        if slot >= len(barriers):
            model.body_pos[body] = 0.0, 0.0, _AWAY_M
            continue
        barrier = barriers[slot]
        if max(barrier.half_size_m) > _MAX_BARRIER_HALF_SIZE_M:
            raise ValueError(
                f"a barrier of half size {max(barrier.half_size_m):g} m; "
                f"a model holds {_MAX_BARRIER_HALF_SIZE_M:g} m"
            )
        model.body_pos[body] = barrier.centre_m
        half = barrier.yaw_rad / 2
        model.body_quat[body] = cos(half), 0.0, 0.0, sin(half)
        model.geom_size[geom] = barrier.half_size_m


def sensor_slices(model: mujoco.MjModel) -> dict[str, slice]:
    """Slices of `sensordata` by kind of sensor, the part of a name before the slash."""
    slices: dict[str, slice] = {}
    for sensor in map(model.sensor, range(model.nsensor)):
        kind = sensor.name.split("/")[0]
        start = int(sensor.adr[0])
        size = int(sensor.dim[0])
        slices[kind] = slice(slices[kind].start if kind in slices else start, start + size)
    return slices


def _errors_of(robot: RobotCard) -> AbstractContextManager[None]:
    """Turn MuJoCo's error into a one-line RobotError."""
    kinds = ValueError, mujoco.FatalError
    return failures(robot.mjcf_path.name, *kinds, error=robot.wrong)


def _check_names(spec: mujoco.MjSpec, robot: RobotCard) -> None:
    for find, kind, names in (
        (spec.body, "body", (robot.trunk_body,)),
        (spec.geom, "geom", (*robot.foot_geoms, *robot.knee_geoms)),
        (spec.joint, "joint", robot.joint_names),
    ):
        for name in names:
            if find(name) is None:
                raise robot.wrong(f"{robot.mjcf_path.name} has no {kind} '{name}'")


def _set_collisions(spec: mujoco.MjSpec, robot: RobotCard) -> None:
    """Let shapes collide with ground and barriers only: contype is 0, conaffinity selects them."""
    for geom in spec.geoms:
        if geom.contype or geom.conaffinity:
            bits = 0 if geom.contype else geom.conaffinity & _BOTH_BITS
            geom.contype = 0
            geom.conaffinity = bits or _BOTH_BITS
        if geom.name in robot.foot_geoms:
            # The foot's friction counts, since it is randomised.
            geom.priority = _FOOT_PRIORITY
            geom.condim = 3
    for name in (*robot.foot_geoms, *robot.knee_geoms):
        if not spec.geom(name).conaffinity & _GROUND_BIT:
            raise robot.wrong(f"'{name}' does not meet the ground: its conaffinity needs bit 1")
    trunk = spec.body(robot.trunk_body)
    if not any(geom.conaffinity == _BOTH_BITS for geom in trunk.geoms):
        raise robot.wrong(
            f"no shape of body '{robot.trunk_body}' meets both the ground and barriers: "
            "one needs conaffinity 3"
        )


def _add_ground(spec: mujoco.MjSpec) -> None:
    side = GRID + 1
    spec.add_hfield(
        name=GROUND,
        nrow=side,
        ncol=side,
        size=[_MAX_EXTENT_M, _MAX_EXTENT_M, _MAX_RELIEF_M, 0.5],
        userdata=np.zeros(side * side),
    )
    spec.worldbody.add_geom(
        name=GROUND,
        type=mujoco.mjtGeom.mjGEOM_HFIELD,
        hfieldname=GROUND,
        contype=_GROUND_BIT,
        conaffinity=0,
    )


def _add_barriers(spec: mujoco.MjSpec) -> None:
    parent = spec.worldbody.add_body(name=BARRIERS)
    for slot in range(MAX_BARRIERS):
        body = parent.add_body(name=f"{BARRIERS}_{slot}", pos=[0.0, 0.0, _AWAY_M])
        body.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[_MAX_BARRIER_HALF_SIZE_M] * 3,
            contype=_BARRIER_BIT,
            conaffinity=0,
            friction=[_BARRIER_FRICTION, 0.005, 0.0001],
            priority=_BARRIER_PRIORITY,
        )


def _add_motors(spec: mujoco.MjSpec, robot: RobotCard) -> None:
    for i, joint in enumerate(robot.joint_names):
        motor = spec.add_actuator(
            name=joint, trntype=mujoco.mjtTrn.mjTRN_JOINT, target=joint, ctrllimited=False
        )
        motor.set_to_position(kp=robot.kp_nm_per_rad[i], kv=robot.kd_nms_per_rad[i])
        motor.forcelimited = True
        motor.forcerange = [-robot.torque_limit_nm[i], robot.torque_limit_nm[i]]


def _add_sensors(spec: mujoco.MjSpec, robot: RobotCard) -> None:
    """Sensors by kind, in the order of the card's legs and joints."""
    geom = mujoco.mjtObj.mjOBJ_GEOM
    body = mujoco.mjtObj.mjOBJ_BODY
    tree = mujoco.mjtObj.mjOBJ_XBODY
    kinds = mujoco.mjtSensor
    hips = [spec.joint(joint).parent for joint in robot.joint_names[::JOINTS_PER_LEG]]
    for i, hip in enumerate(hips):
        hip.name = hip.name or f"{_HIP}_{i}"
    trunk = [robot.trunk_body]
    trunk_and_hips = [robot.trunk_body, *(hip.name for hip in hips)]
    # One sensor per barrier: forces of opposite walls would cancel.
    barriers = [f"{BARRIERS}_{slot}" for slot in range(MAX_BARRIERS)]
    for kind, objtype, names, reftype, partners in (
        ("foot_force", geom, robot.foot_geoms, geom, [GROUND]),
        ("trunk_force", body, trunk, geom, [GROUND]),
        ("knee_force", geom, robot.knee_geoms, geom, [GROUND]),
        ("barrier_force", tree, trunk, tree, barriers),
        ("barrier_body_force", body, trunk_and_hips, tree, barriers),
    ):
        for name, partner in product(names, partners):
            spec.add_sensor(
                name=f"{kind}/{name}/{partner}",
                type=kinds.mjSENS_CONTACT,
                objtype=objtype,
                objname=name,
                reftype=reftype,
                refname=partner,
                intprm=[1 << int(mujoco.mjtConDataField.mjCONDATA_FORCE), 3, 1],  # the net force
            )
    for kind, sensor, objtype, names in (
        ("foot_pos", kinds.mjSENS_FRAMEPOS, geom, robot.foot_geoms),
        ("foot_vel", kinds.mjSENS_FRAMELINVEL, geom, robot.foot_geoms),
        ("torque", kinds.mjSENS_ACTUATORFRC, mujoco.mjtObj.mjOBJ_ACTUATOR, robot.joint_names),
    ):
        for name in names:
            spec.add_sensor(name=f"{kind}/{name}", type=sensor, objtype=objtype, objname=name)


# Stability of gains.
_IN_THE_AIR_M = 10.0


def stiffness(
    robot: RobotCard, model: mujoco.MjModel, kp: np.ndarray, kd: np.ndarray
) -> tuple[float, str]:
    """How near gains (12,) come to instability in the air, and the joint that is nearest to it.

    Semi-implicit Euler with step h on M a = -kp q - (kd + d) v, d the joints' own damping, is
    stable while no eigenvalue of M^-1 (h (kd + d) + h^2 kp / 2) reaches 2: here the largest one
    over 2, so gains are stable below 1. M is the default pose's, with armature.
    """
    inertia, dofs = _inertia(robot, model)
    damping = np.zeros(model.nv)
    damping[dofs] = SUBSTEP_S * (kd + model.dof_damping[dofs]) + SUBSTEP_S**2 * kp / 2
    # Similar to a symmetric matrix: L^-1 D L^-T with M = L L^T.
    lower = np.linalg.cholesky(inertia)
    half = np.linalg.solve(lower, np.diag(damping))
    values, vectors = np.linalg.eigh(np.linalg.solve(lower, half.T))
    speeds = np.linalg.solve(lower.T, vectors[:, -1])
    joint = int(np.argmax(np.abs(speeds[dofs])))
    return float(values[-1]) / 2.0, robot.joint_names[joint]


def joint_inertia(robot: RobotCard, model: mujoco.MjModel) -> np.ndarray:
    """(12, 12) kg m^2 of the joints in the default pose, the trunk held, with armature."""
    inertia, dofs = _inertia(robot, model)
    return inertia[np.ix_(dofs, dofs)]


def _inertia(robot: RobotCard, model: mujoco.MjModel) -> tuple[np.ndarray, list[int]]:
    """The inertia matrix (nv, nv) in the default pose, and the joints' rows."""
    data = posed(robot, model, robot.default_joint_pos_rad, _IN_THE_AIR_M)
    mujoco.mj_forward(model, data)
    inertia = np.empty((model.nv, model.nv))
    mujoco.mj_fullM(model, data, inertia)
    return inertia, [int(model.joint(name).dofadr[0]) for name in robot.joint_names]
