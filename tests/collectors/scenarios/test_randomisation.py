"""Domain randomisation draws."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.robots.robot import RobotError, load_robot
from gaitforge.collectors.scenarios.randomisation import (
    DRAW_INDEX,
    DRAW_NAMES,
    DRAWS,
    N_DRAWS,
    check_draws,
    draw_randomisation,
    nominal_draws,
    standardised,
)


@given(st.integers(0, 2**32))
def test_draws_lie_within_their_ranges_and_whole_ones_are_whole(seed: int) -> None:
    draws = draw_randomisation(np.random.default_rng(seed))
    assert draws.shape == (N_DRAWS,)
    for draw, value in zip(DRAWS, draws, strict=True):
        assert draw.low <= value <= draw.high, draw.name
        if draw.whole:
            assert value == round(value), draw.name


def test_draws_cover_their_ranges_evenly() -> None:
    rng = np.random.default_rng(0)
    drawn = np.stack([draw_randomisation(rng) for _ in range(2000)])
    for draw, values in zip(DRAWS, drawn.T, strict=True):
        if draw.whole:
            found, counts = np.unique(values, return_counts=True)
            assert found.tolist() == list(range(int(draw.low), int(draw.high) + 1)), draw.name
        else:
            counts, _ = np.histogram(values, 8, (draw.low, draw.high))
        assert counts.min() > 0.75 * counts.mean(), draw.name


def test_the_nominal_robot_lies_inside_the_ranges() -> None:
    for draw, value in zip(DRAWS, nominal_draws(), strict=True):
        assert value == draw.nominal
        assert draw.low <= value <= draw.high, draw.name


def test_standardised_draws_run_from_minus_one_to_one() -> None:
    low = np.array([draw.low for draw in DRAWS])
    high = np.array([draw.high for draw in DRAWS])
    np.testing.assert_array_equal(standardised(low), -1.0)
    np.testing.assert_array_equal(standardised(high), 1.0)
    assert standardised(np.stack([low, high])).shape == (2, N_DRAWS)
    assert standardised(low).dtype == np.float32


@pytest.mark.parametrize("name", DRAW_NAMES)
def test_a_draw_has_to_be_a_number_and_where_it_scales_positive(name: str) -> None:
    robot, draws = load_robot(), nominal_draws()
    check_draws(robot, 1.01)  # the lowest of all
    for value in (np.nan, np.inf, -np.inf):
        draws[DRAW_INDEX[name]] = value
        with pytest.raises(RobotError, match=f"aliengo.*{name}"):
            check_draws(robot, 13.0, draws)


def test_an_offset_leaves_the_trunk_some_mass() -> None:
    with pytest.raises(RobotError, match="base_mass_offset_kg -1 leaves 0 of 1 kg of 'trunk'"):
        check_draws(load_robot(), 1.0)
