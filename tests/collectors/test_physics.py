"""The contract of every physics back end: motion, contact, frames, and independent robots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields

import numpy as np
import pytest

from collectors.kinematics import LegKinematics
from collectors.passages import Passage, place_barriers
from collectors.physics import (
    BACKENDS,
    InitialState,
    PhysicsBackend,
    PhysicsState,
    make_backend,
)
from collectors.randomisation import draw_randomisation, nominal_draws
from collectors.robots import N_JOINTS
from collectors.rotations import from_yaw, rotate, rotate_inverse
from collectors.terrains import TERRAINS, TerrainTile, make_tile
from collectors.timing import CONTROL_DT_S, SUBSTEP_S
from tests.collectors.making import (
    DEFAULT_POSE,
    FIRM_STANCE,
    FLAT,
    LEGS_UP,
    ROBOT,
    STANDING_HEIGHT_M,
    height_between,
    hold,
    in_the_air,
    start_at,
)

GRAVITY_MS2 = 9.81
STATE_NAMES = tuple(field.name for field in fields(PhysicsState))

Make = Callable[..., PhysicsBackend]


@pytest.fixture(params=sorted(BACKENDS))
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes back ends of each kind and closes them."""
    made: list[PhysicsBackend] = []

    def new(num_robots: int = 1, threads: int = 1) -> PhysicsBackend:
        made.append(make_backend(request.param, ROBOT, num_robots, threads))
        return made[-1]

    yield new
    for backend in made:
        backend.close()


def start_all(
    backend: PhysicsBackend, start: InitialState, tile: TerrainTile = FLAT
) -> PhysicsBackend:
    """Put every robot, without randomisation, in the same state."""
    for index in range(backend.num_robots):
        backend.reset(index, tile, (), nominal_draws(), start)
    return backend


def everything(backend: PhysicsBackend) -> dict[str, np.ndarray]:
    return {name: getattr(backend.state, name).copy() for name in STATE_NAMES}


def assert_equal_rows(
    first: dict[str, np.ndarray],
    second: dict[str, np.ndarray],
    rows: slice | list[int] = slice(None),
    to: slice | list[int] | None = None,
) -> None:
    for name in STATE_NAMES:
        other = second[name][rows if to is None else to]
        np.testing.assert_array_equal(first[name][rows], other, err_msg=name)


def test_an_unknown_simulator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown simulator 'ode'; simulators: mujoco"):
        make_backend("ode", ROBOT, 1, 1)


@pytest.mark.parametrize(("robots", "threads"), [(0, 1), (1, 0)])
def test_no_robots_or_no_threads_are_refused(make: Make, robots: int, threads: int) -> None:
    with pytest.raises(ValueError, match="both must be at least 1"):
        make(robots, threads)


def test_free_fall_is_a_parabola(make: Make) -> None:
    backend = start_all(make(), in_the_air(lin_vel=(1.0, -0.5, 2.0)))
    steps = 25
    hold(backend, steps)
    time = steps * CONTROL_DT_S
    state = backend.state
    velocity = [1.0, -0.5, 2.0 - GRAVITY_MS2 * time]
    np.testing.assert_allclose(state.base_lin_vel_world[0], velocity, atol=1e-6)
    position = [time, -0.5 * time, 50 + 2 * time - GRAVITY_MS2 * time**2 / 2]
    # A first-order integrator is off by at most one substep's worth of the speed gained.
    np.testing.assert_allclose(state.base_pos[0], position, atol=GRAVITY_MS2 * time * SUBSTEP_S)
    np.testing.assert_allclose(state.joint_pos[0], DEFAULT_POSE, atol=1e-6)
    assert not state.foot_force.any()
    assert not state.trunk_force.any()


