"""Terrains as periodic tiles, and passages to crawl under or pass between.

A tile is a square height map that repeats in both directions. A robot that leaves a tile on one
side re-enters on the other, so no episode ends at an edge. Levels 0 (nearly flat) to 9 follow
legged_gym's terrain types, scaled to Aliengo's 0.5 m legs.

A passage is a bar to crawl under, or a pair of walls to pass between. Height fields have no
overhangs, so bars and walls are boxes beside the terrain. Each passage's skill record (`skills`)
says how wide or high it is at every level.
"""

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import cos, sin

import numpy as np

from gaitforge.collectors.robots.kinematics import C, Range, commanded_distance_m, length_scale
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.errors import names_allowed
from gaitforge.common.kernels import compiled

# Terrains.
Rows = slice | np.ndarray
"""Some of N rows."""
ALL_ROWS = slice(None)
Ground = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""See `TerrainBatch.under`."""
N_LEVELS = 10
GRID = 120
"""Cells a side of every height field: all compiled models have one size."""
MARGIN_CELLS = 10
"""Cells beyond the period on each side: ground under a robot at the seam."""


@dataclass(frozen=True)
class TerrainTile:
    """A periodic height map centred on the origin; `period_m` is the repeating square's side.

    heights is (GRID + 1, GRID + 1) float32 in m, [y, x] over [-extent, extent] with the margin.
    """

    heights: np.ndarray
    resolution_m: float
    period_m: float

    @property
    def extent_m(self) -> float:
        """Half the side of the map with its margin."""
        return self.resolution_m * GRID / 2

    @cached_property
    def scaled(self) -> tuple[float, float, np.ndarray]:
        """Lowest height and relief (at least 0.01) in m, and heights from 0 to 1 of it, flat."""
        low = float(self.heights.min())
        relief = max(float(self.heights.max()) - low, 0.01)
        return low, relief, ((self.heights - low) / relief).ravel()


def difficulty(level: int) -> float:
    """0.0 at level 0 to 1.0 at level 9."""
    return level / (N_LEVELS - 1)


def _flat(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    return np.zeros_like(x)


def _rough(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Smoothed noise of +-(0.01 + 0.05 d) m on a 0.2 m lattice (legged_gym: +-0.05 m)."""
    n = x.shape[0]
    amplitude = 0.01 + 0.05 * difficulty(level)
    coarse = rng.uniform(-amplitude, amplitude, (n // 2, n // 2))
    fine = np.empty((n, n))
    fine[::2, ::2] = coarse
    fine[1::2, ::2] = (coarse + np.roll(coarse, -1, 0)) / 2
    fine[:, 1::2] = (fine[:, ::2] + np.roll(fine[:, ::2], -1, 1)) / 2
    return fine


def _pyramid_distance(x: np.ndarray, y: np.ndarray, platform_m: float, foot_m: float) -> np.ndarray:
    """Distance from a square platform; constant beyond `foot_m` from the centre."""
    return np.clip(np.maximum(np.abs(x), np.abs(y)), platform_m, foot_m) - platform_m


def _slope(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """A pyramid with a grade of 0.05 + 0.35 d (legged_gym: 0.4 d); upright or inverted."""
    grade = (0.05 + 0.35 * difficulty(level)) * rng.choice([-1.0, 1.0])
    return grade * _pyramid_distance(x, y, 0.6, 4.8)


def _stairs(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Treads of 0.3 m, rises of 0.03 + 0.15 d m (legged_gym: 0.31 m, 0.05 + 0.18 d)."""
    rise = (0.03 + 0.15 * difficulty(level)) * rng.choice([-1.0, 1.0])
    return rise * np.ceil(_pyramid_distance(x, y, 0.6, 2.4) / 0.3 - 1e-9)


def _obstacles(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks and pits of +-(0.03 + 0.12 d) m, sides of 0.3 to 1.0 m (legged_gym: 1-2 m)."""
    ground = np.zeros_like(x)
    height = 0.03 + 0.12 * difficulty(level)
    half = np.abs(x).max()
    for _ in range(24):
        centre = rng.uniform(-half, half, 2)
        size = rng.uniform(0.15, 0.5, 2)
        block = (np.abs(x - centre[0]) < size[0]) & (np.abs(y - centre[1]) < size[1])
        ground[block] = height * rng.uniform(0.5, 1.0) * rng.choice([-1.0, 1.0])
    ground[np.maximum(np.abs(x), np.abs(y)) < 0.6] = 0.0
    return ground


def _steep(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """A pyramid with a grade of 0.4 + 0.2 d: steeper than any slope of a collection."""
    grade = (0.4 + 0.2 * difficulty(level)) * rng.choice([-1.0, 1.0])
    return grade * _pyramid_distance(x, y, 0.6, 4.8)


def _gravel(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Noise of +-(0.01 + 0.05 d) m on every point of a 0.05 m grid: a quarter of rough ground's."""
    amplitude = 0.01 + 0.05 * difficulty(level)
    return rng.uniform(-amplitude, amplitude, x.shape)


def _gaps(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Ditches around the start, 0.3 m deep and of 0.1 + 0.3 d m, every 1.2 m."""
    width = 0.1 + 0.3 * difficulty(level)
    ring = np.maximum(np.abs(x), np.abs(y)) - 0.9
    return np.where((ring >= 0) & (ring % 1.2 < width), -0.3, 0.0)


@dataclass(frozen=True)
class Terrain:
    """Everything about one terrain; adding a terrain is adding a record.

    Attributes:
        seed: first number of its tiles' seeds, unique. Never change it: stored episodes depend on
            it.
        height: (x, y, level, rng) -> heights of one period, all square arrays in m.
        resolution_m: grid spacing.
        share: share of the robots that train an expert; 0 leaves the terrain out of training.
        hardness: rank by which pictures choose each skill's hardest terrain.
        skills: skills commanded here beside those whose own records name the terrain.
    """

    name: str
    seed: int
    height: Callable[[np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]
    resolution_m: float = 0.1
    share: float = 0.0
    hardness: int = 0
    skills: tuple[str, ...] = ()


TERRAINS: dict[str, Terrain] = {
    terrain.name: terrain
    for terrain in (
        Terrain("flat", seed=0, height=_flat, share=0.2, hardness=0),
        Terrain("rough", seed=1, height=_rough, share=0.22, hardness=1),
        Terrain("slope", seed=2, height=_slope, share=0.23, hardness=2),
        Terrain("stairs", seed=3, height=_stairs, share=0.23, hardness=4),
        Terrain("obstacles", seed=4, height=_obstacles, share=0.12, hardness=3),
    )
}

UNSEEN: dict[str, Terrain] = {
    terrain.name: terrain
    for terrain in (
        Terrain("steep", seed=5, height=_steep, skills=("run",)),
        Terrain("gravel", seed=6, height=_gravel, resolution_m=0.05, skills=("run",)),
        Terrain("gaps", seed=7, height=_gaps, skills=("run",)),
    )
}
"""Terrains for evaluation alone: no episode of a collection is on them."""
ALL_TERRAINS = ChainMap(TERRAINS, UNSEEN)


def check_terrain(terrain: str) -> str:
    """Return the name; raises ValueError for an unknown one."""
    if terrain not in ALL_TERRAINS:
        raise ValueError(
            f"unknown terrain '{terrain}'; "
            + names_allowed(terrain, TERRAINS, f"and to evaluate on {', '.join(UNSEEN)}")
        )
    return terrain


def check_level(level: int) -> int:
    """Return the level; raises ValueError outside 0-9."""
    if not 0 <= level < N_LEVELS:
        raise ValueError(f"terrain level {level} is outside 0-{N_LEVELS - 1}")
    return level


@lru_cache(maxsize=1024)
def make_tile(terrain: str, level: int, variant: int) -> TerrainTile:
    """The tile of a terrain, level and variant; ValueError for an unknown terrain or level."""
    kind = ALL_TERRAINS[check_terrain(terrain)]
    rng = np.random.default_rng([kind.seed, check_level(level), variant])
    cells = GRID - 2 * MARGIN_CELLS
    axis = (np.arange(cells) - cells / 2) * kind.resolution_m
    x, y = np.meshgrid(axis, axis)
    one_period = kind.height(x, y, level, rng)
    wrapped = (np.arange(GRID + 1) - MARGIN_CELLS) % cells
    heights = one_period[np.ix_(wrapped, wrapped)].astype(np.float32)
    heights.setflags(write=False)
    return TerrainTile(heights, kind.resolution_m, cells * kind.resolution_m)


class TerrainBatch:
    """Tiles under N robots; robots on one tile share its heights, which then stay in the cache.

    Attributes:
        heights: (N, (GRID + 1)^2) float32, m; slot: (N,) its row of each robot.
        period_m, resolution_m: (N,) of each robot's tile.
    """

    def __init__(self, num_robots: int):
        side = GRID + 1
        self.heights = np.zeros((num_robots, side * side), dtype=np.float32)
        self.slot = np.zeros(num_robots, dtype=np.int64)
        self.resolution_m = np.ones(num_robots)
        self.period_m = np.ones(num_robots)
        self._tiles: list[TerrainTile | None] = [None] * num_robots
        self._slots: dict[int, int] = {}
        self._users = np.zeros(num_robots, dtype=np.int64)
        self._users[0] = num_robots
        self._free = list(range(num_robots - 1, 0, -1))

    def set(self, index: int, tile: TerrainTile) -> None:
        """Put a tile under robot `index`."""
        before = int(self.slot[index])
        self._users[before] -= 1
        if not self._users[before]:
            self._slots.pop(id(self._tiles[before]), None)
            self._free.append(before)
        slot = self._slots.get(id(tile))
        if slot is None:
            slot = self._slots[id(tile)] = self._free.pop()
            self._tiles[slot] = tile  # a tile that is kept keeps its id
            self.heights[slot] = tile.heights.ravel()
        self._users[slot] += 1
        self.slot[index] = slot
        self.resolution_m[index] = tile.resolution_m
        self.period_m[index] = tile.period_m

    def under(self, rows: Rows) -> Ground:
        """Arguments of compiled functions: the tiles, and slot, period and resolution of rows."""
        return self.heights, self.slot[rows], self.period_m[rows], self.resolution_m[rows]


def tile_heights(tile: TerrainTile, points: np.ndarray) -> np.ndarray:
    """Heights (K,) float32 in m of a tile's grid points nearest to points (K, 2).

    A range sensor resolves no more than the grid's 0.1 m.
    """
    return _look_up(tile.heights.ravel(), points, tile.period_m, tile.resolution_m)


@compiled
def cell_height(
    heights: np.ndarray, x: float, y: float, period_m: float, resolution_m: float
) -> float:
    """Height of a flattened tile at a world point; of a corner where the point is NaN."""
    column = int(np.rint((x - period_m * np.floor(x / period_m + 0.5)) / resolution_m))
    row = int(np.rint((y - period_m * np.floor(y / period_m + 0.5)) / resolution_m))
    column = min(max(column + GRID // 2, 0), GRID)
    row = min(max(row + GRID // 2, 0), GRID)
    return heights[row * (GRID + 1) + column]


@compiled
def _look_up(
    heights: np.ndarray, points: np.ndarray, period_m: float, resolution_m: float
) -> np.ndarray:
    ground = np.empty(len(points), dtype=np.float32)
    for k in range(len(points)):
        ground[k] = cell_height(heights, points[k, 0], points[k, 1], period_m, resolution_m)
    return ground


# Passages.
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
_ACROSS_M = np.linspace(-0.3, 0.3, 5)
"""Points of the ground across the track, on whose mean height a barrier stands."""

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
        self,
        level: int,
        command: np.ndarray,
        rng: np.random.Generator,
        robot: RobotCard,
        steps: int = EPISODE_STEPS,
    ) -> tuple[Passage, np.ndarray]:
        """A passage within half a level of `level`, and the command (16,) that gets through it.

        steps: control steps in which the robot walks.
        """
        command = command.copy()
        hardness = float(np.clip(difficulty(level) + rng.uniform(-0.5, 0.5) / 9.0, 0.0, 1.0))
        opening = self.opening_m(robot, hardness)
        if self.fit is not None:
            self.fit(command, opening, robot, rng)
        scale = length_scale(robot)
        start = _START_M[self.kind] * scale
        way = _WAY_SHARE * commanded_distance_m(command, steps) - start - robot.trunk_half_size_m[0]
        shortest, longest = (depth * scale for depth in _DEPTH_M[self.kind])
        depth = rng.uniform(shortest, max(shortest, min(longest, way)))
        return Passage(self.kind, float(start), float(depth), float(opening)), command


def place_barriers(
    passage: Passage | None, tile: TerrainTile, origin: np.ndarray, yaw: float
) -> list[Barrier]:
    """The boxes of a passage whose track starts at `origin` (2,) m and runs along `yaw` rad."""
    if passage is None:
        return []
    c, s = cos(yaw), sin(yaw)
    x, y = origin.tolist()
    points = _passage_points(passage.start_m, passage.end_m, _ACROSS_M, c, s, x, y)
    ground = float(tile_heights(tile, points).mean())
    middle = passage.start_m + passage.depth_m / 2
    half_depth = passage.depth_m / 2

    def box(across_m: float, half_width: float, low: float, high: float) -> Barrier:
        place = c * middle - s * across_m + x, s * middle + c * across_m + y
        centre = (*place, ground + (low + high) / 2)
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


@compiled
def _passage_points(
    start_m: float, end_m: float, across_m: np.ndarray, c: float, s: float, x: float, y: float
) -> np.ndarray:
    """(K * K, 2) points in the world, at even distances along a passage and K places across.

    The track starts at (x, y) m and runs along (c, s).
    """
    count = len(across_m)
    points = np.empty((count * count, 2))
    for i in range(count):
        # The numbers of `np.linspace`.
        along_m = end_m if i == count - 1 else i * ((end_m - start_m) / (count - 1)) + start_m
        for k in range(count):
            points[k * count + i, 0] = c * along_m - s * across_m[k] + x
            points[k * count + i, 1] = s * along_m + c * across_m[k] + y
    return points
