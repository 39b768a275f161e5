"""What only the batch of MuJoCo Warp can get wrong: tiles, memory, devices."""

# MuJoCo's compiled modules come without type stubs.
# pyright: reportAttributeAccessIssue=false

import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.physics import availability, is_exact, processor_of
from gaitforge.collectors.physics.interface import BackendUnavailable, PhysicsBackend
from gaitforge.collectors.physics.mujoco.model import GROUND, build_model, write_tile
from gaitforge.collectors.physics.scene import (
    DEFAULT_POSE,
    FIRM_STANCE,
    STANDING_HEIGHT_M,
    hold,
    in_the_air,
    start_at,
)
from gaitforge.collectors.robots.robot import N_JOINTS, RobotError, load_robot
from gaitforge.collectors.scenarios.randomisation import DEFAULT
from gaitforge.collectors.scenarios.terrains import TERRAINS, Passage, make_tile, place_barriers
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.simulators.mujoco_warp.warp_backend import (
    MujocoWarpBackend,
    installed_version,
)
from tests.collectors.making import ROBOT
from tests.collectors.robots.robot_folders import robot_folder

if TYPE_CHECKING:
    from gaitforge.plugins.simulators.mujoco_warp.worlds import WorldLimits

HERE = availability("mujoco_warp")
needs_warp = pytest.mark.skipif(not HERE.available, reason=HERE.why_not)

Make = Callable[..., PhysicsBackend]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes back ends of Warp's and closes them."""
    made: list[PhysicsBackend] = []

    def new(robots: int, limits: "WorldLimits | None" = None) -> PhysicsBackend:
        made.append(MujocoWarpBackend(ROBOT, robots, 1, limits))
        return made[-1]

    yield new
    for backend in made:
        backend.close()
        backend.close()


