"""The simulated model: a robot's MJCF with ground, barriers, motors and sensors."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from itertools import product
from math import cos, sin

import mujoco
import numpy as np

from gaitforge.collectors.physics.mujoco.model_check import check_model
from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, RobotCard
from gaitforge.collectors.scenarios.passages import MAX_BARRIERS, Barrier
from gaitforge.collectors.scenarios.terrains import GRID, TerrainTile
from gaitforge.collectors.timing import GRAVITY_MS2, SUBSTEP_S
from gaitforge.common.errors import failures

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


def write_tile(model: mujoco.MjModel, tile: TerrainTile) -> None:
    """Write a tile into the height field: data from 0 to 1, scaled by `hfield_size[2]`."""
    low = float(tile.heights.min())
    relief = max(float(tile.heights.max()) - low, 0.01)
    model.hfield_size[0, :3] = tile.extent_m, tile.extent_m, relief
    model.hfield_data[:] = ((tile.heights - low) / relief).ravel()
    model.geom_pos[model.geom(GROUND).id, 2] = low


def write_barriers(model: mujoco.MjModel, barriers: Sequence[Barrier]) -> None:
    """Place barriers and park the rest; bounds were compiled for the largest size."""
    if len(barriers) > MAX_BARRIERS:
        raise ValueError(f"{len(barriers)} barriers; a model holds {MAX_BARRIERS}")
    for slot in range(MAX_BARRIERS):
        body = model.body(f"{BARRIERS}_{slot}").id
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
