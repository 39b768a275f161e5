"""The contract of every physics back end: barriers stop robots, and say how hard they were hit.

Robots fly at most of them, so that nothing but the barrier acts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields

import numpy as np
import pytest

from collectors.passages import Barrier, Passage, place_barriers
from collectors.physics import BACKENDS, PhysicsBackend, PhysicsState, make_backend
from collectors.randomisation import nominal_draws
from collectors.robots import N_JOINTS
from collectors.terrains import make_tile
from tests.collectors.making import (
    DEFAULT_POSE,
    FIRM_STANCE,
    FLAT,
    ROBOT,
    STANDING_HEIGHT_M,
    hold,
    in_the_air,
    start_at,
)

HEIGHT_M = 50.0
SPEED_MS = 2.0
FLIGHT_STEPS = 30
"""0.6 s: a robot flies 1.2 m ahead and falls 1.8 m."""
NOSE_M = ROBOT.trunk_half_size_m[0]

Fly = Callable[..., PhysicsBackend]


@pytest.fixture(params=sorted(BACKENDS))
def fly(request: pytest.FixtureRequest) -> Iterator[Fly]:
    """fly(barriers, ...): a robot for each list of barriers, in the air and moving ahead."""
    made: list[PhysicsBackend] = []

    def start(*barriers: Sequence[Barrier]) -> PhysicsBackend:
        made.append(make_backend(request.param, ROBOT, len(barriers), 1))
        for index, around in enumerate(barriers):
            take_off(made[-1], index, around)
        return made[-1]

    yield start
    for backend in made:
        backend.close()


def take_off(backend: PhysicsBackend, index: int, barriers: Sequence[Barrier]) -> None:
    start = in_the_air(z=HEIGHT_M, lin_vel=(SPEED_MS, 0.0, 0.0))
    backend.reset(index, FLAT, barriers, nominal_draws(), start)


def box(x: float, y: float, z: float, half: tuple[float, float, float], yaw: float = 0) -> Barrier:
    """A barrier with its centre at `z` above the robot's trunk at the start."""
    return Barrier((x, y, HEIGHT_M + z), half, yaw)


def walls(gap_m: float) -> list[Barrier]:
    """A pair that reaches so deep that no robot falls past it."""
    sides = (gap_m / 2 + 0.05, -gap_m / 2 - 0.05)
    return [box(0.9, y, -0.8, (0.3, 0.05, 1.5)) for y in sides]


def bar(low_m: float) -> list[Barrier]:
    """A bar whose lower edge is this far above the trunk's middle at the start."""
    return [box(0.9, 0.0, low_m + 0.3, (0.3, 0.8, 0.3))]


def hardest(backend: PhysicsBackend, steps: int = FLIGHT_STEPS) -> tuple[np.ndarray, np.ndarray]:
    """(N,) the largest force on any part and on the body over some steps."""
    force, on_body = np.zeros(backend.num_robots), np.zeros(backend.num_robots)
    for _ in range(steps):
        hold(backend, 1)
        force = np.maximum(force, backend.state.barrier_force)
        on_body = np.maximum(on_body, backend.state.barrier_body_force)
    return force, on_body


def rows(backend: PhysicsBackend, index: int) -> dict[str, np.ndarray]:
    return {f.name: getattr(backend.state, f.name)[index] for f in fields(PhysicsState)}


def assert_same_bits(backend: PhysicsBackend, first: int, second: int) -> None:
    others = rows(backend, second)
    for name, values in rows(backend, first).items():
        np.testing.assert_array_equal(values, others[name], err_msg=name)


def test_walls_stop_who_is_wider_and_let_through_who_is_narrower(fly: Fly) -> None:
    backend = fly((), walls(ROBOT.width_m - 0.06), walls(ROBOT.width_m + 0.05))
    force, on_body = hardest(backend)
    free, stopped, through = backend.state.base_pos[:, 0]
    assert stopped + NOSE_M < 0.65, "not more than a hip's length between the walls"
    assert force[1] > 100.0
    assert on_body[1] > 100.0
    assert through == free == pytest.approx(SPEED_MS * FLIGHT_STEPS * 0.02)
    assert not force[[0, 2]].any()
    assert not on_body[[0, 2]].any()
    assert_same_bits(backend, 0, 2)


def test_a_bar_stops_who_is_taller_and_lets_through_who_is_lower(fly: Fly) -> None:
    # The robot is a few centimetres lower by the time it arrives.
    backend = fly((), bar(-0.1), bar(ROBOT.trunk_half_size_m[2]))
    force, on_body = hardest(backend)
    free, stopped, through = backend.state.base_pos[:, 0]
    assert stopped + NOSE_M < 0.62
    assert on_body[1] > 100.0
    assert force[1] > 100.0
    assert through == free
    assert not force[[0, 2]].any()
    assert_same_bits(backend, 0, 2)


def test_a_barrier_turns_with_its_yaw(fly: Fly) -> None:
    # Beside the way, and turned across it.
    half = (0.5, 0.05, 1.5)
    backend = fly([box(0.9, 0.5, 0.0, half)], [box(0.9, 0.5, 0.0, half, yaw=np.pi / 2)])
    force, _ = hardest(backend)
    assert backend.state.base_pos[1, 0] < 0.8 < backend.state.base_pos[0, 0]
    assert force[0] == 0.0
    assert force[1] > 100.0


