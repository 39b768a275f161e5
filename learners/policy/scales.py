"""Bounds of a policy's normalised inputs, and channels that hardly ever change.

A channel that is 0 but for 5 of 100,000 steps has values of 141 standard deviations, and one whose
deviation is rounding has thousands once its sensor fails. Networks do anything with such inputs, so
they are bounded, as in Stable-Baselines3 (VecNormalize, clip_obs = 10). Deviation: the bound of
each channel follows from the data, whose own values are within it unless they are such.
"""

from collections.abc import Sequence

import numpy as np

from gaitforge.common.errors import listed
from gaitforge.datasets.analysis.statistics import ChannelStatistics
from gaitforge.learners.policy.normalisation import MIN_STD

LEAST = 10.0
MOST = 50.0
"""The bounds lie between these. Falling robots reach 19 standard deviations."""
_MARGIN = 2.0
_STILL = 1e-4
"""Standard deviation over size below which a channel hardly changes."""
_SHOWN = 4


def largest_inputs(statistics: ChannelStatistics) -> np.ndarray:
    """(C,) the largest normalised value of each channel in the data."""
    std = np.where(statistics.std < MIN_STD, 1.0, statistics.std)
    return np.maximum(statistics.max - statistics.mean, statistics.mean - statistics.min) / std


def input_bounds(largest: np.ndarray) -> np.ndarray:
    """(C,) bounds of normalised inputs: twice the data's largest ones, between LEAST and MOST."""
    return np.clip(_MARGIN * largest, LEAST, MOST)


def scale_notes(named: Sequence[tuple[Sequence[str], ChannelStatistics]]) -> list[str]:
    """A line that names the channels which hardly ever change, if there are any.

    `named`: names and statistics of the channels of each field.
    """
    rare: list[str] = []
    for names, statistics in named:
        size = np.maximum(np.abs(statistics.min), np.abs(statistics.max))
        still = (statistics.std >= MIN_STD) & (statistics.std < _STILL * size)
        rare += np.array(names)[still | (largest_inputs(statistics) > MOST)].tolist()
    if not rare:
        return []
    which = f"channel {rare[0]} hardly ever changes" if len(rare) == 1 else ""
    which = which or f"channels {listed(rare, _SHOWN)} hardly ever change"
    limits = f"{LEAST:.0f} to {MOST:.0f} standard deviations"
    return [f"{which}: normalised inputs are bounded at {limits} (see gaitforge doctor)"]


def return_notes(shares: np.ndarray) -> list[str]:
    """A line if the returns' shares of the expert's are as large as no input should be."""
    largest = float(np.abs(shares).max(initial=0.0))
    if largest <= MOST:
        return []
    return [f"returns reach {largest:,.0f} times the expert's, as the network sees them; "
            "set config.return_scale"]  # fmt: skip
