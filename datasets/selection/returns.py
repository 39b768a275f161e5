"""Return-to-go of stored episodes, and how episodes end.

The catalog's `terminated` and `truncated` tell three endings apart:

- terminated: the robot failed. No reward follows: the sum of the stored rewards is the return.
- truncated: the horizon was reached. The sum is the return within the horizon, as in Decision
  Transformer (Chen et al. 2021, section 3); later steps are not bootstrapped, but `ending` lets a
  learner add a value.
- cut off (neither): recording stopped earlier. The sum is too small by an unknown amount, so such
  episodes are refused where returns are needed, unless partial sums are accepted explicitly.
"""

import numpy as np

from gaitforge.common.errors import DatasetError

CUT_OFF = 0
TRUNCATED = 1
TERMINATED = 2
"""Values of `ending`."""


def endings(terminated: np.ndarray, truncated: np.ndarray) -> np.ndarray:
    """(E,) uint8 endings; failing on the horizon's last step counts as terminated."""
    ending = np.where(terminated, TERMINATED, np.where(truncated, TRUNCATED, CUT_OFF))
    return ending.astype(np.uint8)


def check_complete(ending: np.ndarray) -> None:
    """Raise DatasetError if some episodes were cut off, whose return is unknown."""
    cut_off = int(np.count_nonzero(ending == CUT_OFF))
    if cut_off:
        raise DatasetError(
            f"{cut_off} of {len(ending)} episodes were cut off, so that their return-to-go is "
            "unknown; leave them out with where('terminated or truncated'), or take the sum of "
            "what was stored with partial_returns=True"
        )


def returns_to_go(rewards: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """(T,) float32 undiscounted sums of rewards from each step to its episode's last stored step.

    R_t = r_t + r_(t+1) + … + r_T (Chen et al. 2021, section 3), summed in float64. `rewards` (T,)
    are those of whole episodes, whose ascending first rows are `starts` (E,).
    """
    totals = np.cumsum(rewards, dtype=np.float64)
    ends = totals[starts + lengths - 1]
    before = totals - rewards
    return (np.repeat(ends, lengths) - before).astype(np.float32)
