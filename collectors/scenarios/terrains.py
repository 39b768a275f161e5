"""Terrains as periodic tiles: square height maps that repeat in both directions.

A robot that leaves a tile on one side re-enters on the other, so no episode ends at an edge. Levels
0 (nearly flat) to 9 follow legged_gym's terrain types, scaled to Aliengo's 0.5 m legs.
"""

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from gaitforge.collectors.exact_kernels import compiled

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
            f"unknown terrain '{terrain}'; allowed: {', '.join(TERRAINS)}, "
            f"and to evaluate on {', '.join(UNSEEN)}"
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
    """Tiles under N robots: heights (N, (GRID + 1)^2) float32, period_m and resolution_m (N,)."""

    def __init__(self, num_robots: int):
        side = GRID + 1
        self.heights = np.zeros((num_robots, side * side), dtype=np.float32)
        self.resolution_m = np.ones(num_robots)
        self.period_m = np.ones(num_robots)

    def set(self, index: int, tile: TerrainTile) -> None:
        """Put a tile under robot `index`."""
        self.heights[index] = tile.heights.ravel()
        self.resolution_m[index] = tile.resolution_m
        self.period_m[index] = tile.period_m


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
