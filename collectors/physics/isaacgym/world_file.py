"""The file from which the worker builds an Isaac Gym world."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gaitforge.collectors.scenarios.passages import Barrier
from gaitforge.collectors.scenarios.terrains import GRID, TerrainTile

GAP_M = 4.0
"""Distance between tiles: more than robots and barriers reach beyond their own."""


@dataclass(frozen=True)
class FixedPart:
    """A robot's properties that a built world cannot change: tile, barriers, friction, mass."""

    tile: int
    barriers: tuple[Barrier, ...]
    friction: float
    mass_offset_kg: float
    com_offset_m: tuple[float, ...]


class TileBook:
    """Numbers of tiles; equal tiles share one."""

    def __init__(self) -> None:
        self.tiles: list[TerrainTile] = []
        self._numbers: dict[tuple[float, float, bytes], int] = {}

    def number(self, tile: TerrainTile) -> int:
        """The tile's number."""
        content = tile.resolution_m, tile.period_m, tile.heights.tobytes()
        number = self._numbers.setdefault(content, len(self.tiles))
        if number == len(self.tiles):
            self.tiles.append(tile)
        return number


def write_world(path: Path, book: TileBook, robots: Sequence[FixedPart]) -> None:
    """Write the world of N robots with T tiles and B barriers; float32, m, kg, rad, scene frame.

    Arrays: `vertices` (T, 121 * 121, 3), `triangles` (F, 3) of each tile; `place` (N, 3) and
    `period` (N,) of each robot's tile; `barrier_robot` (B,), `barrier_centre` (B, 3),
    `barrier_half` (B, 3), `barrier_yaw` (B,); `foot_friction` (N,), twice the wanted one as it is
    averaged with the ground's 0; `mass_offset` (N,), `com_offset` (N, 3).
    """
    used = sorted({robot.tile for robot in robots})
    tiles = [book.tiles[number] for number in used]
    places = tile_places(tiles)
    index = [used.index(robot.tile) for robot in robots]
    barriers = [(i, barrier) for i, robot in enumerate(robots) for barrier in robot.barriers]
    owner = np.array([i for i, _ in barriers], dtype=np.int32)
    centres = np.array([b.centre_m for _, b in barriers]).reshape(-1, 3)
    halves = np.array([b.half_size_m for _, b in barriers]).reshape(-1, 3)
    arrays = {
        "vertices": np.stack(
            [tile_vertices(tile) + offset for tile, offset in zip(tiles, places, strict=True)]
        ),
        "place": places[index],
        "period": np.array([tiles[i].period_m for i in index]),
        "barrier_centre": centres + places[index][owner],
        "barrier_half": halves,
        "barrier_yaw": np.array([b.yaw_rad for _, b in barriers]),
        "foot_friction": np.array([2.0 * robot.friction for robot in robots]),
        "mass_offset": np.array([robot.mass_offset_kg for robot in robots]),
        "com_offset": np.array([robot.com_offset_m for robot in robots]),
    }
    floats = {name: array.astype(np.float32) for name, array in arrays.items()}
    np.savez(path, triangles=grid_triangles(), barrier_robot=owner, **floats)


def tile_places(tiles: Sequence[TerrainTile]) -> np.ndarray:
    """(T, 3) m: middles of the tiles on a square grid around the origin.

    float32 resolves 0.03 mm at 256 m.
    """
    side = math.ceil(math.sqrt(len(tiles)))
    pitch = 2.0 * max(tile.extent_m for tile in tiles) + GAP_M
    rows, columns = np.divmod(np.arange(len(tiles)), side)
    x, y = ((axis - (side - 1) / 2) * pitch for axis in (columns, rows))
    return np.stack([x, y, np.zeros(len(tiles))], axis=1)


def tile_vertices(tile: TerrainTile) -> np.ndarray:
    """(121 * 121, 3) m: points of the height map, relative to its middle."""
    axis = (np.arange(GRID + 1) - GRID / 2) * tile.resolution_m
    x, y = np.meshgrid(axis, axis)
    return np.stack([x, y, tile.heights], axis=-1).reshape(-1, 3)


def grid_triangles() -> np.ndarray:
    """(2 * 120 * 120, 3) uint32, counter-clockwise from above; cells cut as MuJoCo cuts them."""
    corner = np.arange(GRID * (GRID + 1)).reshape(GRID, GRID + 1)[:, :-1].ravel()
    right = corner + 1
    above = corner + GRID + 1
    opposite = corner + GRID + 2
    lower = np.stack([corner, right, opposite], axis=1)
    upper = np.stack([corner, opposite, above], axis=1)
    return np.stack([lower, upper], axis=1).reshape(-1, 3).astype(np.uint32)
