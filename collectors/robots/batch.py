"""The robots of an environment's rows: one for all, or one each."""

import numpy as np

from gaitforge.collectors.robots.kinematics import standing_height_m
from gaitforge.collectors.robots.robot import RobotCard


class RobotBatch:
    """Numbers of one robot, or of R robots, with a first axis of 1 or R.

    They broadcast with arrays of N = R rows, or of any N rows if there is one robot.

    Attributes:
        robots: their cards.
        default_joint_pos_rad, joint_lower_rad, joint_upper_rad: (R, 12); action_scale_rad: (R, 1).
        nominal_height_m, standing_height_m (in the default pose), weight_n: (R,).
    """

    def __init__(self, *robots: RobotCard):
        self.robots = robots
        self.default_joint_pos_rad = _of(robots, "default_joint_pos_rad")
        self.joint_lower_rad = _of(robots, "joint_lower_rad")
        self.joint_upper_rad = _of(robots, "joint_upper_rad")
        self.action_scale_rad = _of(robots, "action_scale_rad")[:, None]
        self.nominal_height_m = _of(robots, "nominal_height_m")
        self.weight_n = _of(robots, "weight_n")
        self.standing_height_m = np.array([standing_height_m(robot) for robot in robots])

    def __len__(self) -> int:
        return len(self.robots)

    def __getitem__(self, row: int) -> RobotCard:
        """The robot of a row."""
        return self.robots[row % len(self.robots)]


def _of(robots: tuple[RobotCard, ...], key: str) -> np.ndarray:
    return np.stack([np.asarray(getattr(robot, key), dtype=np.float64) for robot in robots])
