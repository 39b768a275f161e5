"""What the `isaacgym` back end does beyond the contract that all back ends keep.

It runs on the double, whose physics is MuJoCo's and whose conventions are Isaac Gym's: off the
ground, robots move as those of the MuJoCo back end.
"""

import os
import signal
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.physics.interface import PhysicsBackend, RobotStart
from gaitforge.collectors.physics.mujoco.backend import MujocoBackend
from gaitforge.collectors.scenarios.randomisation import (
    DEFAULT,
    DRAW_INDEX,
    DRAWS,
    Randomisation,
)
from gaitforge.collectors.scenarios.terrains import make_tile
from gaitforge.plugins.simulators.isaacgym.backend import FRICTION_BUCKETS, IsaacGymBackend
from gaitforge.plugins.simulators.isaacgym.process import WorkerError
from gaitforge.plugins.simulators.tests.isaacgym.double import CONFIG, use_the_double
from tests.collectors.making import (
    DEFAULT_POSE,
    FIRM_STANCE,
    ROBOT,
    STANDING_HEIGHT_M,
    draws_with,
    hold,
    in_the_air,
)

FRICTION = DRAWS[DRAW_INDEX["friction"]].default
MOTION = ("base_pos", "base_quat", "base_lin_vel_world", "base_ang_vel_body", "joint_pos")
WEIGHT_N = ROBOT.mass_kg * 9.81


@pytest.fixture(scope="module")
def double() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_the_double(patch)
        yield


@pytest.fixture(scope="module")
def backend(double: None) -> Iterator[IsaacGymBackend]:
    """Four robots that several tests use one after the other."""
    made = IsaacGymBackend(ROBOT, 4, 1, CONFIG)
    yield made
    made.close()


def spinning(number: int) -> RobotStart:
    """A start high above the seam of a tile, in full motion."""
    rng = np.random.default_rng(number)
    return in_the_air(
        x=4.9 - 0.02 * number,
        y=-4.9,
        yaw=rng.uniform(-3, 3),
        lin_vel=(2.0, -1.5, 1.0),
        ang_vel=tuple(rng.uniform(-2, 2, 3)),
        joint_pos=DEFAULT_POSE + rng.uniform(-0.1, 0.1, 12),
    )


def sway(step: int) -> np.ndarray:
    return DEFAULT_POSE + 0.2 * np.sin(0.5 * step + np.arange(12))


def assert_same_motion(first: PhysicsBackend, second: PhysicsBackend, rows: list[int]) -> None:
    for name in MOTION:
        np.testing.assert_allclose(
            getattr(first.state, name)[rows],
            getattr(second.state, name)[rows],
            atol=5e-5,
            err_msg=name,
        )


def test_robots_move_as_the_mujoco_back_ends_do(backend: IsaacGymBackend) -> None:
    """Frames, centres of mass, gains, lag, friction of joints, pushes and seams, all at once."""
    other = MujocoBackend(ROBOT, 4, 1)
    tiles = [make_tile(terrain, 4, 1) for terrain in ("flat", "rough", "stairs", "slope")]
    rng = np.random.default_rng(5)
    for index in range(4):
        draws = backend.realised(DEFAULT.draw(rng, 0, ROBOT))
        for each in (backend, other):
            each.reset(index, replace(spinning(index), tile=tiles[index], draws=draws))
    for step in range(30):
        if step in (0, 10):  # at a start, to which it adds, and later
            for each in (backend, other):
                each.push(np.array([1, 3]), np.array([[0.5, -0.3], [0.1, 0.2]]))
        for each in (backend, other):
            hold(each, 1, sway(step))
        assert_same_motion(backend, other, [0, 1, 2, 3])
        np.testing.assert_allclose(backend.state.joint_vel, other.state.joint_vel, atol=1e-3)
        np.testing.assert_allclose(backend.state.joint_torque, other.state.joint_torque, atol=1e-3)
    assert (backend.state.base_pos[:, 0] > 5.5).all(), "they crossed the seam"
    other.close()


def test_friction_is_the_nearest_of_few_values(backend: IsaacGymBackend) -> None:
    frictions, column = np.linspace(FRICTION.low, FRICTION.high, 5000), DRAW_INDEX["friction"]
    draws = np.stack([draws_with(friction=friction) for friction in frictions])
    found = backend.realised(draws)
    assert len(np.unique(found[:, column])) == FRICTION_BUCKETS <= 64
    half_bucket = (FRICTION.high - FRICTION.low) / (FRICTION_BUCKETS - 1) / 2
    assert np.abs(found[:, column] - frictions).max() <= half_bucket + 1e-12
    np.testing.assert_array_equal(np.delete(found, column, 1), np.delete(draws, column, 1))


def assert_a_new_world_carries_on(changing: IsaacGymBackend, fresh_process: bool) -> None:
    """Beside a back end without worlds; a world that need not change stays."""
    steady = MujocoBackend(ROBOT, 4, 1)
    lagging = draws_with(action_lag_substeps=3, com_offset_x_m=0.03)
    for each in (changing, steady):
        for index in range(4):
            each.reset(index, replace(spinning(index), draws=lagging))
    pids = []
    stairs = make_tile("stairs", 3, 0)
    for step in range(24):
        if step == 8:
            # Nothing fixed changes: other gains, another start.
            for each in (changing, steady):
                each.reset(2, replace(spinning(7), draws=lagging + 0.0))
        if step == 16:
            for each in (changing, steady):
                each.push(np.array([0]), np.array([[0.2, 0.1]]))
                heavier = draws_with(base_mass_offset_kg=2.0)
                each.reset(1, replace(spinning(9), tile=stairs, draws=heavier))
        for each in (changing, steady):
            hold(each, 1, sway(step))
        pids.append(changing._worker.pid)
        assert_same_motion(changing, steady, [0, 1, 2, 3])
    assert len(set(pids[:16])) == 1
    assert (pids[16] != pids[15]) == fresh_process
    assert len(set(pids[16:])) == 1
    steady.close()


def test_a_new_world_in_the_same_process_carries_on(backend: IsaacGymBackend) -> None:
    assert_a_new_world_carries_on(backend, fresh_process=False)


@pytest.mark.long
def test_robots_stand_until_they_are_reset_go_on_in_new_processes_and_report_their_death(
    double: None,
) -> None:
    made = IsaacGymBackend(ROBOT, 4, 1, CONFIG, fresh_process=True)
    hold(made, 25, FIRM_STANCE)
    assert (made.state.foot_force[..., 2].sum(axis=1) > WEIGHT_N / 2).all()
    assert (np.abs(made.state.base_pos[:, 2] - STANDING_HEIGHT_M) < 0.15).all()
    assert_a_new_world_carries_on(made, fresh_process=True)
    os.kill(made._worker.pid, signal.SIGKILL)
    with pytest.raises(WorkerError, match="it was killed by SIGKILL") as error:
        hold(made, 1)
    assert "\n" not in str(error.value)
    with pytest.raises(WorkerError, match="it has ended"):
        hold(made, 1)
    made.close()
    made.close()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"friction": "0.1:1"}, "isaacgym cannot realise friction 0.1"),
        ({"action_lag_substeps": "0:8"}, "isaacgym cannot realise action_lag_substeps 8"),
        (
            {"gravity_ms2": 5, "payload_kg": 1},
            "isaacgym cannot vary gravity_ms2, payload_kg; mujoco",
        ),
    ],
)
def test_a_randomisation_that_it_cannot_simulate_is_refused(
    double: None, values: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        LeggedEnvironment(ROBOT, 1, 1, "isaacgym", randomisation=Randomisation.parsed(values))
