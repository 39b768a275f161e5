"""Passages: a bar to crawl under or a pair of walls to squeeze or tilt through.

Height fields have no overhangs, so these are boxes beside the terrain. Sizes are those of parkour's
obstacles, brought to Aliengo's proportions and written as multiples of a robot's own: a bar from
1.15 to 0.665 of the standing robot's height (Aliengo: 0.50 to 0.29 m), walls to squeeze through
from 0.19 to 0.03 m wider than the robot (0.50 to 0.34 m), walls to tilt through from 0.03 m wider
to 0.05 m narrower (0.34 to 0.26 m). Level 0 is the easiest, level 9 the hardest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from collectors.robots.commands import MAX_CRAWL_M, C, commanded_distance_m, length_scale
from collectors.robots.robot import RobotCard
from collectors.scenarios.terrains import TerrainTile, difficulty, tile_heights

MAX_BARRIERS = 2
PASSAGES: dict[str, tuple[str, tuple[str, ...]]] = {
    "crawl": ("bar", ("flat", "rough")),
    "squeeze": ("walls", ("flat", "rough")),
    "tilt": ("walls", ("flat", "rough")),
}
"""Kind of passage and the terrains it stands on, by skill; elsewhere a skill has open ground."""
_BAR_HEIGHTS = (1.15, 0.665)
_SQUEEZE_CLEARANCE_M = (0.19, 0.03)
_TILT_CLEARANCE_M = (0.03, -0.05)
_DEPTH_M = {"bar": (0.1, 0.6), "walls": (0.1, 1.0)}
_START_M = {"bar": 0.45, "walls": 0.65}
_WAY_SHARE = 0.85
"""The whole trunk is out of the passage after at most this share of the commanded way."""
_BAR_MARGIN_M = (0.03, 0.06)
_WALL_MARGIN_M = 0.025
_FOOT_MARGIN_M = 0.02
PASSAGE_ROLL_RAD = (0.3, 1.1)
"""1.1 rad is what the narrowest walls take; Aliengo's hips end at 1.22."""

TRACK_HALF_WIDTH_M = 0.8
_BAR_THICKNESS_M = 0.6
_WALL_HEIGHT_M = 0.5
_WALL_DEPTH_BELOW_M = 0.2
_WALL_HALF_THICKNESS_M = 0.05

STEER_SIDE_PER_S = 3.0
STEER_TURN_PER_S = 2.0
MAX_STEER_SIDE_MS = 0.3
MAX_STEER_TURN_RADS = 0.5
"""A proportional navigator keeps the robot on the track. Stiffer than parkour's (1.2 on the lateral
error) and legged_gym's (0.5 on the heading): the narrow walls leave a few millimetres."""


@dataclass(frozen=True)
class Barrier:
    """A static box: centre and half sizes in m, turned by `yaw_rad` about the vertical."""

    centre_m: tuple[float, float, float]
    half_size_m: tuple[float, float, float]
    yaw_rad: float


@dataclass(frozen=True)
class Passage:
    """What stands on the track that runs from an episode's start along its heading.

    Attributes:
        kind: "bar" or "walls"; start_m, depth_m: the block, along the track.
        opening_m: height of the bar above the ground, or gap between the walls.
    """

    kind: str
    start_m: float
    depth_m: float
    opening_m: float

    @property
    def end_m(self) -> float:
        """Where the block ends along the track."""
        return self.start_m + self.depth_m


OPEN_GROUND = Passage("none", 0.0, 0.0, 0.0)
"""How tables write that nothing stands on the track."""


def draw_passage(
    skill: str,
    terrain: str,
    level: int,
    command: np.ndarray,
    rng: np.random.Generator,
    robot: RobotCard,
) -> tuple[Passage | None, np.ndarray]:
    """The passage of an episode, None on open ground, and the command (16,) that takes it."""
    kind, terrains = PASSAGES.get(skill, ("none", ()))
    if terrain not in terrains:
        return None, command
    command = command.copy()
    scale = length_scale(robot)
    opening = _draw_opening(skill, level, rng, robot, scale)
    if skill == "crawl":
        lowest = -MAX_CRAWL_M * scale
        clearance = scale * rng.uniform(*_BAR_MARGIN_M)
        under = opening - robot.trunk_half_size_m[2] - clearance - robot.nominal_height_m
        command[C.BODY_HEIGHT] = max(lowest, min(command[C.BODY_HEIGHT], under))
    elif skill == "tilt":
        roll = _roll_for_gap(robot, opening - 2 * scale * _WALL_MARGIN_M)
        roll = np.clip(roll, *PASSAGE_ROLL_RAD)
        command[C.BODY_ROLL] = np.copysign(roll, command[C.BODY_ROLL])
        widest = opening - 2 * (robot.foot_radius_m + scale * _FOOT_MARGIN_M)
        command[C.STANCE_WIDTH] = min(command[C.STANCE_WIDTH], widest)
    start = _START_M[kind] * scale
    way = _WAY_SHARE * commanded_distance_m(command) - start - robot.trunk_half_size_m[0]
    shortest, longest = (depth * scale for depth in _DEPTH_M[kind])
    depth = rng.uniform(shortest, max(shortest, min(longest, way)))
    return Passage(kind, float(start), float(depth), float(opening)), command


