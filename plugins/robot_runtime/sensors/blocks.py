"""A log in blocks of 0.1 s, as the check and its C code read it.

Means over blocks take most of the sensors' noise away. What is left in a block is another's noise
than that of the next block, so products of one block with the next have the signal's mean alone:
`lagged` is a covariance without noise (instrumental variables: Durbin, Errors in Variables, 1954).
"""

from dataclasses import dataclass

import numpy as np

from gaitforge.plugins.robot_runtime.sensors.logs import SensorLog

BLOCK_S = 0.1
"""Seconds of a block: short beside tilting by hand (below 1 Hz), two rows at 20 Hz."""
MIN_ROWS = 2
"""Rows of a block that counts."""
MIN_PAIRS = 20
"""Pairs of neighbouring blocks that a check needs."""
ROUNDING = 1e-6
"""Blocks' share by which a row's time may be rounded down and still open the next block."""


@dataclass(frozen=True)
class Blocks:
    """Means over K blocks, and what changes over the P pairs of neighbouring blocks.

    Attributes:
        q (K, 12), quat (K, 4; not yet of length 1): means.
        first (P,): the first block of each pair.
        seconds (P,): between the middles of a pair's rows.
        q_rate (P, 12): difference of q over a pair, over its seconds.
        dq (P, 12), gyro (P, 3): means with the weights of a triangle over the pair, which a
            difference of two means has of the rate.
    """

    q: np.ndarray
    quat: np.ndarray
    first: np.ndarray
    seconds: np.ndarray
    q_rate: np.ndarray
    dq: np.ndarray
    gyro: np.ndarray


def make_blocks(log: SensorLog) -> Blocks:
    """The blocks of a log; ValueError if fewer than 20 pairs of neighbours have enough rows.

    The last block is left out, as more rows might follow.
    """
    phase = (log.time_s - log.time_s[0]) / BLOCK_S + ROUNDING
    index = np.floor(phase)
    phase = phase - index
    starts = np.flatnonzero(np.diff(index, prepend=-1))
    ends = np.append(starts[1:], len(index))
    whole = (ends - starts >= MIN_ROWS) & (ends < len(index))
    counts = (ends - starts)[:, None]

    def sums(values: np.ndarray) -> np.ndarray:
        return np.add.reduceat(values, starts, axis=0)

    rates = np.concatenate([log.dq, log.gyro], axis=1)
    rising = sums(phase[:, None] * rates)
    falling = sums(rates) - rising
    rise = sums(phase)
    fall = counts[:, 0] - rise
    place = index[starts]
    first = np.flatnonzero(whole[:-1] & whole[1:] & (np.diff(place) == 1))
    if len(first) < MIN_PAIRS:
        raise ValueError("fewer than 2 s of rows without gaps; log at least 20 rows a second")
    q = sums(log.q) / counts
    quat = sums(_one_sign(log.quat)) / counts
    middle = sums(log.time_s) / counts[:, 0]
    seconds = middle[first + 1] - middle[first]
    weight = rise[first] + fall[first + 1]
    mean_rates = (rising[first] + falling[first + 1]) / weight[:, None]
    q_rate = (q[first + 1] - q[first]) / seconds[:, None]
    n = log.dq.shape[1]
    return Blocks(q, quat, first, seconds, q_rate, mean_rates[:, :n], mean_rates[:, n:])


def _one_sign(quat: np.ndarray) -> np.ndarray:
    """Quaternions with the signs that make neighbours alike: q and -q are the same attitude."""
    turned = (quat[1:] * quat[:-1]).sum(axis=1) < 0
    signs = np.where(np.cumsum(np.concatenate([[False], turned])) % 2, -1.0, 1.0)
    return quat * signs[:, None]


def lagged(a: np.ndarray, b: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Covariances (...) of block values a and b (K, ...), a of each pair's first, b of its second.

    Both are taken about their means over the pairs.
    """
    one = a[first]
    other = b[first + 1]
    return (one * other).mean(axis=0) - one.mean(axis=0) * other.mean(axis=0)
