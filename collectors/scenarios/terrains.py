"""Periodic terrain tiles: one square height map that repeats for ever in both directions.

A robot that leaves the tile on one side comes back on the other, so a small height field serves an
endless ground and no episode ends at an edge. Difficulty follows legged_gym's terrain types, scaled
to Aliengo's 0.5 m legs: level 0 is nearly flat, level 9 the hardest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from collectors.compiling import compiled

N_LEVELS = 10
GRID = 120
"""Cells a side of every height field; fixed so that all compiled models have one size."""
MARGIN_CELLS = 10
"""Cells beyond the period on each side, so that the ground continues under a robot at the seam."""


@dataclass(frozen=True)
class TerrainTile:
    """A periodic height map.

    heights: (GRID + 1, GRID + 1) float32 in m, indexed [y, x] over [-extent, extent], the margin
        included.
    period_m: side of the repeating square, centred on the origin.
    """

    heights: np.ndarray
    resolution_m: float
    period_m: float

    @property
    def extent_m(self) -> float:
        """Half the side of the whole map, the margin included."""
        return self.resolution_m * GRID / 2


def difficulty(level: int) -> float:
    """0.0 at level 0 to 1.0 at level 9."""
    return level / (N_LEVELS - 1)


def _flat(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    return np.zeros_like(x)


def _rough(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Smoothed noise of amplitude +-(0.01 + 0.05 d) m on a 0.2 m lattice.

    legged_gym: +-0.05 m, down-sampled to 0.2 m.
    """
    n = x.shape[0]
    amplitude = 0.01 + 0.05 * difficulty(level)
    coarse = rng.uniform(-amplitude, amplitude, (n // 2, n // 2))
    fine = np.empty((n, n))
    fine[::2, ::2] = coarse
    fine[1::2, ::2] = (coarse + np.roll(coarse, -1, 0)) / 2
    fine[:, 1::2] = (fine[:, ::2] + np.roll(fine[:, ::2], -1, 1)) / 2
    return fine


def _pyramid_distance(x: np.ndarray, y: np.ndarray, platform_m: float, foot_m: float) -> np.ndarray:
    """Distance walked from a square platform; constant again beyond `foot_m` from the centre."""
    return np.clip(np.maximum(np.abs(x), np.abs(y)), platform_m, foot_m) - platform_m


def _slope(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """A pyramid with a grade of 0.05 + 0.35 d (legged_gym: 0.4 d); upright or inverted."""
    grade = (0.05 + 0.35 * difficulty(level)) * rng.choice([-1.0, 1.0])
    return grade * _pyramid_distance(x, y, 0.6, 4.8)


def _stairs(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Square flights with treads of 0.3 m and rises of 0.03 + 0.15 d m.

    legged_gym: 0.31 m, 0.05 + 0.18 d.
    """
    rise = (0.03 + 0.15 * difficulty(level)) * rng.choice([-1.0, 1.0])
    return rise * np.ceil(_pyramid_distance(x, y, 0.6, 2.4) / 0.3 - 1e-9)


def _obstacles(x: np.ndarray, y: np.ndarray, level: int, rng: np.random.Generator) -> np.ndarray:
    """Blocks and pits of +-(0.03 + 0.12 d) m around a clear start.

    Their sides are 0.3 to 1.0 m (legged_gym: 1-2 m).
    """
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


@dataclass(frozen=True)
class TerrainKind:
    """How to make the tiles of one terrain: the height function and the grid's resolution in m."""

    height: Callable[[np.ndarray, np.ndarray, int, np.random.Generator], np.ndarray]
    resolution_m: float


TERRAINS: dict[str, TerrainKind] = {
    "flat": TerrainKind(_flat, 0.1),
    "rough": TerrainKind(_rough, 0.1),
    "slope": TerrainKind(_slope, 0.1),
    "stairs": TerrainKind(_stairs, 0.1),
    "obstacles": TerrainKind(_obstacles, 0.1),
}


def check_terrain(terrain: str) -> str:
    """Return the name, or raise ValueError naming the terrains there are."""
    if terrain not in TERRAINS:
        raise ValueError(f"unknown terrain '{terrain}'; terrains: {', '.join(TERRAINS)}")
    return terrain


@lru_cache(maxsize=1024)
def make_tile(terrain: str, level: int, variant: int) -> TerrainTile:
    """The tile of a terrain, level 0-9 and variant; the same arguments always give the same tile.

    Raises:
        ValueError: an unknown terrain or a level outside 0-9.
    """
    kind = TERRAINS[check_terrain(terrain)]
    if not 0 <= level < N_LEVELS:
        raise ValueError(f"terrain level {level} is outside 0-{N_LEVELS - 1}")
    rng = np.random.default_rng([list(TERRAINS).index(terrain), level, variant])
    cells = GRID - 2 * MARGIN_CELLS
    axis = (np.arange(cells) - cells / 2) * kind.resolution_m
    x, y = np.meshgrid(axis, axis)
    one_period = kind.height(x, y, level, rng)
    wrapped = (np.arange(GRID + 1) - MARGIN_CELLS) % cells
    heights = one_period[np.ix_(wrapped, wrapped)].astype(np.float32)
    heights.setflags(write=False)
    return TerrainTile(heights, kind.resolution_m, cells * kind.resolution_m)


class TerrainBatch:
    """The tiles under N robots, for height look-ups at many points at once.

    heights (N, (GRID + 1)^2) float32, period_m (N,) and resolution_m (N,) are read by compiled
    loops.
    """

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

    def heights_at(self, points: np.ndarray) -> np.ndarray:
        """Heights in m at world points, each row on its own robot's tile: (N, K, 2) to (N, K).

        float32. The nearest grid point answers: at 0.1 m resolution that is what a range sensor
        would resolve.
        """
        found = np.empty(points.shape[:2], dtype=np.float32)
        _look_up(self.heights, points, self.period_m, self.resolution_m, found)
        return found


def tile_heights(tile: TerrainTile, points: np.ndarray) -> np.ndarray:
    """Heights in m of one tile at points (K, 2), to (K,) float32."""
    period, resolution = np.array([tile.period_m]), np.array([tile.resolution_m])
    found = np.empty((1, len(points)), dtype=np.float32)
    _look_up(tile.heights.reshape(1, -1), points[None], period, resolution, found)
    return found[0]


@compiled
def cell_height(
    heights: np.ndarray, x: float, y: float, period_m: float, resolution_m: float
) -> float:
    """Height at a world point of the tile (GRID + 1)^2, flat, that repeats every `period_m`.

    A point that is no number, which no index follows from, is answered with a corner.
    """
    column = int(np.rint((x - period_m * np.floor(x / period_m + 0.5)) / resolution_m))
    row = int(np.rint((y - period_m * np.floor(y / period_m + 0.5)) / resolution_m))
    column = min(max(column + GRID // 2, 0), GRID)
    row = min(max(row + GRID // 2, 0), GRID)
    return heights[row * (GRID + 1) + column]


@compiled
def _look_up(
    heights: np.ndarray,
    points: np.ndarray,
    period_m: np.ndarray,
    resolution_m: np.ndarray,
    found: np.ndarray,
) -> None:
    for i in range(found.shape[0]):
        for k in range(found.shape[1]):
            x, y = points[i, k, 0], points[i, k, 1]
            found[i, k] = cell_height(heights[i], x, y, period_m[i], resolution_m[i])
