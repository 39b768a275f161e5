"""Cards that are written: short, and the same robot when they are read."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.robots.robot import RobotCard, list_robots, load_robot
from gaitforge.plugins.robots.writing import write_card
from tests.collectors.making import robot_of_another_shape

STRANGE = replace(robot_of_another_shape(0), nominal_height_m=0.1)
ROBOTS = [*map(load_robot, list_robots()), STRANGE]


@pytest.mark.parametrize("robot", ROBOTS, ids=lambda robot: robot.name)
def test_a_written_card_is_the_same_robot(robot: RobotCard, tmp_path: Path) -> None:
    (tmp_path / "mine.xml").write_text("<mujoco/>")
    mine = replace(
        robot, name="mine", path=tmp_path / "robot.json", mjcf_path=tmp_path / "mine.xml"
    )
    write_card(mine)
    read = load_robot(str(tmp_path))
    for field in fields(RobotCard):
        np.testing.assert_array_equal(getattr(read, field.name), getattr(mine, field.name))
    assert len(mine.path.read_text().splitlines()) < 80
