"""Statistics over seeds, and over several tasks (Agarwal et al. 2021, arXiv 2108.13264)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

import numpy as np

from gaitforge.collectors.intervals import Interval

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
