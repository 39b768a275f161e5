"""Checks in the air: falling, turning, joints and their motors, pushes; closed forms hold there.

float32 back ends are held to 1e-3 m and m/s, exact ones to 1e-6: at 50 m each substep rounds by
4e-6 m.
"""

import numpy as np

from gaitforge.collectors.physics.checks.scene import (
    DEFAULT_POSE,
    ROBOT,
    Make,
    draws_with,
    hold,
    in_the_air,
    placed,
    require,
    require_close,
    start_at,
    tolerance,
)
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import N_JOINTS, N_LEGS
from gaitforge.collectors.rotations import from_yaw, rotate, rotate_inverse
from gaitforge.collectors.scenarios.terrains import make_tile
from gaitforge.collectors.timing import CONTROL_DT_S, GRAVITY_MS2, SUBSTEP_S

_STEP_RAD = 0.3
_TURN_OF_AXES = np.array([0.5, 0.5, 0.5, 0.5])
"""Takes x to y, y to z and z to x: every axis of the body moves."""


def start(make: Make) -> str:
    """A reset shows the requested start at once, feet and frames included."""
    backend = placed(make, start_at(), start_at())
    hold(backend, 10)
    joint_pos = DEFAULT_POSE + np.linspace(-0.1, 0.1, N_JOINTS)
    begin = in_the_air(
        x=0.3, y=-0.2, yaw=0.7, lin_vel=(1, 2, 3), ang_vel=(0.1, 0.2, 0.3), joint_pos=joint_pos
    )
    backend.reset(1, begin)
    state = backend.state
    near = tolerance(backend, 1e-12, 1e-5)
    off = max(
        require_close("base position", state.base_pos[1], [0.3, -0.2, 50.0], near),
        require_close("quaternion (w x y z)", state.base_quat[1], from_yaw(np.array(0.7)), near),
        require_close("velocity", state.base_lin_vel_world[1], [1, 2, 3], near),
        require_close("angular velocity", state.base_ang_vel_body[1], [0.1, 0.2, 0.3], near),
        require_close("joint positions", state.joint_pos[1], joint_pos, near),
        require_close("joint speeds", state.joint_vel[1], 0.0, 0.0),
    )
    forces = (state.foot_force[1], state.trunk_force[1], state.knee_force[1], state.joint_torque[1])
    require(not any(force.any() for force in forces), "a start has a force or a torque")
    in_trunk = LegKinematics(ROBOT).foot_positions(joint_pos[None])[0]
    feet = rotate(np.tile(from_yaw(np.array(0.7)), (N_LEGS, 1)), in_trunk) + begin.base_pos
    away = require_close("feet", state.foot_pos[1], feet, tolerance(backend, 1e-9, 1e-4))
    return f"start off by {off:.1g}, feet by {away:.1g} m"


def free_fall(make: Make) -> str:
    """A robot in the air falls as a parabola, feels nothing and keeps its pose."""
    backend = placed(make, in_the_air(lin_vel=(1.0, -0.5, 2.0)))
    steps = 25
    hold(backend, steps)
    time = steps * CONTROL_DT_S
    state = backend.state
    near = tolerance(backend, 1e-6, 1e-3)
    velocity = [1.0, -0.5, 2.0 - GRAVITY_MS2 * time]
    slip = require_close("velocity", state.base_lin_vel_world[0], velocity, near)
    position = [time, -0.5 * time, 50 + 2 * time - GRAVITY_MS2 * time**2 / 2]
    # A first-order integrator is off by at most one substep's worth of the speed gained.
    first_order = GRAVITY_MS2 * time * SUBSTEP_S + near
    away = require_close("position", state.base_pos[0], position, first_order)
    require_close("joints", state.joint_pos[0], DEFAULT_POSE, near)
    lag = GRAVITY_MS2 * SUBSTEP_S + near
    require_close("velocity of the feet", state.foot_vel[0], np.tile(velocity, (4, 1)), lag)
    require(not state.foot_force.any() and not state.trunk_force.any(), "it feels a force")
    return f"after {time:.1f} s off by {slip:.1g} m/s and {away:.3f} m"


def base_velocity(make: Make) -> str:
    """Position and velocity are those of the trunk's origin, not of its centre of mass."""
    draws = [draws_with(com_offset_x_m=offset) for offset in (-0.05, 0.05)]
    backend = placed(make, *(in_the_air(ang_vel=(0.0, 3.0, 0.0), draws=row) for row in draws))
    worst = 0.0
    for _ in range(10):
        before = backend.state.base_pos.copy()
        speed = backend.state.base_lin_vel_world.copy()
        hold(backend, 1)
        mean = (speed + backend.state.base_lin_vel_world) / 2
        moved = backend.state.base_pos - before
        off = require_close("way against velocity, m", moved, mean * CONTROL_DT_S, 1e-3)
        worst = max(worst, off)
    return f"way and mean velocity of 10 steps agree within {1000 * worst:.2f} mm"


def seam(make: Make) -> str:
    """Positions continue across the seam of a periodic tile."""
    tile = make_tile("rough", 5, 0)
    velocity = np.array([3.0, -2.0])
    corner = tile.period_m / 2
    flying = in_the_air(x=corner - 0.1, y=-corner + 0.1, lin_vel=(*velocity, 0.0), tile=tile)
    backend = placed(make, flying)
    near = tolerance(backend, 1e-6, 1e-3)
    worst = 0.0
    previous = backend.state.base_pos[0].copy()
    for _ in range(20):
        hold(backend, 1)
        moved = backend.state.base_pos[0] - previous
        worst = max(worst, require_close("way", moved[:2], velocity * CONTROL_DT_S, near))
        feet = backend.state.foot_pos[0] - backend.state.base_pos[0]
        reach = np.abs(rotate_inverse(backend.state.base_quat[:1], feet)).max()
        require(reach < 0.6, f"a foot is {reach:.2f} m from the trunk")
        previous = backend.state.base_pos[0].copy()
    require(previous[0] > corner + 0.5, f"x ended at {previous[0]:.2f} m")
    require(previous[1] < -corner - 0.5, f"y ended at {previous[1]:.2f} m")
    return f"{velocity[0] * 0.4:.1f} m over it, a step off by {worst:.1g} m"


