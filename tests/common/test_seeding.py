"""Generators of many seeds are NumPy's."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gaitforge.common.seeding import generators

NUMBERS = st.integers(0, (1 << 160) - 1)


@given(st.lists(NUMBERS | st.lists(NUMBERS, min_size=1, max_size=4), max_size=5))
@example([0, (1 << 32) - 1, 1 << 32, (1 << 128) - 1, 1 << 128])
def test_numbers_are_those_of_numpys_generators(seeds: list[int | list[int]]) -> None:
    made = list(generators(seeds))
    assert len(made) == len(seeds)
    for seed, generator in zip(seeds, made, strict=True):
        expected = np.random.default_rng(seed)
        assert generator.bit_generator.state == expected.bit_generator.state
        assert generator.random() == expected.random()


@pytest.mark.parametrize("seed", [-1, [3, -1]])
def test_a_seed_below_zero_is_refused_as_numpy_does(seed: int | list[int]) -> None:
    with pytest.raises(ValueError, match="from 0 on, not -1"):
        list(generators([seed]))
