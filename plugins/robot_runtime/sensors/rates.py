"""dq against differences of q, and the gyro against turns of the attitude.

Both compare measured rates with expected ones over pairs of blocks. An explanation (a mapping from
expected to measured rates) is worth the squares that it leaves, over the noise's variance: twice
its log-likelihood but for a constant.
"""

from dataclasses import dataclass

import numpy as np

from gaitforge.plugins.robot_runtime.sensors.hypotheses import (
    NO_MAP,
    GyroMap,
    JointMap,
    gyro_maps,
    single_joint_maps,
)

CERTAIN = 40.0
"""Difference of two explanations' squares that is no chance: 6 deviations."""
ALIKE = 9.0
"""Difference below which two explain the data alike: 3 deviations."""
MATERIAL = 0.15
"""Share of the squares beyond the noise's by which a better explanation has to be better."""
WRONG_SLOPE = 0.4
"""Distance of a slope from 1 that is wrong, for filters and delays make it less by themselves."""
UNSURE_SLOPE = 0.5
"""Standard error of a slope above which the motion was too little to judge it."""
OVERLAP = 2 / 3
"""Independent pairs a pair: neighbouring pairs share a block."""


@dataclass(frozen=True)
class Moments:
    """Sums over pairs, about the means: of expected rates X (P, m) and measured Y (P, n).

    Attributes:
        xx (m,), yy (n,): squares; xy (n, m): products.
        pairs: P.
    """

    xx: np.ndarray
    yy: np.ndarray
    xy: np.ndarray
    pairs: int

    @property
    def noise(self) -> np.ndarray:
        """(n,) variances of what the best single expected rate leaves of each measured one."""
        left = self.yy[:, None] - self.xy**2 / np.maximum(self.xx, 1e-12)
        return np.maximum(left.min(axis=1) / self.pairs, 1e-8)

    @property
    def slopes(self) -> np.ndarray:
        """(n,) of each measured rate on the expected one of its place."""
        return np.diagonal(self.xy) / np.maximum(self.xx, 1e-12)

    @property
    def slope_errors(self) -> np.ndarray:
        """(n,) standard errors of the slopes."""
        left = self.yy - np.diagonal(self.xy) ** 2 / np.maximum(self.xx, 1e-12)
        variance = np.maximum(left, 0) / (self.pairs * OVERLAP)
        return np.sqrt(variance / np.maximum(self.xx, 1e-12))

    @property
    def slope(self) -> float:
        """Of all measured rates on the expected ones of their places."""
        weights = 1 / self.noise
        return float((weights * np.diagonal(self.xy)).sum() / max((weights * self.xx).sum(), 1e-12))

    def squares(self, source: np.ndarray, factor: np.ndarray) -> np.ndarray:
        """(H,) what explanations leave: measured[j] = factor[h, j] * expected[source[h, j]]."""
        rows = np.arange(len(self.yy))
        left = self.yy - 2 * factor * self.xy[rows, source] + factor**2 * self.xx[source]
        return OVERLAP * (left / self.noise).sum(axis=1)


def moments(expected: np.ndarray, measured: np.ndarray) -> Moments:
    """The sums of rates (P, m) and (P, n)."""
    x = expected - expected.mean(axis=0)
    y = measured - measured.mean(axis=0)
    return Moments((x * x).sum(axis=0), (y * y).sum(axis=0), y.T @ x, len(x))


@dataclass(frozen=True)
class RateFit:
    """What explains measured rates.

    Attributes:
        best: the explanation with the fewest mistakes of those that explain them best.
        alike: others with as few that explain them alike.
        gain: squares that it leaves less than the one that is taken without evidence.
        moments: of right expected rates and the measured ones.
    """

    best: JointMap | GyroMap
    alike: tuple[JointMap | GyroMap, ...]
    gain: float
    moments: Moments


def joint_rates(sums: Moments, right: JointMap = NO_MAP) -> RateFit:
    """The joint map that puts dq right, for the sums of q's rates as logged and dq as logged.

    right: what puts q right; without evidence of another one dq is taken to share it.
    """
    maps = (
        right,
        *(joint_map for joint_map in (NO_MAP, *single_joint_maps()[1:]) if joint_map != right),
    )
    # Right dq is the right rate: map(dq) = right(rate), so dq[source[j]] * factor[j] = rate[j].
    factor = np.array(right.signs) * right.scale
    source = list(right.source)
    xy = sums.xy[:, source] * factor
    turned = Moments(sums.xx[source] * factor**2, sums.yy, xy, sums.pairs)
    places = np.array([joint_map.source for joint_map in maps])
    factors = np.array([joint_map.signs for joint_map in maps]) * np.array(
        [[joint_map.scale] for joint_map in maps]
    )
    inverse = np.argsort(places, axis=1)
    squares = turned.squares(inverse, 1 / np.take_along_axis(factors, inverse, axis=1))
    return _chosen(maps, turned, squares)


def gyro_rates(gyro: np.ndarray, turning: np.ndarray) -> RateFit:
    """The gyro map that puts measured rates (P, 3) right, beside those of the attitude (P, 3).

    The attitude's rates, differences of noisy attitudes, are the noisier ones of the two: so they
    are what is explained.
    """
    sums = moments(gyro, turning)
    maps = gyro_maps()
    places = np.array([joint_map.source for joint_map in maps])
    factors = np.array([joint_map.signs for joint_map in maps]) * np.array(
        [[joint_map.scale] for joint_map in maps]
    )
    return _chosen(maps, sums, sums.squares(places, factors))


def _chosen(
    maps: tuple[JointMap, ...] | tuple[GyroMap, ...], sums: Moments, squares: np.ndarray
) -> RateFit:
    """The fit: the first map unless another is better, for certain and materially."""
    gain = float(squares[0] - squares.min())
    signal = OVERLAP * float((sums.yy / sums.noise - sums.pairs).sum())
    if gain < max(CERTAIN, MATERIAL * signal):
        return RateFit(maps[0], (), 0.0, sums)
    near = np.flatnonzero(squares <= squares.min() + ALIKE)
    fewest = min(maps[k].cost for k in near)
    ranked = sorted((k for k in near if maps[k].cost == fewest), key=lambda k: squares[k])
    best, *alike_maps = [maps[k] for k in ranked]
    return RateFit(best, tuple(alike_maps), float(squares[0] - squares[ranked[0]]), sums)
