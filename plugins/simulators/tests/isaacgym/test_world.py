"""The file that an Isaac Gym world is built from."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.scenarios.terrains import GRID, Barrier, TerrainTile, make_tile
from gaitforge.plugins.simulators.isaacgym.process import (
    GAP_M,
    FixedPart,
    TileBook,
    grid_triangles,
    tile_places,
    tile_vertices,
    write_world,
)
from tests.collectors.making import FLAT, height_between

STAIRS = make_tile("stairs", 6, 3)
WALL = Barrier((0.5, -0.2, 0.3), (0.4, 0.05, 0.5), 0.7)


def part(tile: int, *barriers: Barrier, friction: float = 0.8) -> FixedPart:
    return FixedPart(tile, barriers, friction, 1.5, (0.01, -0.02, 0.03))


def test_triangles_face_up_and_cover_the_tile_once() -> None:
    corners = tile_vertices(STAIRS)[grid_triangles()]
    first, second = corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0]
    area = (first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]) / 2
    np.testing.assert_allclose(area, STAIRS.resolution_m**2 / 2)
    assert area.sum() == pytest.approx((2 * STAIRS.extent_m) ** 2)
    assert len(area) == 2 * GRID * GRID


def test_the_mesh_has_the_heights_of_the_tile() -> None:
    tile = make_tile("rough", 7, 1)
    vertices = tile_vertices(tile)
    np.testing.assert_allclose(vertices[:, 2], height_between(tile, vertices[:, :2]), atol=1e-6)


@given(st.integers(1, 60))
def test_tiles_lie_apart_around_the_origin(count: int) -> None:
    places = tile_places([FLAT] * count)
    assert places.shape == (count, 3)
    apart = np.abs(places[:, None] - places[None]).max(axis=-1) + np.eye(count) * 1e9
    assert count == 1 or apart.min() == pytest.approx(2 * FLAT.extent_m + GAP_M)
    assert np.abs(places).max() <= np.sqrt(count) * (2 * FLAT.extent_m + GAP_M) / 2


def test_equal_tiles_have_one_number() -> None:
    book = TileBook()
    again = TerrainTile(STAIRS.heights.copy(), STAIRS.resolution_m, STAIRS.period_m)
    finer = TerrainTile(STAIRS.heights, STAIRS.resolution_m / 2, STAIRS.period_m / 2)
    numbers = [book.number(tile) for tile in (FLAT, STAIRS, again, finer, FLAT)]
    assert numbers == [0, 1, 1, 2, 0]
    assert book.tiles == [FLAT, STAIRS, finer]


def test_the_file_holds_what_the_robots_stand_on_and_among(tmp_path: Path) -> None:
    book = TileBook()
    unused, stairs, flat = (book.number(t) for t in (make_tile("slope", 1, 0), STAIRS, FLAT))
    robots = [part(stairs, WALL), part(flat, friction=0.5), part(stairs, WALL, WALL)]
    write_world(tmp_path / "world.npz", book, robots)
    with np.load(tmp_path / "world.npz", allow_pickle=False) as file:
        world = {name: file[name] for name in file.files}
    assert unused == 0
    assert world["vertices"].shape == (2, (GRID + 1) ** 2, 3), "tiles in use alone"
    assert {array.dtype.name for array in world.values()} == {"float32", "uint32", "int32"}
    np.testing.assert_array_equal(world["place"][0], world["place"][2])
    assert np.abs(world["place"][0] - world["place"][1]).max() > 2 * FLAT.extent_m
    on_stairs = world["vertices"][0] - world["place"][0]
    np.testing.assert_allclose(on_stairs, tile_vertices(STAIRS), atol=1e-5)
    assert world["barrier_robot"].tolist() == [0, 2, 2]
    centre = world["place"][0] + np.array(WALL.centre_m, dtype=np.float32)
    np.testing.assert_allclose(world["barrier_centre"], np.tile(centre, (3, 1)), atol=1e-6)
    np.testing.assert_allclose(world["barrier_half"][1], WALL.half_size_m)
    np.testing.assert_allclose(world["foot_friction"], [1.6, 1.0, 1.6])
    np.testing.assert_allclose(world["com_offset"][1], [0.01, -0.02, 0.03])
    write_world(tmp_path / "open.npz", book, [part(flat)])
    with np.load(tmp_path / "open.npz", allow_pickle=False) as file:
        assert file["barrier_centre"].shape == (0, 3)
        assert file["barrier_robot"].shape == (0,)
