"""Confidence intervals of mean returns and success rates, and statistics over seeds and tasks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import TypeAlias

import numpy as np

# Intervals of means and success rates.
Interval: TypeAlias = tuple[float, float]

Z_95 = 1.959964
_DEGREES = np.array([np.inf, 120, 60, 30, 20, 15, 12, 10, 8, 7, 6, 5, 4, 3, 2, 1])
_T_95 = (
    Z_95,
    1.9799,
    2.0003,
    2.0423,
    2.0860,
    2.1314,
    2.1788,
    2.2281,
    2.3060,
    2.3646,
    2.4469,
    2.5706,
    2.7764,
    3.1824,
    4.3027,
    12.7062,
)
"""Student's t by degrees of freedom: Abramowitz and Stegun (1964), Table 26.10."""


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Interval of a mean: -+ t s / sqrt(n), t interpolated in 1 / (n - 1); None for one value."""
    n = len(values)
    if n < 2:
        return None
    half = np.interp(1 / (n - 1), 1 / _DEGREES, _T_95) * np.std(values, ddof=1) / np.sqrt(n)
    return float(np.mean(values) - half), float(np.mean(values) + half)


def success_interval(successes: int, episodes: int) -> Interval:
    """Wilson's score interval (1927), as in Brown, Cai and DasGupta (2001), Stat. Sci. 16."""
    p = successes / episodes
    z2 = Z_95**2 / episodes
    centre = p + z2 / 2
    half = float(np.sqrt(z2 * (p * (1 - p) + z2 / 4)))
    # Clipped against rounding errors in the last bit.
    low = min(p, (centre - half) / (1 + z2))
    high = max(p, (centre + half) / (1 + z2))
    return max(0.0, low), min(1.0, high)


def combined_interval(
    means: Sequence[float], intervals: Sequence[Interval | None]
) -> Interval | None:
    """Interval of a mean over independent cells of equal weight; None where a cell has none.

    The distances to the limits add up in squares (MOVER: Zou, Huang and Zhang 2009, Comput. Stat.
    Data Anal. 53); for equal cells this is t times the stratified standard error.
    """
    if not intervals or None in intervals:
        return None
    low, high = np.linalg.norm(np.array(intervals) - np.array(means)[:, None], axis=0) / len(means)
    return float(np.mean(means) - low), float(np.mean(means) + high)


def ratio(value: float, of: float) -> float | None:
    """The share value / of; None where `of` is not above 0, or it is too large for a number."""
    if not of > 0:
        return None
    share = value / of
    return share if math.isfinite(share) else None


def ratio_interval(
    returns: Sequence[Sequence[float]], references: Sequence[Sequence[float]]
) -> Interval | None:
    """Interval of mean(returns) / mean(references); rows are cells, pairs have the same start.

    The combined ratio estimate of stratified samples: of the mean of x - R y, over the mean of y
    (Cochran 1977, Sampling Techniques, chapter 6). None where `ratio` is.
    """
    if not returns or not references:
        return None
    of = float(np.mean(references))
    mean_ratio = ratio(float(np.mean(returns)), of)
    if mean_ratio is None:
        return None
    rests = np.array(returns) - mean_ratio * np.array(references)
    interval = combined_interval(rests.mean(axis=1).tolist(), [mean_interval(row) for row in rests])
    if interval is None:
        return None
    low, high = (ratio(end, of) for end in interval)
    return None if low is None or high is None else (mean_ratio + low, mean_ratio + high)


# Statistics over seeds and tasks.
SAMPLES = 2000
Statistic = Callable[[np.ndarray], np.ndarray]
"""(..., N) scores -> (...)."""


def interquartile_mean(scores: np.ndarray) -> np.ndarray:
    """(..., N) -> (...): the mean of the middle half, a quarter of N left out at either end.

    Section 4.3 of the paper; rounded as scipy's `trim_mean`, which its library rliable uses.
    """
    cut = scores.shape[-1] // 4
    return np.sort(scores, axis=-1)[..., cut : scores.shape[-1] - cut].mean(axis=-1)


def mean(scores: np.ndarray) -> np.ndarray:
    """(..., N) -> (...)."""
    return scores.mean(axis=-1)


def stratified_interval(
    scores: Sequence[Sequence[float]], statistic: Statistic, seed: int = 0
) -> Interval | None:
    """The 95 % percentile interval of a statistic by the stratified bootstrap.

    A task's runs are drawn with replacement among that task's own (section 4.2), `SAMPLES` times.

    Args:
        scores: a row of runs for each task; rows may differ in length.

    Returns:
        None where a task has a single run.
    """
    if not scores or min(map(len, scores)) < 2:
        return None
    rng = np.random.default_rng(seed)
    drawn = [
        np.asarray(runs)[rng.integers(len(runs), size=(SAMPLES, len(runs)))] for runs in scores
    ]
    low, high = np.percentile(statistic(np.concatenate(drawn, axis=1)), [2.5, 97.5])
    return float(low), float(high)


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation."""

    mean: float | None
    std: float | None


def mean_and_std(values: Sequence[float | None]) -> Spread:
    """Mean and sample standard deviation; None where a value is missing, or for too few values."""
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite or len(finite) < len(values):
        return Spread(None, None)
    return Spread(fmean(finite), stdev(finite) if len(finite) > 1 else None)
