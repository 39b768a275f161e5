"""Terrain tiles: periodic, graded by level, repeatable, and read as they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.scenarios.terrains import (
    GRID,
    MARGIN_CELLS,
    N_LEVELS,
    TERRAINS,
    TerrainTile,
    difficulty,
    make_tile,
    tile_heights,
)

PERIOD_CELLS = GRID - 2 * MARGIN_CELLS

terrains = st.sampled_from(sorted(TERRAINS))
levels = st.integers(0, N_LEVELS - 1)
variants = st.integers(0, 2000)


def steepest(tile: TerrainTile) -> float:
    """Largest rise between neighbouring grid points along one axis, m."""
    return float(max(np.abs(np.diff(tile.heights, axis=axis)).max() for axis in (0, 1)))


@given(terrains, levels, variants)
def test_tiles_repeat_across_the_seam(terrain: str, level: int, variant: int) -> None:
    heights = make_tile(terrain, level, variant).heights
    beyond = GRID + 1 - PERIOD_CELLS
    np.testing.assert_array_equal(heights[:beyond], heights[PERIOD_CELLS:])
    np.testing.assert_array_equal(heights[:, :beyond], heights[:, PERIOD_CELLS:])


@given(terrains, levels, variants)
def test_the_same_arguments_give_the_same_tile(terrain: str, level: int, variant: int) -> None:
    first = make_tile(terrain, level, variant)
    make_tile.cache_clear()
    again = make_tile(terrain, level, variant)
    assert again is not first
    np.testing.assert_array_equal(again.heights, first.heights)
    assert (again.period_m, again.resolution_m) == (first.period_m, first.resolution_m)


@pytest.mark.parametrize("terrain", ["rough", "obstacles"])
def test_variants_differ(terrain: str) -> None:
    assert (make_tile(terrain, 4, 0).heights != make_tile(terrain, 4, 1).heights).any()


@pytest.mark.parametrize("terrain", ["slope", "stairs"])
def test_pyramids_come_upright_and_inverted(terrain: str) -> None:
    tiles = [make_tile(terrain, 4, variant).heights for variant in range(16)]
    assert {float(np.sign(tile.min() + tile.max())) for tile in tiles} == {-1.0, 1.0}


@pytest.mark.parametrize("terrain", sorted(set(TERRAINS) - {"flat"}))
def test_a_higher_level_is_harder(terrain: str) -> None:
    relief = [
        np.mean([np.ptp(make_tile(terrain, level, variant).heights) for variant in range(8)])
        for level in range(N_LEVELS)
    ]
    assert relief == sorted(relief)
    assert relief[-1] > 2 * relief[0]


@given(levels, variants)
def test_flat_ground_is_flat(level: int, variant: int) -> None:
    assert not make_tile("flat", level, variant).heights.any()


@given(levels, variants)
def test_rough_ground_stays_within_its_amplitude(level: int, variant: int) -> None:
    amplitude = 0.01 + 0.05 * difficulty(level)
    heights = make_tile("rough", level, variant).heights
    assert np.abs(heights).max() <= amplitude + 1e-6
    assert np.abs(heights).max() > 0.9 * amplitude


@given(levels, variants)
def test_the_slope_has_the_documented_grade(level: int, variant: int) -> None:
    tile = make_tile("slope", level, variant)
    grade = 0.05 + 0.35 * difficulty(level)
    assert steepest(tile) == pytest.approx(grade * tile.resolution_m, rel=1e-4)
    uphill = tile_heights(tile, np.array([[1.0, 0.0], [2.0, 0.0]]))
    assert abs(float(uphill[1] - uphill[0])) == pytest.approx(grade, rel=1e-4)


@given(levels, variants)
def test_stairs_rise_as_documented_every_30_cm(level: int, variant: int) -> None:
    tile = make_tile("stairs", level, variant)
    rise = 0.03 + 0.15 * difficulty(level)
    assert steepest(tile) == pytest.approx(rise, rel=1e-4)
    treads = tile_heights(tile, np.array([[0.8 + 0.3 * k, 0.0] for k in range(5)]))
    np.testing.assert_allclose(np.abs(np.diff(treads)), rise, rtol=1e-4)


@given(levels, variants)
def test_obstacles_stay_within_their_height(level: int, variant: int) -> None:
    height = 0.03 + 0.12 * difficulty(level)
    heights = make_tile("obstacles", level, variant).heights
    assert np.abs(heights).max() <= height + 1e-6


@given(st.sampled_from(["slope", "stairs", "obstacles"]), levels, variants)
def test_the_start_is_clear(terrain: str, level: int, variant: int) -> None:
    tile = make_tile(terrain, level, variant)
    side = np.arange(-0.5, 0.51, 0.1)
    around = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)
    np.testing.assert_array_equal(tile_heights(tile, around), 0.0)


def test_an_unknown_terrain_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"unknown terrain 'moon'; allowed: flat, rough"):
        make_tile("moon", 0, 0)


@pytest.mark.parametrize("level", [-1, N_LEVELS])
def test_a_level_out_of_range_is_refused(level: int) -> None:
    with pytest.raises(ValueError, match=f"level {level} is outside 0-9"):
        make_tile("flat", level, 0)


def test_tiles_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        make_tile("flat", 0, 0).heights[0, 0] = 1.0


@given(terrains, levels, st.data())
def test_look_ups_at_grid_points_are_the_tiles_heights_and_wrap(
    terrain: str, level: int, data: st.DataObject
) -> None:
    tile = make_tile(terrain, level, 3)
    column = data.draw(st.integers(MARGIN_CELLS, MARGIN_CELLS + PERIOD_CELLS - 1))
    row = data.draw(st.integers(MARGIN_CELLS, MARGIN_CELLS + PERIOD_CELLS - 1))
    tiles_away = np.array([data.draw(st.integers(-3, 3)), data.draw(st.integers(-3, 3))])
    local = (np.array([column, row]) - GRID // 2) * tile.resolution_m
    point = local + tiles_away * tile.period_m
    assert tile_heights(tile, point[None])[0] == tile.heights[row, column]