@pytest.mark.parametrize("module", ["warp", "mujoco_warp"])
def test_without_the_packages_it_says_how_to_install_them(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    found = availability("mujoco_warp")
    assert not found.available
    assert "pip install -e '.[warp]'" in found.why_not
    with pytest.raises(BackendUnavailable, match=r"not installed: run .* -e '.\[warp\]'"):
        MujocoWarpBackend(ROBOT, 1, 1)


def test_its_device_is_known_before_it_is_built() -> None:
    assert (is_exact("mujoco_warp"), processor_of("mujoco_warp")) == (False, "cuda")
    assert LeggedPlan(sim="mujoco_warp").processor == "cuda", "its jobs get a GPU"


@needs_warp
def test_its_version_is_known_before_it_is_built() -> None:
    told = LeggedPlan(sim="mujoco_warp").simulator()
    assert told == ("mujoco_warp", installed_version()) == ("mujoco_warp", HERE.version)


@pytest.mark.slow
@needs_warp
def test_a_device_that_is_not_here_is_refused(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setenv("GAITFORGE_WARP_DEVICE", "abacus")
    with pytest.raises(ValueError, match=r"GAITFORGE_WARP_DEVICE is 'abacus'; allowed: cpu"):
        make(1)


@needs_warp
def test_an_mjcf_with_what_warp_lacks_is_refused(tmp_path: Path) -> None:
    robot = load_robot(str(robot_folder(tmp_path, mjcf=[("<option ", '<option solver="PGS" ')])))
    with pytest.raises(RobotError, match=r"MuJoCo Warp cannot simulate it: mjSOL_PGS"):
        MujocoWarpBackend(robot, 1, 1)


def scatter(backend: PhysicsBackend) -> None:
    """Robots on all terrains in turn, with draws of their own, every second between walls."""
    names = sorted(TERRAINS)
    for robot in range(backend.num_robots):
        rng = np.random.default_rng(robot)
        tile = make_tile(names[robot % len(names)], 3, robot)
        yaw = rng.uniform(-3, 3)
        walls = place_barriers(Passage("walls", 0.0, 0.6, 0.32), tile, np.zeros(2), yaw)
        start = start_at(z=STANDING_HEIGHT_M + 0.05, yaw=yaw, lin_vel=(0.4, -0.2, 0.0))
        barriers, draws = walls if robot % 2 else (), DEFAULT.draw(rng, robot, ROBOT)
        backend.reset(robot, replace(start, tile=tile, barriers=barriers, draws=draws))


def sway(step: int) -> np.ndarray:
    return DEFAULT_POSE + 0.2 * np.sin(0.5 * step + np.arange(N_JOINTS))


@needs_warp
@pytest.mark.long
def test_memory_for_contacts_grows_and_the_step_is_done_again(
    make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    from gaitforge.plugins.simulators.mujoco_warp.worlds import WorldLimits

    ample = make(6)
    small = make(6, limits=WorldLimits(contacts=8, convex_pairs=1, constraints=32, matches=1))
    with caplog.at_level(logging.WARNING):
        for backend in (ample, small):
            scatter(backend)
            for step in range(12):
                hold(backend, 1, sway(step))
    assert ample.state.foot_force.any()
    np.testing.assert_allclose(small.state.base_pos, ample.state.base_pos, atol=0.01)
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    assert all("mujoco_warp" in line and "\n" not in line for line in lines)


@needs_warp
@pytest.mark.long
def test_a_robot_whose_state_is_no_number_falls_and_the_others_go_on(make: Make) -> None:
    broken, whole = make(3), make(3)
    for backend in (broken, whole):
        for robot in range(backend.num_robots):
            backend.reset(robot, start_at(joint_pos=FIRM_STANCE))
        hold(backend, 2, FIRM_STANCE)
    broken.reset(1, in_the_air(ang_vel=(1e30, 0.0, 0.0)))
    hold(broken, 1, FIRM_STANCE)
    assert broken.state.base_quat[1].tolist() == [0.0, 1.0, 0.0, 0.0], "on its back: a fall"
    hold(broken, 1, FIRM_STANCE)
    hold(whole, 2, FIRM_STANCE)
    assert np.isfinite(broken.state.base_pos).all()
    assert np.isfinite(broken.state.joint_vel).all()
    others = [0, 2]
    np.testing.assert_allclose(
        broken.state.base_pos[others], whole.state.base_pos[others], atol=1e-4
    )
    broken.reset(1, start_at(joint_pos=FIRM_STANCE))
    hold(broken, 4, FIRM_STANCE)
    np.testing.assert_allclose(broken.state.base_pos[1], whole.state.base_pos[1], atol=1e-4)


@pytest.mark.slow
@needs_warp
@settings(max_examples=20, deadline=None)
@given(
    worlds=st.integers(1, 4),
    moves=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.booleans()), max_size=25),
)
def test_every_world_has_the_tile_it_was_last_put_on(
    worlds: int, moves: list[tuple[int, int, bool]]
) -> None:
    import mujoco_warp
    import warp

    from gaitforge.plugins.simulators.mujoco_warp.worlds import TileBank

    tiles = [make_tile(sorted(TERRAINS)[number % len(TERRAINS)], number, 0) for number in range(10)]
    host = build_model(ROBOT)
    ground = host.geom(GROUND).id
    with warp.ScopedDevice("cpu"):
        model = mujoco_warp.put_model(host, batch_sizes={"geom_dataid": worlds})
        bank = TileBank(model, worlds, ground)
        expected: dict[int, int] = {}
        for world, number, uploads in moves:
            write_tile(host, ground, tiles[number])
            bank.place(world % worlds, host, tiles[number])
            expected[world % worlds] = number
            if uploads:
                bank.upload()
        bank.upload()
    slots = model.geom_dataid.numpy()[:, ground]
    heights = model.hfield_data.numpy().reshape(worlds, -1)
    for world, number in expected.items():
        write_tile(host, ground, tiles[number])
        np.testing.assert_array_equal(heights[slots[world]], host.hfield_data)
        size = model.hfield_size.numpy()[slots[world]]
        np.testing.assert_allclose(size, host.hfield_size[0], rtol=1e-6)
    # Worlds on one tile share one field.
    assert len({slots[world] for world in expected}) == len(set(expected.values()))
