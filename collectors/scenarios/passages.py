"""Passages: a bar to crawl under, or a pair of walls to pass between.

Height fields have no overhangs, so these are boxes beside the terrain. Each passage's skill record
(`skills`) says how wide or high it is at every level.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import cos, sin

import numpy as np

from gaitforge.collectors.robots.commands import C, Range, commanded_distance_m, length_scale
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.scenarios.terrains import TerrainTile, difficulty, tile_heights

MAX_BARRIERS = 2
_DEPTH_M = {"bar": (0.1, 0.6), "walls": (0.1, 1.0)}
_START_M = {"bar": 0.45, "walls": 0.65}
_WAY_SHARE = 0.85
"""The trunk leaves the passage within this share of the commanded distance."""

TRACK_HALF_WIDTH_M = 0.8
_BAR_THICKNESS_M = 0.6
_WALL_HEIGHT_M = 0.5
_WALL_DEPTH_BELOW_M = 0.2
_WALL_HALF_THICKNESS_M = 0.05

STEER_SIDE_PER_S = 3.0
STEER_TURN_PER_S = 2.0
MAX_STEER_SIDE_MS = 0.3
MAX_STEER_TURN_RADS = 0.5
"""Gains and bounds of steering along the track. Stiffer than parkour's 1.2 on the lateral error and
legged_gym's 0.5 on the heading: narrow walls leave a few millimetres."""


@dataclass(frozen=True)
class Barrier:
    """A static box: centre and half sizes in m, turned by `yaw_rad` about the vertical."""

    centre_m: tuple[float, float, float]
    half_size_m: tuple[float, float, float]
    yaw_rad: float


@dataclass(frozen=True)
class Passage:
    """A block on the track that runs from an episode's start along its heading.

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
        """End of the block along the track."""
        return self.start_m + self.depth_m


OPEN_GROUND = Passage("none", 0.0, 0.0, 0.0)
"""Stands for open ground in tables."""


@dataclass(frozen=True)
class PassageRule:
    """The passage of a skill: its terrains, its size, and the command that gets through it.

    Attributes:
        kind: "bar" or "walls".
        terrains: terrains that have it; on others the skill has open ground.
        opening_m: (robot, hardness from 0 to 1) -> the opening in m.
        fit: (command, opening_m, robot, rng) changes the command in place so that it fits.
        ranges: ranges of commands that `fit` sets beyond the skill's own ranges, SI units.
    """

    kind: str
    terrains: tuple[str, ...]
    opening_m: Callable[[RobotCard, float], float]
    fit: Callable[[np.ndarray, float, RobotCard, np.random.Generator], None] | None = None
    ranges: dict[C, Range] = field(default_factory=dict)

    def draw(
        self, level: int, command: np.ndarray, rng: np.random.Generator, robot: RobotCard
    ) -> tuple[Passage, np.ndarray]:
        """A passage within half a level of `level`, and the command (16,) that gets through it."""
        command = command.copy()
        hardness = float(np.clip(difficulty(level) + rng.uniform(-0.5, 0.5) / 9.0, 0.0, 1.0))
        opening = self.opening_m(robot, hardness)
        if self.fit is not None:
            self.fit(command, opening, robot, rng)
        scale = length_scale(robot)
        start = _START_M[self.kind] * scale
        way = _WAY_SHARE * commanded_distance_m(command) - start - robot.trunk_half_size_m[0]
        shortest, longest = (depth * scale for depth in _DEPTH_M[self.kind])
        depth = rng.uniform(shortest, max(shortest, min(longest, way)))
        return Passage(self.kind, float(start), float(depth), float(opening)), command


def place_barriers(
    passage: Passage | None, tile: TerrainTile, origin: np.ndarray, yaw: float
) -> list[Barrier]:
    """The boxes of a passage whose track starts at `origin` (2,) m and runs along `yaw` rad."""
    if passage is None:
        return []
    along = np.linspace(passage.start_m, passage.end_m, 5)
    across = np.linspace(-0.3, 0.3, 5)
    grid = np.stack(np.meshgrid(along, across), axis=-1).reshape(-1, 2)
    ground = float(tile_heights(tile, to_world(grid, origin, yaw)).mean())
    middle = passage.start_m + passage.depth_m / 2
    half_depth = passage.depth_m / 2

    def box(across_m: float, half_width: float, low: float, high: float) -> Barrier:
        x, y = to_world(np.array([[middle, across_m]]), origin, yaw)[0]
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
    """Commands (N, 16) with the sideways speed and yaw rate that lead back to the track.

    Args:
        across_m: (N,) distance left of the track's middle.
        heading_rad: (N,) heading relative to the track.
    """
    command = command.copy()
    side = MAX_STEER_SIDE_MS
    turn = MAX_STEER_TURN_RADS
    command[:, C.VEL_Y] = np.clip(-STEER_SIDE_PER_S * across_m, -side, side)
    command[:, C.YAW_RATE] = np.clip(-STEER_TURN_PER_S * heading_rad, -turn, turn)
    return command


def to_world(track: np.ndarray, origin: np.ndarray, yaw: float) -> np.ndarray:
    """(K, 2) points along and across a track from `origin` (2,) m along `yaw` rad, in the world."""
    (along, across), c, s = track.T, cos(yaw), sin(yaw)
    return np.stack([c * along - s * across, s * along + c * across], axis=1) + origin
