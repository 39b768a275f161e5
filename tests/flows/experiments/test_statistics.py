"""Intervals over tasks and seeds: what they contain, and when there are none."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.flows.intervals import (
    Spread,
    interquartile_mean,
    mean,
    mean_and_std,
    stratified_interval,
)

RUNS = st.lists(st.lists(st.floats(-100, 200), min_size=2, max_size=6), min_size=1, max_size=5)


@given(values=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=40))
def test_the_interquartile_mean_ignores_the_outer_quarters(values: list[float]) -> None:
    ordered = sorted(values)
    cut = len(values) // 4
    middle = ordered[cut : len(values) - cut]
    got = float(interquartile_mean(np.array(values)))
    assert np.isclose(got, np.mean(middle))
    far = [value - 1e6 for value in ordered[:cut]]
    far += middle + [value + 1e6 for value in ordered[len(values) - cut :]]
    assert np.isclose(float(interquartile_mean(np.array(far))), got)


@given(scores=RUNS, shift=st.floats(-50, 50))
def test_intervals_hold_the_mean_stay_within_the_runs_and_move_with_them(
    scores: list[list[float]], shift: float
) -> None:
    interval = stratified_interval(scores, mean)
    assert interval is not None
    low, high = interval
    every = np.concatenate(scores)
    assert every.min() - 1e-9 <= low <= high <= every.max() + 1e-9
    moved = stratified_interval([[v + shift for v in runs] for runs in scores], mean)
    assert moved is not None
    assert np.allclose(moved, (low + shift, high + shift), atol=1e-6)


def test_tasks_are_drawn_apart() -> None:
    """Between tasks that differ only among themselves, nothing is uncertain."""
    assert stratified_interval([[0.0, 0.0, 0.0], [100.0, 100.0]], mean) == (40.0, 40.0)
    assert stratified_interval([[1.0, 2.0], [3.0]], mean) is None
    assert stratified_interval([], mean) is None


def test_a_mean_of_many_runs_is_as_uncertain_as_its_standard_error() -> None:
    runs = np.random.default_rng(0).normal(50.0, 10.0, size=400)
    interval = stratified_interval([runs.tolist()], mean)
    assert interval is not None
    half = 1.96 * runs.std() / 20.0
    assert np.allclose(interval, (runs.mean() - half, runs.mean() + half), atol=0.15)


def test_mean_and_standard_deviation() -> None:
    assert mean_and_std([1.0, 2.0, 3.0]) == Spread(2.0, 1.0)
    assert mean_and_std([4.0]) == Spread(4.0, None)
    assert mean_and_std([4.0, None]) == Spread(None, None)