def place_barriers(
    passage: Passage, tile: TerrainTile, origin: np.ndarray, yaw: float
) -> list[Barrier]:
    """The boxes of a passage whose track starts at `origin` (2,) m and runs along `yaw` rad."""
    along = np.linspace(passage.start_m, passage.end_m, 5)
    across = np.linspace(-0.3, 0.3, 5)
    grid = np.stack(np.meshgrid(along, across), axis=-1).reshape(-1, 2)
    ground = float(tile_heights(tile, _to_world(grid, origin, yaw)).mean())
    middle, half_depth = passage.start_m + passage.depth_m / 2, passage.depth_m / 2

    def box(across_m: float, half_width: float, low: float, high: float) -> Barrier:
        x, y = _to_world(np.array([[middle, across_m]]), origin, yaw)[0]
        centre = (float(x), float(y), ground + (low + high) / 2)
        return Barrier(centre, (half_depth, half_width, (high - low) / 2), yaw)

    if passage.kind == "bar":
        low = passage.opening_m
        return [box(0.0, TRACK_HALF_WIDTH_M, low, low + _BAR_THICKNESS_M)]
    side = passage.opening_m / 2 + _WALL_HALF_THICKNESS_M
    return [
        box(sign * side, _WALL_HALF_THICKNESS_M, -_WALL_DEPTH_BELOW_M, _WALL_HEIGHT_M)
        for sign in (1.0, -1.0)
    ]


def steer(command: np.ndarray, across_m: np.ndarray, heading_rad: np.ndarray) -> np.ndarray:
    """Commands (N, 16) with sideways speed and yaw rate that lead back to the track.

    Args:
        across_m: (N,) distance from the track's middle, positive to the left.
        heading_rad: (N,) heading relative to the track.
    """
    command = command.copy()
    side, turn = MAX_STEER_SIDE_MS, MAX_STEER_TURN_RADS
    command[:, C.VEL_Y] = np.clip(-STEER_SIDE_PER_S * across_m, -side, side)
    command[:, C.YAW_RATE] = np.clip(-STEER_TURN_PER_S * heading_rad, -turn, turn)
    return command


def _draw_opening(
    skill: str, level: int, rng: np.random.Generator, robot: RobotCard, scale: float
) -> float:
    """The level's opening, give or take half a level."""
    hardness = float(np.clip(difficulty(level) + rng.uniform(-0.5, 0.5) / 9.0, 0.0, 1.0))

    def between(easy_hard: tuple[float, float]) -> float:
        return easy_hard[0] + hardness * (easy_hard[1] - easy_hard[0])

    if skill == "crawl":
        top = robot.nominal_height_m + robot.trunk_half_size_m[2]
        return top * between(_BAR_HEIGHTS)
    clearance = _SQUEEZE_CLEARANCE_M if skill == "squeeze" else _TILT_CLEARANCE_M
    return robot.width_m + scale * between(clearance)


def _roll_for_gap(robot: RobotCard, gap_m: float) -> float:
    """Roll at which the hips fit a gap with the legs hanging vertically, rad.

    The hip joints, `hip_offset_m[1]` off the middle, then stand closer together:
    width(roll) = width - 2 hip_y (1 - cos roll).
    """
    cosine = 1.0 - (robot.width_m - gap_m) / (2.0 * robot.hip_offset_m[1])
    return float(np.arccos(np.clip(cosine, -1.0, 1.0)))


def _to_world(track: np.ndarray, origin: np.ndarray, yaw: float) -> np.ndarray:
    """(K, 2) points along and across the track to world x and y."""
    c, s = np.cos(yaw), np.sin(yaw)
    return track @ np.array([[c, s], [-s, c]]) + origin
