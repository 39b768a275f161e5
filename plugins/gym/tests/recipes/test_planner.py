"""Planning on the Adroit hand: it reaches what it is to reach, and sees the task's own world."""

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from gaitforge.plugins.gym.environments.tasks import find_task
from recipes.adroit.mppi import Objective, Planner, PlannerConfig, Points, Reference
from recipes.adroit.objectives import OBJECTIVES

LIGHT = PlannerConfig(horizon=16, samples=16, rounds=3)


def make_planner(env_id: str, config: PlannerConfig = LIGHT) -> Planner:
    return Planner(find_task(env_id), OBJECTIVES[env_id], config)


@pytest.fixture(scope="module", params=sorted(OBJECTIVES))
def planner(request: pytest.FixtureRequest) -> Iterator[Planner]:
    planner = make_planner(request.param)
    yield planner
    planner.close()


def play(planner: Planner, seed: int, steps: int) -> np.ndarray:
    planner.reset(seed, planner.no_reference(1))
    actions = []
    for _ in range(steps):
        actions.append(planner.act())
        planner.env.step(actions[-1])
    return np.array(actions)


def test_the_hand_comes_nearer_to_what_it_is_to_take(planner: Planner) -> None:
    data = planner.env.unwrapped.data
    thing = {"Door": "site S_handle"}.get(planner.env.spec.id[10:-3], "body Object")
    kind, name = thing.split()

    def away() -> float:
        palm = data.site("S_grasp").xpos
        return float(np.linalg.norm(palm - getattr(data, kind)(name).xpos))

    planner.reset(0, planner.no_reference(1))
    before = away()
    play(planner, 0, 30)
    assert away() < 0.6 * before


def test_a_seed_decides_every_action(planner: Planner) -> None:
    first = play(planner, 3, 6)
    assert first.dtype == np.float32
    assert np.abs(first).max() <= 1.0
    np.testing.assert_array_equal(play(planner, 3, 6), first)
    assert not np.array_equal(play(planner, 4, 6), first)


def test_a_reference_is_followed_where_nothing_speaks_against_it() -> None:
    idle = PlannerConfig(horizon=4, knots=2, samples=1, rounds=1, every=2)
    planner = make_planner("AdroitHandDoor-v1", idle)
    actions = np.linspace([-0.9] * 28, [1.2] * 28, 5)
    try:
        planner.reset(0, Reference(actions, np.zeros(5), 1))
        for step in range(8):
            wanted = np.clip(actions[min(step, 4)], -1.0, 1.0)
            action = planner.act()
            np.testing.assert_allclose(action, wanted, rtol=1e-6)
            planner.env.step(action)
        planner.reset(0, planner.no_reference(1))
        assert not planner.act().any()
    finally:
        planner.close()


def test_a_reference_waits_until_the_ball_is_as_near() -> None:
    idle = PlannerConfig(horizon=4, knots=2, samples=1, rounds=1, every=2)
    planner = make_planner("AdroitHandRelocate-v1", idle)
    actions = np.linspace([0.1] * 30, [0.5] * 30, 5)
    try:
        planner.reset(0, planner.no_reference(1))
        away = planner.distance()
        for distances, steps in [
            ([away, away, 0.05, 0.05, 0.05], [0, 1, 1, 2, 1, 2]),
            ([0.1, 0.1, 0.1, 0.1, 0.05], [0, 1, 0, 1, 0, 1]),
            ([away, 0.05, 0.05, 0.05, away], [0, 1, 2, 3, 4, 4]),
        ]:
            planner.reset(0, Reference(actions, np.array(distances), 1))
            for step in steps:
                action = planner.act()
                np.testing.assert_allclose(action[6:], actions[step, 6:], rtol=1e-6)
                assert not action[:6].any(), "the arm's, which depend on where the ball is"
    finally:
        planner.close()


def test_effort_is_what_a_difference_costs() -> None:
    reference = Reference(np.full((1, 28), 0.3), np.zeros(1), 1)
    apart = []
    for effort in (0.0, 10.0):
        config = PlannerConfig(horizon=16, samples=8, rounds=4, effort=effort)
        planner = make_planner("AdroitHandDoor-v1", config)
        planner.reset(1, reference)
        apart.append(float(np.square(planner.act() - 0.3).mean()))
        planner.close()
    assert apart[1] < 0.3 * apart[0]


def test_threads_change_nothing(planner: Planner) -> None:
    task = find_task(planner.env.spec.id)
    shared = Planner(task, OBJECTIVES[task.env_id], LIGHT, threads=2)
    try:
        np.testing.assert_array_equal(play(shared, 5, 5), play(planner, 5, 5))
    finally:
        shared.close()


def test_plans_are_judged_from_where_the_task_is() -> None:
    """Also after an episode has moved the door, and with the physics of the task itself."""
    seen: list[Points] = []

    def value(points: Points, positions: np.ndarray) -> np.ndarray:
        seen.append({name: point.copy() for name, point in points.items()})
        return np.zeros(positions.shape[:2])

    exact = PlannerConfig(horizon=4, knots=2, samples=1, rounds=1, every=4, substeps=5)
    task = find_task("AdroitHandDoor-v1")
    planner = Planner(task, Objective(("site S_handle", "body palm"), value), exact)
    try:
        for seed in (1, 2):
            planner.reset(seed, planner.no_reference(1))
            for _ in range(5):  # the plan stays zero: it is what the task then does
                planner.env.step(np.zeros(planner.act_dim, np.float32))
            data = planner.env.unwrapped.data
            planner.act()
            planner.env.step(np.zeros(planner.act_dim, np.float32))
            handle, palm = seen[-1]["site S_handle"][0, 0], seen[-1]["body palm"][0, 0]
            # Other integrator: not to the last bit.
            np.testing.assert_allclose(handle, data.site("S_handle").xpos, atol=1e-3)
            np.testing.assert_allclose(palm, data.body("palm").xpos, atol=3e-3)
    finally:
        planner.close()
