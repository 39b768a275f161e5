"""Robots of one family in one environment: each behaves as it does alone, bit for bit."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.policy import Observation
from gaitforge.collectors.robots.robot import RobotCard, load_robot
from tests.collectors.making import ROBOT, spec
from tests.collectors.robots.robot_folders import family_of, robot_folder

STEPS = 40


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> list[RobotCard]:
    return family_of(ROBOT, 3, tmp_path_factory.mktemp("family"))


SPECS = [
    spec(0, seed=5),
    spec(1, terrain="rough", level=6, skill="crawl", seed=6),
    spec(2, terrain="stairs", level=5, skill="rush", seed=7),
]


def walk(
    robots: RobotCard | list[RobotCard], specs: list, actions: np.ndarray
) -> list[tuple[np.ndarray, ...]]:
    """What every step of N rows gives: observations, reward, termination, joint torques."""
    found = []
    with closing(LeggedEnvironment(robots, len(specs), 1)) as env:
        env.reset(np.arange(len(specs)), specs)
        for step in range(STEPS):
            done = env.step(actions[step])
            seen: Observation = done.observation
            torque = env.physics.state.joint_torque
            found.append((seen.policy, seen.privileged, done.reward, done.terminated, torque))
    return found


def test_a_robot_among_others_of_its_family_walks_as_alone(family: list[RobotCard]) -> None:
    actions = np.random.default_rng(0).normal(0, 0.5, (STEPS, len(family), 12)).astype(np.float32)
    together = walk(family, SPECS, actions)
    for row, robot in enumerate(family):
        alone = walk(robot, [SPECS[row]], actions[:, row : row + 1])
        for all_rows, one in zip(together, alone, strict=True):
            for both, own in zip(all_rows, one, strict=True):
                np.testing.assert_array_equal(both[row], own[0])


def test_one_simulation_refuses_robots_of_other_structures(tmp_path: Path) -> None:
    foot = '<geom name="FL_foot"'
    other = load_robot(str(robot_folder(tmp_path, mjcf=[(foot, '<geom size="0.01"/>' + foot)])))
    with pytest.raises(ValueError, match="robots 'aliengo' and 'mine' have other bodies"):
        LeggedEnvironment([ROBOT, other], 2)
    with pytest.raises(ValueError, match="2 robots for 3 rows"):
        LeggedEnvironment([ROBOT, ROBOT], 3)
