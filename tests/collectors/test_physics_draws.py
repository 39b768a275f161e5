"""Every randomisation draw does to a back end's robot what its name says."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from collectors.physics import BACKENDS, PhysicsBackend, make_backend
from collectors.robots import LEGS, N_JOINTS
from collectors.terrains import make_tile, tile_heights
from tests.collectors.making import (
    DEFAULT_POSE,
    FIRM_STANCE,
    FLAT,
    ROBOT,
    draws_with,
    hold,
    in_the_air,
    start_at,
)

GRAVITY_MS2 = 9.81
STEP_RAD = 0.3

MakeWith = Callable[[str, list[float]], PhysicsBackend]


@pytest.fixture(params=sorted(BACKENDS))
def make_with(request: pytest.FixtureRequest) -> Iterator[MakeWith]:
    """make_with(draw, values): a robot for each value of the draw, high in the air."""
    made: list[PhysicsBackend] = []

    def new(draw: str, values: list[float]) -> PhysicsBackend:
        backend = make_backend(request.param, ROBOT, len(values), 1)
        made.append(backend)
        for index, value in enumerate(values):
            backend.reset(index, FLAT, (), draws_with(**{draw: value}), in_the_air())
        return backend

    yield new
    for backend in made:
        backend.close()


def settle(backend: PhysicsBackend, draw: str, values: list[float]) -> None:
    """Let the robots stand on flat ground instead."""
    for index, value in enumerate(values):
        backend.reset(index, FLAT, (), draws_with(**{draw: value}), start_at(joint_pos=FIRM_STANCE))
    hold(backend, 60, FIRM_STANCE)


def calf_response(backend: PhysicsBackend, steps: int) -> np.ndarray:
    """(N,) how far the front left calf has moved towards a target 0.3 rad away."""
    target = DEFAULT_POSE.copy()
    target[2] += STEP_RAD
    hold(backend, steps, target)
    return backend.state.joint_pos[:, 2] - DEFAULT_POSE[2]


@pytest.mark.parametrize("draw", ["kp_factor", "motor_strength"])
def test_stiffer_or_stronger_motors_respond_faster(make_with: MakeWith, draw: str) -> None:
    soft, nominal, stiff = calf_response(make_with(draw, [0.9, 1.0, 1.1]), 1)
    assert 0.0 < soft < nominal < stiff


def test_more_damping_responds_more_slowly(make_with: MakeWith) -> None:
    light, nominal, heavy = calf_response(make_with("kd_factor", [0.9, 1.0, 1.1]), 2)
    assert light > nominal > heavy > 0.0


def test_stiffer_legs_stand_higher(make_with: MakeWith) -> None:
    values = [0.9, 1.1]
    backend = make_with("kp_factor", values)
    settle(backend, "kp_factor", values)
    soft, stiff = backend.state.base_pos[:, 2]
    assert 0.25 < soft < stiff < 0.31


def test_lag_delays_the_response_by_substeps(make_with: MakeWith) -> None:
    backend = make_with("action_lag_substeps", [0, 1, 2, 3])
    response = calf_response(backend, 1)
    assert (np.diff(response) < 0.0).all()
    assert response[-1] > 0.0
    # The delay is one of time, not of strength: all arrive at the target.
    assert calf_response(backend, 40) == pytest.approx(STEP_RAD, abs=0.02)


def test_joint_offsets_shift_where_joints_come_to_rest(make_with: MakeWith) -> None:
    backend = make_with("joint_offset_7_rad", [-0.02, 0.0, 0.02])
    hold(backend, 40)
    rest = backend.state.joint_pos - DEFAULT_POSE
    np.testing.assert_allclose(rest[:, 7], [-0.02, 0.0, 0.02], atol=2e-3)
    others = np.delete(rest, 7, axis=1)
    assert np.abs(others).max() < 2e-3


def test_an_added_mass_weighs_on_the_feet(make_with: MakeWith) -> None:
    values = [-1.0, 0.0, 3.0]
    backend = make_with("base_mass_offset_kg", values)
    settle(backend, "base_mass_offset_kg", values)
    weight = backend.state.foot_force[..., 2].sum(axis=1)
    np.testing.assert_allclose(weight, (ROBOT.mass_kg + np.array(values)) * GRAVITY_MS2, rtol=0.02)


@pytest.mark.parametrize(
    ("draw", "loaded"), [("com_offset_x_m", "FL FR"), ("com_offset_y_m", "FL RL")]
)
def test_the_centre_of_mass_loads_the_feet_it_moves_to(
    make_with: MakeWith, draw: str, loaded: str
) -> None:
    values = [-0.03, 0.03]
    backend = make_with(draw, values)
    settle(backend, draw, values)
    feet = [leg in loaded.split() for leg in LEGS]
    away, towards = backend.state.foot_force[:, feet, 2].sum(axis=1)
    assert towards > away + 20.0


def test_a_spinning_robot_turns_about_its_raised_or_lowered_centre_of_mass(
    make_with: MakeWith,
) -> None:
    values = [-0.05, 0.05]
    backend = make_with("com_offset_z_m", values)
    for index, value in enumerate(values):
        start = in_the_air(ang_vel=(3.0, 0.0, 0.0))
        backend.reset(index, FLAT, (), draws_with(com_offset_z_m=value), start)
    hold(backend, 25)
    # The origin, at rest at first, circles a point r above it: y = r (sin wt - wt).
    low, high = backend.state.base_pos[:, 1]
    lever = 0.05 * 13.042 / ROBOT.mass_kg
    assert high - low == pytest.approx(2 * lever * (np.sin(1.5) - 1.5), rel=0.25)


def test_little_friction_slides_down_a_steep_slope_and_much_holds(make_with: MakeWith) -> None:
    tile = make_tile("slope", 8, 0)
    frictions = [0.3, 1.25]
    backend = make_with("friction", frictions)
    for index, friction in enumerate(frictions):
        ground = float(tile_heights(tile, np.array([[2.5, 0.0]]))[0])
        start = start_at(x=2.5, z=ground + 0.45, joint_pos=FIRM_STANCE)
        backend.reset(index, tile, (), draws_with(friction=friction), start)
    hold(backend, 25, FIRM_STANCE)
    landed = backend.state.foot_pos.copy()
    hold(backend, 25, FIRM_STANCE)
    slid = np.linalg.norm(backend.state.foot_pos - landed, axis=2).mean(axis=1)
    assert slid[0] > 0.2
    assert slid[1] < 0.06


def test_draws_replace_the_ones_before(make_with: MakeWith) -> None:
    backend = make_with("base_mass_offset_kg", [3.0, 0.0])
    for index in range(2):
        backend.reset(index, FLAT, (), draws_with(), in_the_air())
    response = calf_response(backend, 3)
    assert response[0] == response[1]
    np.testing.assert_array_equal(backend.state.joint_vel[0], backend.state.joint_vel[1])
    assert backend.state.joint_pos.shape == (2, N_JOINTS)
