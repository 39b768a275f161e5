"""Return-to-go of stored episodes, and how episodes end.

An episode ends in one of three ways, told by the catalog's ``terminated`` and ``truncated``:

- terminated: the robot failed. No reward follows, so the sum of the stored rewards is the whole
  return.
- truncated: the horizon was reached. The sum is the return within the horizon, which is what
  Decision Transformer conditions on (Chen et al. 2021, section 3); nothing is bootstrapped for
  steps beyond it, and ``ending`` lets a learner that needs a value there add its own.
- cut off (neither): recording stopped before the episode did. What would have followed is unknown,
  so the sum of what was stored is too small by an unknown amount, and the more so the earlier the
  step. Such episodes are refused where returns are asked for, unless the caller says that partial
  sums will do.
"""

from __future__ import annotations

import numpy as np

from datasets.errors import DatasetError

CUT_OFF, TRUNCATED, TERMINATED = 0, 1, 2
"""Values of ``ending``."""


def endings(terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """(E,) uint8: how episodes ended; one that failed on the horizon's last step terminated."""
    return np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, CUT_OFF)).astype(
        np.uint8
    )


def check_complete(ending: np.ndarray) -> None:
    """Refuse episodes whose return is unknown.

    Raises:
        DatasetError: some of the episodes were cut off.
    """
    cut_off = int(np.count_nonzero(ending == CUT_OFF))
    if cut_off:
        raise DatasetError(
            f"{cut_off} of {len(ending)} episodes were cut off, so that their return-to-go is "
            "unknown; leave them out with where('terminated or truncated'), or take the sum of "
            "what was stored with partial_returns=True"
        )


def returns_to_go(rewards: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Sum of the rewards from each step to its episode's last stored step, undiscounted.

    R_t = r_t + r_(t+1) + … + r_T, the return-to-go of Decision Transformer (Chen et al. 2021,
    section 3). See the module for what it means for each ending.

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
