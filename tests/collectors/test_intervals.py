"""Confidence intervals: the laws that they state, against SciPy and by how often they cover."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.flows.intervals import (
    combined_interval,
    mean_interval,
    ratio,
    ratio_interval,
    success_interval,
)

stats = pytest.importorskip("scipy.stats")


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_the_interval_of_a_success_rate_is_wilsons(outcomes: list[bool]) -> None:
    low, high = success_interval(sum(outcomes), len(outcomes))
    known = stats.binomtest(sum(outcomes), len(outcomes)).proportion_ci(0.95, "wilson")
    assert (low, high) == pytest.approx((known.low, known.high), abs=1e-6)
    assert 0 <= low <= sum(outcomes) / len(outcomes) <= high <= 1


@given(st.integers(2, 300))
def test_the_interval_of_a_mean_is_students(n: int) -> None:
    values = np.random.default_rng(n).normal(3, 2, n)
    known = stats.t.interval(0.95, n - 1, values.mean(), stats.sem(values))
    half = (known[1] - known[0]) / 2
    assert mean_interval(values.tolist()) == pytest.approx(known, abs=3e-3 * half)
    assert mean_interval([1.0]) is None


def test_equal_cells_add_up_to_the_stratified_standard_error() -> None:
    cells = np.random.default_rng(1).normal(0, 1, (5, 20))
    interval = combined_interval(
        [c.mean() for c in cells], [mean_interval(c.tolist()) for c in cells]
    )
    error = np.sqrt((cells.var(axis=1, ddof=1) / 20).sum()) / 5
    assert interval == pytest.approx(stats.t.interval(0.95, 19, cells.mean(), error), rel=1e-3)
    assert combined_interval([1.0, 2.0], [(0.0, 2.0), None]) is None
    assert combined_interval([0.5, 0.5], [(0.2, 0.6), (0.1, 0.7)]) == pytest.approx(
        (0.25, 0.5 + np.hypot(0.1, 0.2) / 2)
    )


@pytest.mark.parametrize("kind", ["success", "ratio"])
def test_combined_intervals_cover_the_truth_as_often_as_they_say(kind: str) -> None:
    """4 cells of 20 episodes, 1,000 times; the expert and the policy share their starts."""
    rng = np.random.default_rng(2)
    truth, hits, trials = np.array([0.05, 0.5, 0.9, 1.0]), 0, 1000
    for _ in range(trials):
        if kind == "success":
            won = rng.binomial(20, truth)
            each = [success_interval(int(n), 20) for n in won]
            interval, true = combined_interval(list(won / 20), each), truth.mean()
        else:
            start = rng.normal(0, 1, (4, 20))
            expert = 10 + start + rng.normal(0, 0.2, (4, 20))
            policy = 10 * truth[:, None] + start + rng.normal(0, 0.2, (4, 20))
            interval, true = ratio_interval(policy.tolist(), expert.tolist()), truth.mean()
        assert interval is not None
        hits += interval[0] <= true <= interval[1]
    assert 0.93 <= hits / trials <= 0.995


def test_pairs_narrow_the_interval_of_a_ratio_and_an_expert_at_zero_has_none() -> None:
    rng = np.random.default_rng(3)
    expert = rng.normal(10, 2, (3, 30))
    paired = ratio_interval((0.9 * expert).tolist(), expert.tolist())
    shuffled = ratio_interval((0.9 * expert[:, ::-1]).tolist(), expert.tolist())
    assert paired is not None
    assert shuffled is not None
    assert paired == pytest.approx((0.9, 0.9))
    assert shuffled[1] - shuffled[0] > 0.05
    assert ratio_interval([[1.0, 2.0]], [[-1.0, 0.0]]) is None
    assert ratio_interval([[1.0]], [[1.0]]) is None, "one episode"
    assert ratio_interval([], []) is None


any_float = st.floats(allow_nan=True, allow_infinity=True)
tiny = st.sampled_from([5e-324, 1e-310, 1e-200, 0.0, -0.0, -1e-300])


@given(any_float, any_float | tiny)
def test_a_ratio_is_a_number_of_json_or_none(value: float, of: float) -> None:
    share = ratio(value, of)
    json.dumps(share, allow_nan=False)
    if share is None:
        with np.errstate(all="ignore"):
            assert not of > 0 or not np.isfinite(np.float64(value) / of)
    else:
        assert share == value / of


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=4), st.floats(0, 1e-305) | tiny)
def test_the_interval_over_an_expert_at_almost_zero_is_finite_or_none(
    returns: list[float], of: float
) -> None:
    interval = ratio_interval([returns], [[of] * len(returns)])
    assert "Infinity" not in (text := json.dumps(interval))
    assert "NaN" not in text
