"""The shipped Aliengo at a start, and holding a pose: for checks, benchmarks and tests."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gaitforge.collectors.physics.interface import PhysicsBackend, RobotStart
from gaitforge.collectors.robots.kinematics import NEUTRAL, C, GaitReference, standing_height_m
from gaitforge.collectors.robots.robot import N_JOINTS, load_robot
from gaitforge.collectors.rotations import from_yaw
from gaitforge.collectors.scenarios.randomisation import DRAW_INDEX, nominal_draws
from gaitforge.collectors.scenarios.skills import STAND
from gaitforge.collectors.scenarios.terrains import TerrainTile, make_tile

ROBOT = load_robot()
DEFAULT_POSE = ROBOT.default_joint_pos_rad
STANDING_HEIGHT_M = standing_height_m(ROBOT)
LEGS_UP = np.tile([0.0, 3.0, -2.0], 4)
"""(12,) all feet above the trunk: the robot lies on its belly."""
FLAT = make_tile("flat", 0, 0)


def _firm_stance() -> np.ndarray:
    command = np.array([low for low, _ in (NEUTRAL | STAND.ranges).values()])
    command[[C.BODY_PITCH, C.BODY_ROLL]] = 0.0
    command[C.BODY_HEIGHT] = -0.1
    command[C.STANCE_WIDTH] = 0.34
    return GaitReference(ROBOT).joint_targets(command[None], np.zeros(1))[0]


FIRM_STANCE = _firm_stance()
"""(12,) targets of a low, wide stance that carries the weight, as the default pose does not."""


def draws_with(**changes: float) -> np.ndarray:
    """The nominal robot with some draws changed."""
    draws = nominal_draws()
    for name, value in changes.items():
        draws[DRAW_INDEX[name]] = value
    return draws


def start_at(
    x: float = 0.0,
    y: float = 0.0,
    z: float = STANDING_HEIGHT_M + 0.01,
    yaw: float = 0.0,
    lin_vel: Sequence[float] = (0.0, 0.0, 0.0),
    ang_vel: Sequence[float] = (0.0, 0.0, 0.0),
    **fields: Any,
) -> RobotStart:
    """A start, by default standing still; `fields` are RobotStart's.

    Args:
        lin_vel: world frame, m/s; ang_vel: body frame, rad/s.
    """
    defaults: dict[str, Any] = {"base_quat": from_yaw(np.array(yaw)), "joint_pos": DEFAULT_POSE}
    motion = np.array([*lin_vel, *ang_vel])
    return RobotStart(np.array([x, y, z]), base_vel=motion, **(defaults | fields))


def in_the_air(**changes: Any) -> RobotStart:
    """A start too high to reach the ground in a check."""
    return start_at(**{"z": 50.0, **changes})


def hold(backend: PhysicsBackend, steps: int, targets: np.ndarray = DEFAULT_POSE) -> None:
    """Step towards constant joint targets, (12,) or (N, 12)."""
    rows = np.broadcast_to(targets, (backend.num_robots, N_JOINTS))
    for _ in range(steps):
        backend.step(rows)


def height_between(tile: TerrainTile, points: np.ndarray) -> np.ndarray:
    """Bilinear heights of a periodic tile at points (K, 2)."""
    local = points - tile.period_m * np.floor(points / tile.period_m + 0.5)
    cells = (local + tile.extent_m) / tile.resolution_m
    low = np.floor(cells).astype(int)
    (ix, iy), (u, v) = low.T, (cells - low).T
    h = tile.heights
    near = (1 - u) * h[iy, ix] + u * h[iy, ix + 1]
    far = (1 - u) * h[iy + 1, ix] + u * h[iy + 1, ix + 1]
    return (1 - v) * near + v * far
