"""Where trunks are, from compiled loops, against what NumPy and the definitions say."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.legged.observations import SCAN_POINTS
from gaitforge.collectors.legged.rewards import FOOTPRINT, Geometry, on_track
from gaitforge.collectors.physics.interface import PhysicsState
from gaitforge.collectors.robots.kinematics import N_COMMANDS, C
from gaitforge.collectors.rotations import gravity_in_body, rotate_inverse, wrapped, yaw_of
from gaitforge.collectors.scenarios.terrains import (
    TerrainBatch,
    TerrainTile,
    make_tile,
    tile_heights,
)

N = 6
TILES = [make_tile(name, 6, 3) for name in ("flat", "rough", "slope", "stairs", "obstacles")]


def states(seed: int, robots: int = N) -> PhysicsState:
    """Robots anywhere, in any attitude and motion."""
    rng = np.random.default_rng(seed)
    quat = rng.normal(size=(robots, 4))
    quat /= np.linalg.norm(quat, axis=1, keepdims=True)
    shapes = {
        "base_pos": (3,),
        "base_lin_vel_world": (3,),
        "base_ang_vel_body": (3,),
        "joint_pos": (12,),
        "joint_vel": (12,),
        "joint_torque": (12,),
        "foot_pos": (4, 3),
        "foot_vel": (4, 3),
        "foot_force": (4, 3),
        "trunk_force": (3,),
        "knee_force": (4, 3),
        "barrier_force": (),
        "barrier_body_force": (),
    }
    drawn = {name: rng.normal(0, 4, (robots, *shape)) for name, shape in shapes.items()}
    return PhysicsState(base_quat=quat, **drawn)


def ground(robots: int = N) -> TerrainBatch:
    batch = TerrainBatch(robots)
    for index in range(robots):
        batch.set(index, TILES[index % len(TILES)])
    return batch


@given(st.integers(0, 10_000))
def test_motion_is_told_in_the_trunk_and_along_the_heading(seed: int) -> None:
    state = states(seed)
    geometry = Geometry.of(state, ground())
    velocity, yaw = state.base_lin_vel_world, yaw_of(state.base_quat)
    gravity = gravity_in_body(state.base_quat)
    np.testing.assert_array_equal(geometry.gravity, gravity)
    np.testing.assert_array_equal(geometry.lin_vel_body, rotate_inverse(state.base_quat, velocity))
    ahead = np.cos(yaw) * velocity[:, 0] + np.sin(yaw) * velocity[:, 1]
    left = np.cos(yaw) * velocity[:, 1] - np.sin(yaw) * velocity[:, 0]
    np.testing.assert_allclose(geometry.lin_vel_heading, np.stack([ahead, left], axis=1))
    turning = -(gravity * state.base_ang_vel_body).sum(axis=1)
    np.testing.assert_allclose(geometry.yaw_rate, turning, atol=1e-12)


@given(st.integers(0, 10_000))
def test_the_scan_reads_each_robots_own_tile_and_gives_the_plane_under_it(seed: int) -> None:
    state, batch = states(seed), ground()
    geometry = Geometry.of(state, batch)
    yaw = yaw_of(state.base_quat)
    turn = np.array([[np.cos(yaw), np.sin(yaw)], [-np.sin(yaw), np.cos(yaw)]])
    points = np.einsum("pk,kjn->npj", SCAN_POINTS, turn) + state.base_pos[:, None, :2]
    # A point on the border of two cells may fall to either.
    grounds = [tile_heights(TILES[i % len(TILES)], own) for i, own in enumerate(points)]
    differ = geometry.scan != np.stack(grounds)
    assert differ.mean() < 0.02
    under, places = geometry.scan[:, FOOTPRINT], SCAN_POINTS[FOOTPRINT]
    basis = np.column_stack([places, np.ones(len(places))])
    plane = np.linalg.lstsq(basis, under.T, rcond=None)[0]
    np.testing.assert_allclose(geometry.slope, plane[:2].T, atol=1e-9)
    np.testing.assert_allclose(geometry.height, state.base_pos[:, 2] - plane[2], atol=1e-9)


def test_gravity_is_asked_for_across_the_plane_and_as_commanded() -> None:
    axis = (np.arange(121) - 60) * 0.1
    heights = np.broadcast_to(0.2 * axis, (121, 121)).astype(np.float32)
    batch = TerrainBatch(1)
    batch.set(0, TerrainTile(heights, 0.1, 1000.0))
    state = states(0, 1)
    state.base_pos[:] = 0.0
    state.base_quat[:] = 1.0, 0.0, 0.0, 0.0
    geometry = Geometry.of(state, batch)
    np.testing.assert_allclose(geometry.slope, [[0.2, 0.0]], atol=1e-6)
    normal = np.array([-0.2, 0.0, 1.0]) / np.sqrt(1.04)
    along = np.array([1.0, 0.0, 0.2]) / np.sqrt(1.04)
    # Gravity along the trunk's x and z when its x runs up the plane and its z stands on it.
    expected = [-along[2], 0.0, -normal[2]]
    desired = geometry.desired_gravity(np.zeros((1, N_COMMANDS)))
    np.testing.assert_allclose(desired, [expected], atol=1e-6)
    batch.set(0, TILES[0])
    level = Geometry.of(state, batch)
    for c, angle, asked in (
        (C.BODY_PITCH, 0.3, (np.sin(0.3), 0.0, -np.cos(0.3))),
        (C.BODY_ROLL, 0.4, (0.0, -np.sin(0.4), -np.cos(0.4))),
    ):
        command = angle * (np.arange(N_COMMANDS) == c)[None]
        np.testing.assert_allclose(level.desired_gravity(command), [asked], atol=1e-12)


@given(st.floats(-3, 3), st.floats(-3, 3), st.floats(-3.1, 3.1), st.floats(-3.1, 3.1))
def test_who_walks_along_a_track_is_that_far_along_it(
    along: float, across: float, yaw: float, heading: float
) -> None:
    c, s = np.cos(yaw), np.sin(yaw)
    origin = np.array([[0.5, -1.5]])
    place = origin[0] + [c * along - s * across, s * along + c * across]
    found = on_track(np.array([[*place, 0.4]]), np.array([yaw + heading]), origin, np.array([yaw]))
    np.testing.assert_allclose(found, [[along, across, heading]], atol=1e-9)


@given(st.floats(-6.2, 6.2))
def test_an_angle_is_wrapped_as_a_remainder_is(angle: float) -> None:
    found = float(wrapped(np.array(angle)))
    assert -np.pi <= found <= np.pi
    assert found == pytest.approx((angle + np.pi) % (2 * np.pi) - np.pi, abs=1e-12)


def test_a_place_that_is_no_number_has_some_height_of_the_tile() -> None:
    points = np.array([[np.nan, 0.0], [np.inf, -np.inf], [1e300, 0.0]])
    for tile in TILES:
        assert np.isin(tile_heights(tile, points), tile.heights).all()
