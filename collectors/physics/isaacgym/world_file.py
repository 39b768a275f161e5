"""What is fixed in an Isaac Gym world, as the file that the worker builds it from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from collectors.scenarios.passages import Barrier
from collectors.scenarios.terrains import GRID, TerrainTile

GAP_M = 4.0
"""Between tiles: more than a robot with its barriers reaches beyond its tile."""


@dataclass(frozen=True)
class FixedPart:
    """What of a robot and its surroundings a built world cannot change.

    tile is a number in a `TileBook`; friction the feet's coefficient; com_offset_m in the trunk's
    frame.
    """

    tile: int
    barriers: tuple[Barrier, ...]
    friction: float
    mass_offset_kg: float
    com_offset_m: tuple[float, ...]


class TileBook:
    """Numbers for tiles; equal tiles have one number."""

    def __init__(self) -> None:
        self.tiles: list[TerrainTile] = []
        self._by_content: dict[tuple[float, float, bytes], int] = {}
        # Tiles are kept beside their number, so that no other comes to have the same identity.
        self._by_identity: dict[int, tuple[TerrainTile, int]] = {}

    def number(self, tile: TerrainTile) -> int:
        """The tile's number."""
        if id(tile) not in self._by_identity:
            digest = hashlib.sha256(np.ascontiguousarray(tile.heights).tobytes()).digest()
            content = tile.resolution_m, tile.period_m, digest
            number = self._by_content.setdefault(content, len(self.tiles))
            if number == len(self.tiles):
                self.tiles.append(tile)
            self._by_identity[id(tile)] = tile, number
        return self._by_identity[id(tile)][1]


def write_world(path: Path, book: TileBook, robots: Sequence[FixedPart]) -> None:
    """Write the world of some robots.

    The file holds, for T tiles, N robots and B barriers: `vertices` (T, 121 * 121, 3) in the scene
    and the `triangles` (F, 3) of each tile; the `place` (N, 3) of each robot's tile and its
    `period` (N,); `barrier_robot` (B,), `barrier_centre` (B, 3) in the scene, `barrier_half` (B, 3)
    and `barrier_yaw` (B,); `foot_friction` (N,), by whose average with the ground's 0 the foot's
    decides; `mass_offset` (N,) and `com_offset` (N, 3). Lengths in m, kg, rad; float32.
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
            [tile_vertices(tile) + place for tile, place in zip(tiles, places, strict=True)]
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
    """(T, 3) m: the middle of each tile in the scene, on a square grid around the origin.

    Around it, for float32 resolves least far away: 0.03 mm at 256 m.
    """
    side = math.ceil(math.sqrt(len(tiles)))
    pitch = 2.0 * max(tile.extent_m for tile in tiles) + GAP_M
    rows, columns = np.divmod(np.arange(len(tiles)), side)
    x, y = ((axis - (side - 1) / 2) * pitch for axis in (columns, rows))
    return np.stack([x, y, np.zeros(len(tiles))], axis=1)


def tile_vertices(tile: TerrainTile) -> np.ndarray:
    """(121 * 121, 3) m: the height map's points, row by row along y, relative to its middle."""
    axis = (np.arange(GRID + 1) - GRID / 2) * tile.resolution_m
    x, y = np.meshgrid(axis, axis)
    return np.stack([x, y, tile.heights], axis=-1).reshape(-1, 3)


def grid_triangles() -> np.ndarray:
    """(2 * 120 * 120, 3) uint32 triangles of a tile's vertices, counter-clockwise from above.

    Cells are cut from their first corner to the opposite one, as MuJoCo cuts its height fields.
    """
    corner = np.arange(GRID * (GRID + 1)).reshape(GRID, GRID + 1)[:, :-1].ravel()
    right, above, opposite = corner + 1, corner + GRID + 1, corner + GRID + 2
    lower = np.stack([corner, right, opposite], axis=1)
    upper = np.stack([corner, opposite, above], axis=1)
    return np.stack([lower, upper], axis=1).reshape(-1, 3).astype(np.uint32)