def test_reset_shows_the_start(make: Make) -> None:
    backend = make(2)
    hold(start_all(backend, start_at()), 10)
    joint_pos = DEFAULT_POSE + np.linspace(-0.1, 0.1, N_JOINTS)
    start = in_the_air(
        x=0.3, y=-0.2, yaw=0.7, lin_vel=(1, 2, 3), ang_vel=(0.1, 0.2, 0.3), joint_pos=joint_pos
    )
    backend.reset(1, FLAT, (), nominal_draws(), start)
    state = backend.state
    np.testing.assert_array_equal(state.base_pos[1], [0.3, -0.2, 50.0])
    np.testing.assert_allclose(state.base_quat[1], from_yaw(np.array(0.7)))
    np.testing.assert_array_equal(state.base_lin_vel_world[1], [1, 2, 3])
    np.testing.assert_array_equal(state.base_ang_vel_body[1], [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(state.joint_pos[1], joint_pos)
    assert not state.foot_force[1].any()
    in_trunk = LegKinematics(ROBOT).foot_positions(joint_pos[None])[0]
    feet = rotate(np.tile(state.base_quat[1], (4, 1)), in_trunk) + state.base_pos[1]
    np.testing.assert_allclose(state.foot_pos[1], feet, atol=1e-9)


# The second reset counts: a back end may set up the ground's place only once.
@pytest.mark.parametrize("seam", [False, True], ids=["inside", "on-the-seam"])
def test_feet_stand_on_the_ground_of_every_terrain(make: Make, seam: bool) -> None:
    names = sorted(TERRAINS)
    backend = start_all(make(len(names)), start_at())
    hold(backend, 5)
    tiles = [make_tile(terrain, 4, 2) for terrain in names]
    for index, tile in enumerate(tiles):
        x, y = (tile.period_m / 2, 0.3) if seam else (1.2, 0.4)
        under = np.stack(np.meshgrid(x + np.arange(-0.4, 0.5, 0.1), y + np.arange(-0.3, 0.4, 0.1)))
        ground = height_between(tile, under.reshape(2, -1).T).max()
        start = start_at(x, y, z=float(ground) + STANDING_HEIGHT_M + 0.01)
        backend.reset(index, tile, (), nominal_draws(), start)
    hold(backend, 40, FIRM_STANCE)
    state = backend.state
    for index, (name, tile) in enumerate(zip(names, tiles, strict=True)):
        down = np.linalg.norm(state.foot_force[index], axis=1) > 1.0
        assert down.sum() >= 2, name
        feet = state.foot_pos[index, down]
        clearance = feet[:, 2] - ROBOT.foot_radius_m - height_between(tile, feet[:, :2])
        assert (np.abs(clearance) < (0.005 if name == "flat" else 0.02)).all(), (name, clearance)


def test_feet_carry_the_robots_weight(make: Make) -> None:
    backend = start_all(make(), start_at(joint_pos=FIRM_STANCE))
    hold(backend, 100, FIRM_STANCE)
    force = backend.state.foot_force[0].sum(axis=0)
    assert force[2] == pytest.approx(ROBOT.mass_kg * GRAVITY_MS2, rel=0.02)
    assert np.abs(force[:2]).max() < 5.0
    assert not backend.state.trunk_force.any()
    assert not backend.state.knee_force.any()


def test_a_trunk_on_the_ground_feels_it(make: Make) -> None:
    backend = start_all(make(), start_at(z=0.06, joint_pos=LEGS_UP))
    hold(backend, 50, LEGS_UP)
    weight = ROBOT.mass_kg * GRAVITY_MS2
    assert backend.state.trunk_force[0, 2] == pytest.approx(weight, rel=0.05)
    assert not backend.state.foot_force.any()


@pytest.mark.parametrize("direction", [1.0, -1.0])
def test_every_target_moves_its_own_joint_its_own_way(make: Make, direction: float) -> None:
    backend = start_all(make(N_JOINTS), in_the_air())
    hold(backend, 10, DEFAULT_POSE + direction * 0.3 * np.eye(N_JOINTS))
    moved = backend.state.joint_pos - DEFAULT_POSE
    own = direction * np.diag(moved)
    assert (own > 0.15).all()
    others = np.abs(moved - np.diag(np.diag(moved)))
    assert others.max() < 0.1


def test_joint_torques_stop_at_the_limits(make: Make) -> None:
    backend = start_all(make(N_JOINTS), in_the_air())
    hold(backend, 1, DEFAULT_POSE + 5.0 * np.eye(N_JOINTS))
    np.testing.assert_allclose(np.diag(backend.state.joint_torque), ROBOT.torque_limit_nm)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_angular_velocity_is_in_the_body_frame(make: Make, axis: int) -> None:
    spin = np.zeros(3)
    spin[axis] = 1.0
    yaw = np.pi / 2
    backend = start_all(make(), in_the_air(yaw=yaw, ang_vel=tuple(spin)))
    steps = 5
    hold(backend, steps)
    np.testing.assert_allclose(backend.state.base_ang_vel_body[0], spin, atol=0.06)
    half = steps * CONTROL_DT_S / 2
    turn = np.array([np.cos(half), *(np.sin(half) * spin)])
    # World vectors after the spin: turned in the body first, then by the start's heading.
    vectors = np.eye(3)
    expected = rotate(
        np.tile(from_yaw(np.array(yaw)), (3, 1)), rotate(np.tile(turn, (3, 1)), vectors)
    )
    found = rotate(np.tile(backend.state.base_quat[0], (3, 1)), vectors)
    np.testing.assert_allclose(found, expected, atol=0.01)


def test_a_push_adds_world_velocity_to_the_robots_it_names(make: Make) -> None:
    backend = start_all(make(3), in_the_air(yaw=1.2, lin_vel=(0.5, 0.0, 0.0)))
    backend.push(np.array([0, 2]), np.array([[0.3, -0.4], [-0.1, 0.2]]))
    expected = np.array([[0.8, -0.4], [0.5, 0.0], [0.4, 0.2]])
    np.testing.assert_allclose(backend.state.base_lin_vel_world[:, :2], expected)
    hold(backend, 5)
    np.testing.assert_allclose(backend.state.base_lin_vel_world[:, :2], expected, atol=1e-6)
    # The first substep may still move at the velocity before.
    assert backend.state.base_pos[:, 0] == pytest.approx(expected[:, 0] * 0.1, abs=0.005)


def randomised(backend: PhysicsBackend, indices: list[int]) -> None:
    """Reset each robot by the number that `indices` gives it, which tells all about its start.

    Odd numbers stand so close between walls that they bump into them.
    """
    names = sorted(TERRAINS)
    for robot, number in enumerate(indices):
        rng = np.random.default_rng(number)
        tile = make_tile(names[number % len(names)], 3, number)
        yaw = rng.uniform(-3, 3)
        walls = place_barriers(Passage("walls", 0.0, 0.6, 0.32), tile, np.zeros(2), yaw)
        start = start_at(z=STANDING_HEIGHT_M + 0.1, yaw=yaw)
        barriers = walls if number % 2 else ()
        backend.reset(robot, tile, barriers, draw_randomisation(rng), start)


def wave(backend: PhysicsBackend, steps: int) -> None:
    """The same swaying targets for every robot."""
    for step in range(steps):
        hold(backend, 1, DEFAULT_POSE + 0.2 * np.sin(0.5 * step + np.arange(N_JOINTS)))


def test_robots_depend_on_neither_threads_nor_neighbours_nor_place(make: Make) -> None:
    numbers = [0, 1, 2, 3, 4, 5]
    runs = {}
    for name, robots, threads in [
        ("one thread", numbers, 1),
        ("two threads", numbers, 2),
        ("reversed", numbers[::-1], 2),
        ("alone", [3], 1),
    ]:
        backend = make(len(robots), threads)
        randomised(backend, robots)
        wave(backend, 30)
        runs[name] = everything(backend)
    assert_equal_rows(runs["one thread"], runs["two threads"])
    assert_equal_rows(runs["one thread"], runs["reversed"], numbers, numbers[::-1])
    assert_equal_rows(runs["alone"], runs["one thread"], [0], [3])
    assert (runs["one thread"]["barrier_force"][1::2] > 0).any(), "some bumped into their walls"


def test_a_partial_reset_leaves_the_others_bit_identical(make: Make) -> None:
    whole, partly = make(4), make(4)
    for backend in (whole, partly):
        randomised(backend, [0, 1, 2, 3])
        wave(backend, 10)
    before = everything(partly)
    partly.reset(1, make_tile("stairs", 7, 0), (), nominal_draws(), in_the_air())
    others = [0, 2, 3]
    assert_equal_rows(everything(partly), before, others)
    wave(whole, 10)
    wave(partly, 10)
    assert_equal_rows(everything(partly), everything(whole), others)
    assert partly.state.base_pos[1, 2] > 40.0


def test_a_used_robot_starts_again_like_a_new_one(make: Make) -> None:
    used, new = make(2), make(2)
    randomised(used, [2, 3])
    wave(used, 15)
    for backend in (used, new):
        randomised(backend, [0, 1])
    at_start = everything(used)
    assert_equal_rows(at_start, everything(new))
    for backend in (used, new):
        wave(backend, 15)
    assert_equal_rows(everything(used), everything(new))


def test_position_runs_on_across_a_tiles_seam(make: Make) -> None:
    tile = make_tile("rough", 5, 0)
    velocity = np.array([3.0, -2.0])
    corner = tile.period_m / 2
    start = in_the_air(x=corner - 0.1, y=-corner + 0.1, lin_vel=(*velocity, 0.0))
    backend = start_all(make(), start, tile)
    previous = backend.state.base_pos[0].copy()
    for _ in range(20):
        hold(backend, 1)
        moved = backend.state.base_pos[0] - previous
        np.testing.assert_allclose(moved[:2], velocity * CONTROL_DT_S, atol=1e-6)
        feet = backend.state.foot_pos[0] - backend.state.base_pos[0]
        assert np.abs(rotate_inverse(backend.state.base_quat[:1], feet)).max() < 0.6
        previous = backend.state.base_pos[0].copy()
    assert previous[0] > corner + 0.5
    assert previous[1] < -corner - 0.5