@pytest.mark.parametrize(
    ("part", "barrier", "is_body"),
    [
        ("foot", box(0.55, 0.138, -0.4, (0.2, 0.02, 0.05)), False),
        ("thigh or calf", box(0.55, 0.138, -0.2, (0.2, 0.02, 0.05)), False),
        ("trunk", box(0.7, 0.0, 0.0, (0.2, 0.02, 0.2)), True),
        ("hip", box(0.6, 0.14, 0.02, (0.2, 0.01, 0.03)), True),
    ],
)
def test_the_force_on_the_body_is_that_on_trunk_and_hips_alone(
    fly: Fly, part: str, barrier: Barrier, is_body: bool
) -> None:
    backend = fly([barrier])
    for _ in range(FLIGHT_STEPS):
        hold(backend, 1)
        if backend.state.barrier_force[0] > 1.0:
            break
    assert backend.state.barrier_force[0] > 1.0, part
    assert (backend.state.barrier_body_force[0] > 1.0) == is_body, part


def test_barriers_are_no_ground(fly: Fly) -> None:
    backend = fly(walls(0.2), bar(-0.1), [box(0.55, 0.138, -0.4, (0.2, 0.02, 0.05))])
    for _ in range(FLIGHT_STEPS):
        hold(backend, 1)
        assert not backend.state.trunk_force.any()
        assert not backend.state.foot_force.any()
        assert not backend.state.knee_force.any()


def test_a_robot_that_stands_beside_a_wall_feels_it_and_the_ground_apart(fly: Fly) -> None:
    backend = fly(())
    # Overlapping the left hips by a few millimetres, at their height once the robot stands low.
    wall = Barrier((0.0, 0.155 + 0.05 - 0.005, 0.4), (0.5, 0.05, 0.16), 0.0)
    start = start_at(joint_pos=FIRM_STANCE)
    backend.reset(0, FLAT, [wall], nominal_draws(), start)
    pressed = 0.0
    for _ in range(60):
        hold(backend, 1, FIRM_STANCE)
        pressed = max(pressed, backend.state.barrier_force[0])
        assert not backend.state.trunk_force.any()
    assert pressed > 5.0
    assert backend.state.foot_force[0, :, 2].sum() == pytest.approx(ROBOT.mass_kg * 9.81, rel=0.1)


def test_a_robot_under_a_high_bar_walks_as_on_open_ground(fly: Fly) -> None:
    backend = fly((), ())
    under = Barrier((0.0, 0.0, STANDING_HEIGHT_M + 0.1 + 0.3), (0.5, 0.8, 0.3), 0.0)
    for index, barriers in enumerate(((), (under,))):
        backend.reset(index, FLAT, barriers, nominal_draws(), start_at())
    for step in range(40):
        hold(backend, 1, FIRM_STANCE + 0.1 * np.sin(0.4 * step + np.arange(N_JOINTS)))
        assert not backend.state.barrier_force.any()
        assert not backend.state.barrier_body_force.any()
        assert_same_bits(backend, 0, 1)


@pytest.mark.parametrize("terrain", ["flat", "rough", "stairs"])
def test_open_ground_has_no_barriers(fly: Fly, terrain: str) -> None:
    backend = fly(())
    tile = make_tile(terrain, 5, 1)
    backend.reset(0, tile, (), nominal_draws(), start_at(z=STANDING_HEIGHT_M + 0.1))
    for step in range(50):
        hold(backend, 1, DEFAULT_POSE + 0.5 * np.sin(0.4 * step + np.arange(N_JOINTS)))
        assert not backend.state.barrier_force.any()
        assert not backend.state.barrier_body_force.any()


def test_a_robots_barriers_are_its_own(fly: Fly) -> None:
    backend = fly((), walls(0.2), ())
    force, _ = hardest(backend)
    assert (force > 0).tolist() == [False, True, False]
    assert_same_bits(backend, 0, 2)


def test_a_reset_removes_a_robots_barriers_and_leaves_the_others_theirs(fly: Fly) -> None:
    backend = fly(walls(0.2), walls(0.2))
    hardest(backend)
    for index, barriers in enumerate(((), walls(0.2))):
        take_off(backend, index, barriers)
    assert not backend.state.barrier_force.any(), "a start has no contact yet"
    force, _ = hardest(backend)
    assert (force > 0).tolist() == [False, True]
    fresh = fly((), walls(0.2))
    hardest(fresh)
    for index in range(2):
        used, new = rows(backend, index), rows(fresh, index)
        for name, values in used.items():
            np.testing.assert_array_equal(values, new[name], err_msg=name)


def test_a_reset_replaces_two_barriers_by_one(fly: Fly) -> None:
    backend = fly(walls(0.2), ())
    take_off(backend, 0, bar(0.2))
    force, _ = hardest(backend)
    assert not force.any()
    assert_same_bits(backend, 0, 1)


def test_the_same_barriers_act_the_same(fly: Fly) -> None:
    placed = place_barriers(Passage("walls", 0.5, 0.6, 0.3), FLAT, np.array([0.01, 0.02]), 0.1)
    raised = [
        Barrier((b.centre_m[0], b.centre_m[1], HEIGHT_M), (*b.half_size_m[:2], 1.9), b.yaw_rad)
        for b in placed
    ]
    backend = fly(raised, (), raised)
    force, _ = hardest(backend)
    assert force[0] > 1.0
    assert_same_bits(backend, 0, 2)


def test_more_barriers_than_a_model_holds_are_refused(fly: Fly) -> None:
    with pytest.raises(ValueError, match="3 barriers; a model holds 2"):
        fly([*walls(0.3), *bar(0.3)])