def joint_order(make: Make) -> str:
    """Every target moves its own joint, in its direction, and the foot with it."""
    steps = 40
    # Thrown so that they are at rest when feet are compared.
    thrown = in_the_air(lin_vel=(0.0, 0.0, GRAVITY_MS2 * steps * CONTROL_DT_S))
    backend = placed(make, *[thrown] * 2 * N_JOINTS)
    unit = np.concatenate([np.eye(N_JOINTS), -np.eye(N_JOINTS)])
    targets = DEFAULT_POSE + _STEP_RAD * unit
    hold(backend, 2, targets)
    speed = (backend.state.joint_vel * unit).sum(axis=1)
    require((speed > 1.0).all(), f"a joint moves to its target at {speed.min():.1f} rad/s")
    hold(backend, 8, targets)
    moved = backend.state.joint_pos - DEFAULT_POSE
    reach = (moved * unit).sum(axis=1)
    slowest = int(np.argmin(reach))
    require(
        reach[slowest] > _STEP_RAD / 2,
        f"{ROBOT.joint_names[slowest % N_JOINTS]} moved by {reach[slowest]:.2f} rad of {_STEP_RAD}",
    )
    stray = np.abs(moved * (1 - np.abs(unit))).max()
    require(stray < 0.1, f"another joint than the one with the target moved by {stray:.2f} rad")
    hold(backend, steps - 10, targets)
    state = backend.state
    quat = np.repeat(state.base_quat[:, None], N_LEGS, axis=1)
    feet = rotate_inverse(quat, state.foot_pos - state.base_pos[:, None])
    expected = LegKinematics(ROBOT).foot_positions(state.joint_pos)
    away = np.abs(feet - expected).max(axis=(1, 2))
    worst = int(np.argmax(away))
    require(
        away[worst] < 0.01,
        f"with {ROBOT.joint_names[worst % N_JOINTS]} moved a foot is {away[worst]:.3f} m from "
        "where the joint positions put it",
    )
    return f"own joint {reach.min():.2f} rad, others {stray:.2f}, feet {away.max():.3f} m"


def torque_limits(make: Make) -> str:
    """Motors reach their torque limits and never exceed them."""
    backend = placed(make, *[in_the_air()] * N_JOINTS)
    hold(backend, 1, DEFAULT_POSE + 5.0 * np.eye(N_JOINTS))
    torque = np.diag(backend.state.joint_torque)
    limits = ROBOT.torque_limit_nm
    off = require_close("torque, Nm", torque, limits, tolerance(backend, 1e-6, 1e-3))
    return f"{limits.min():.1f} to {limits.max():.1f} Nm, off by {off:.1g}"


def frames(make: Make) -> str:
    """Spins about any axis match the closed form; body-frame rates, w first."""
    starts = [from_yaw(np.array(np.pi / 2)), _TURN_OF_AXES]
    spins = np.tile(np.eye(3), (2, 1))
    quats = np.repeat(starts, 3, axis=0)
    pairs = zip(quats, spins, strict=True)
    backend = placed(make, *(in_the_air(base_quat=quat, ang_vel=spin) for quat, spin in pairs))
    steps = 5
    hold(backend, steps)
    rate = require_close("body-frame rate", backend.state.base_ang_vel_body, spins, 0.06)
    half = steps * CONTROL_DT_S / 2
    turns = np.concatenate([np.full((6, 1), np.cos(half)), np.sin(half) * spins], axis=1)
    worst = 0.0
    for vector in np.eye(3):
        # Turned in the body first, then by the start's attitude.
        expected = rotate(quats, rotate(turns, np.tile(vector, (6, 1))))
        turned = rotate(backend.state.base_quat, np.tile(vector, (6, 1)))
        worst = max(worst, require_close("attitude", turned, expected, 0.01))
    return f"2 attitudes x 3 axes: rate off by {rate:.3f} rad/s, attitude by {worst:.4f}"


def push(make: Make) -> str:
    """A push adds world velocity to its robots, also beside another one's reset."""
    backend = placed(make, *[in_the_air(yaw=1.2, lin_vel=(0.5, 0.0, 0.0))] * 3)
    hold(backend, 1)
    near = tolerance(backend, 1e-6, 1e-3)
    backend.push(np.array([0, 2]), np.array([[0.3, -0.4], [-0.1, 0.2]]))
    backend.reset(1, in_the_air(lin_vel=(0.0, 0.7, 0.0)))
    expected = np.array([[0.8, -0.4], [0.0, 0.7], [0.4, 0.2]])
    require_close("velocity at once", backend.state.base_lin_vel_world[:, :2], expected, near)
    before = backend.state.base_pos[:, :2].copy()
    hold(backend, 5)
    off = require_close("velocity later", backend.state.base_lin_vel_world[:, :2], expected, near)
    # The first substep may still move at the velocity before.
    way = backend.state.base_pos[:, :2] - before
    away = require_close("way", way, expected * 5 * CONTROL_DT_S, 0.005)
    return f"velocity off by {off:.1g} m/s, way by {1000 * away:.1f} mm"
