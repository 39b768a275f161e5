"""Checks of motion: falling, turning, joints and motors, pushes, and independent robots."""

from collections.abc import Mapping, Sequence

import numpy as np

from gaitforge.collectors.physics import scene
from gaitforge.collectors.physics.interface import PhysicsBackend
from gaitforge.collectors.physics.scene import (
    DEFAULT_POSE,
    ROBOT,
    draws_with,
    hold,
    in_the_air,
    start_at,
)
from gaitforge.collectors.robots.kinematics import LegKinematics
from gaitforge.collectors.robots.robot import N_JOINTS, N_LEGS
from gaitforge.collectors.rotations import from_yaw, rotate, rotate_inverse
from gaitforge.collectors.scenarios.randomisation import DEFAULT
from gaitforge.collectors.scenarios.terrains import TERRAINS, Passage, make_tile, place_barriers
from gaitforge.collectors.timing import CONTROL_DT_S, GRAVITY_MS2, SUBSTEP_S
from gaitforge.plugins.simulators.checks import measure
from gaitforge.plugins.simulators.checks.measure import (
    Make,
    placed,
    require,
    require_close,
    tolerance,
)

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


_FLOAT32 = {"base_pos": 0.02, "joint_pos": 0.1}
_EXACT_STEPS = 30
_FLOAT32_STEPS = 15

State = Mapping[str, np.ndarray]


def determinism(make: measure.Make) -> str:
    """The same starts, draws and targets give the same motion twice."""
    first = make(4, 1)
    second = make(4, 1)
    for backend in (first, second):
        _scatter(backend, range(4))
        _wave(backend, _steps(first))
    return _require_same(first, measure.snapshot(first), measure.snapshot(second))


def neighbours(make: measure.Make) -> str:
    """Motion does not depend on threads, neighbours or a robot's index."""
    numbers = list(range(6))
    runs: dict[str, dict[str, np.ndarray]] = {}
    for name, robots, threads in (
        ("one thread", numbers, 1),
        ("two threads", numbers, 2),
        ("reversed", numbers[::-1], 2),
        ("alone", [3], 1),
    ):
        backend = make(len(robots), threads)
        _scatter(backend, robots)
        bumped = _wave(backend, _steps(backend))
        if name == "one thread":
            measure.require(bumped[1::2].any(), "none of the robots between walls touched them")
        runs[name] = measure.snapshot(backend)
    baseline = runs["one thread"]
    differences = [
        _require_same(backend, baseline, runs["two threads"], what="on two threads"),
        _require_same(backend, baseline, _rows(runs["reversed"], numbers[::-1]), what="in reverse"),
        _require_same(backend, _rows(baseline, [3]), runs["alone"], what="alone"),
    ]
    return differences[0] if len(set(differences)) == 1 else "; ".join(differences)


def partial_reset(make: measure.Make) -> str:
    """Resetting one robot leaves the others untouched, now and later."""
    whole = make(4, 1)
    partly = make(4, 1)
    for backend in (whole, partly):
        _scatter(backend, range(4))
        _wave(backend, 10)
    before = measure.snapshot(partly)
    partly.reset(1, scene.in_the_air(tile=make_tile("stairs", 7, 0)))
    untouched = [0, 2, 3]
    at_once = measure.snapshot(partly)
    for name in measure.STATE_NAMES:
        same = np.array_equal(at_once[name][untouched], before[name][untouched])
        measure.require(same, f"the reset of robot 1 changed {name} of the others at once")
    for backend in (whole, partly):
        _wave(backend, 10)
    height = float(partly.state.base_pos[1, 2])
    measure.require(height > 40.0, f"the robot that was reset to 50 m is at {height:.1f} m")
    after = _rows(measure.snapshot(partly), untouched)
    beside = _rows(measure.snapshot(whole), untouched)
    return _require_same(whole, after, beside, what="beside a reset")


def restart(make: measure.Make) -> str:
    """A used robot restarts like a new one."""
    used = make(2, 1)
    new = make(2, 1)
    _scatter(used, (2, 3))
    _wave(used, 15)
    for backend in (used, new):
        _scatter(backend, range(2))
    _require_same(used, measure.snapshot(used), measure.snapshot(new), what="at the start")
    for backend in (used, new):
        _wave(backend, 15)
    return _require_same(
        used, measure.snapshot(used), measure.snapshot(new), what="after a restart"
    )


def _scatter(backend: PhysicsBackend, numbers: Sequence[int]) -> None:
    """Reset each robot by its number; odd ones stand between walls that they touch."""
    names = sorted(TERRAINS)
    for robot, number in enumerate(numbers):
        rng = np.random.default_rng(number)
        tile = make_tile(names[number % len(names)], 3, number)
        yaw = rng.uniform(-3, 3)
        walls = place_barriers(Passage("walls", 0.0, 0.6, 0.32), tile, np.zeros(2), yaw)
        draws = backend.realised(DEFAULT.draw(rng, 0, scene.ROBOT))
        fields = {"tile": tile, "barriers": walls if number % 2 else (), "draws": draws}
        backend.reset(robot, scene.start_at(z=scene.STANDING_HEIGHT_M + 0.1, yaw=yaw, **fields))


def _wave(backend: PhysicsBackend, steps: int) -> np.ndarray:
    """Step with swaying targets; (N,) whether each robot touched a barrier."""
    touched = np.zeros(backend.num_robots, dtype=bool)
    for step in range(steps):
        scene.hold(backend, 1, scene.DEFAULT_POSE + 0.2 * np.sin(0.5 * step + np.arange(N_JOINTS)))
        touched |= backend.state.barrier_force > 0
    return touched


def _steps(backend: PhysicsBackend) -> int:
    return _EXACT_STEPS if backend.exact else _FLOAT32_STEPS


def _rows(state: State, rows: Sequence[int]) -> dict[str, np.ndarray]:
    return {name: values[list(rows)] for name, values in state.items()}


def _require_same(
    backend: PhysicsBackend, first: State, second: State, what: str = "the second time"
) -> str:
    """Describe how far two runs differ; CheckFailed beyond the tolerance."""
    if backend.exact:
        for name in measure.STATE_NAMES:
            measure.require(
                np.array_equal(first[name], second[name]), f"{what} {name} has other bits"
            )
        return "bit for bit"
    off = {
        name: measure.require_close(f"{what} {name}", first[name], second[name], allowed)
        for name, allowed in _FLOAT32.items()
    }
    return f"{what} off by {1000 * off['base_pos']:.2g} mm, {off['joint_pos']:.2g} rad"
