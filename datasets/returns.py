"""Return-to-go of stored episodes."""

from __future__ import annotations

import numpy as np


def returns_to_go(rewards: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sum of the rewards from each step to its episode's last stored step, undiscounted.

    R_t = r_t + r_(t+1) + … + r_T, the return-to-go of Decision Transformer (Chen et al. 2021,
    section 3). An episode that was truncated or cut off is summed to its last stored step like one
    that terminated, with no value bootstrapped for the steps that were never taken: R_t is then the
    return that was really collected within the stored horizon. The catalog's ``terminated`` and
    ``truncated`` tell the kinds apart for a caller who wants to leave such episodes out.

    Args:
        rewards: (T,) rewards of whole episodes, ordered by row.
        starts: (E,) first row of each episode, ascending, together covering all T rows.
        lengths: (E,) steps of each episode.

    Returns:
        (T,) float32; summed in float64.
    """
    totals = np.cumsum(rewards, dtype=np.float64)
    ends = totals[starts + lengths - 1]
    before = totals - rewards
    return (np.repeat(ends, lengths) - before).astype(np.float32)
