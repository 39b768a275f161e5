"""A picture of a robot in its default pose on flat ground."""

import numpy as np

from gaitforge.collectors.rendering.rendering import Shot, draw
from gaitforge.collectors.rendering.scene import Scene, lay_out
from gaitforge.collectors.robots.kinematics import standing_height_m
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.terrains import make_tile

_BEHIND_RAD = 2.6
"""Angle from the first view to the second."""


def draw_portrait(robot: RobotCard, width_px: int, height_px: int) -> np.ndarray:
    """(2, height_px, width_px, 3) uint8: from the right and front, then from the left and rear.

    RenderingError if no OpenGL works.
    """
    origin = np.zeros(2)
    base = [0.0, 0.0, standing_height_m(robot), 1.0, 0.0, 0.0, 0.0]
    state = np.tile([*base, *robot.default_joint_pos_rad], (2, 1))
    scene = Scene(
        robot=robot,
        state=state,
        ground=lay_out(make_tile("flat", 0, 0), origin, origin),
        barriers=(),
        passage=None,
        view_pos=np.zeros((2, 3)),
        view_yaw=np.array([0.0, _BEHIND_RAD]),
    )
    return draw([Shot(scene, np.arange(2))], width_px, height_px)[0]
