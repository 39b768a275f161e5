"""What may be wrong with order, signs, units and axes: each a mapping that puts it right.

A `JointMap` puts logged joints right, a `Reading` a logged quaternion, a `GyroMap` a logged gyro.
Those with a cost of 1 are single mistakes; the first of each list is "nothing is wrong". The C code
knows the joint maps and readings by their place in these lists.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import permutations, product

import numpy as np

from gaitforge.collectors.robots.robot import (
    JOINTS_OF_A_LEG,
    JOINTS_PER_LEG,
    LEGS,
    N_JOINTS,
    N_LEGS,
)

DEGREE = np.pi / 180
_TURN_COST = 1


@dataclass(frozen=True)
class JointMap:
    """Right joints from logged ones: right[j] = scale * signs[j] * logged[source[j]].

    Attributes:
        kind: order, sign or unit; empty for nothing wrong.
        text: what is wrong, in words, after "q: " or "dq: ".
        joints: places of the joints that are wrong.
        cost: how many mistakes it takes.
    """

    kind: str
    text: str
    source: tuple[int, ...] = tuple(range(N_JOINTS))
    signs: tuple[int, ...] = (1,) * N_JOINTS
    scale: float = 1.0
    cost: int = 1

    @property
    def joints(self) -> tuple[int, ...]:
        """Places of the joints that it changes."""
        if self.scale != 1.0:
            return tuple(range(N_JOINTS))
        pairs = enumerate(zip(self.source, self.signs, strict=True))
        return tuple(j for j, (source, sign) in pairs if source != j or sign < 0)

    def apply(self, joints: np.ndarray) -> np.ndarray:
        """Right joints (..., 12) from logged ones."""
        return joints[..., list(self.source)] * (np.array(self.signs) * self.scale)


@dataclass(frozen=True)
class Reading:
    """How a logged quaternion gives the trunk's attitude.

    Attributes:
        kind: order, convention or axes; empty for nothing wrong.
        order: places of w, x, y, z among the four logged numbers.
        signs: of w, x, y, z then.
        turn: (3, 3), right vectors in the trunk's frame from those of this attitude.
    """

    kind: str
    text: str
    order: tuple[int, ...] = (0, 1, 2, 3)
    signs: tuple[int, ...] = (1, 1, 1, 1)
    turn: tuple[tuple[int, ...], ...] = ((1, 0, 0), (0, 1, 0), (0, 0, 1))
    cost: int = _TURN_COST

    def quaternion(self, quat: np.ndarray) -> np.ndarray:
        """(..., 4) w, x, y, z of logged quaternions, of their lengths."""
        return quat[..., list(self.order)] * np.array(self.signs)

    def up(self, quat: np.ndarray) -> np.ndarray:
        """(K, 3) upward unit vectors in the trunk's frame."""
        w, x, y, z = self.quaternion(quat).T
        square = w * w + x * x + y * y + z * z
        up = [2 * (x * z - w * y), 2 * (y * z + w * x), w * w - x * x - y * y + z * z]
        return (np.stack(up, axis=1) / square[:, None]) @ np.array(self.turn).T

    def rates(self, quat: np.ndarray, first: np.ndarray, seconds: np.ndarray) -> np.ndarray:
        """(P, 3) rad/s in the trunk's frame, from the attitudes of neighbouring blocks.

        Twice the vector part of conj(a) b over its scalar part: the turn from a to b for small
        turns (Rodrigues' vector).
        """
        w, x, y, z = self.quaternion(quat[first]).T
        v, a, b, c = self.quaternion(quat[first + 1]).T
        scalar = w * v + x * a + y * b + z * c
        vector = np.stack(
            [
                w * a - x * v - y * c + z * b,
                w * b + x * c - y * v - z * a,
                w * c - x * b + y * a - z * v,
            ],
            axis=1,
        )
        return 2 * vector / (scalar * seconds)[:, None] @ np.array(self.turn).T


@dataclass(frozen=True)
class GyroMap:
    """Right rates from logged ones: right[a] = scale * signs[a] * logged[source[a]]."""

    kind: str
    text: str
    source: tuple[int, ...] = (0, 1, 2)
    signs: tuple[int, ...] = (1, 1, 1)
    scale: float = 1.0
    cost: int = 1


# Joints.
def leg_order(order: Sequence[int]) -> tuple[tuple[int, ...], str, int]:
    """Source, words and cost of logged legs that come as `order` (places in LEGS)."""
    slots = [order.index(leg) for leg in range(N_LEGS)]
    source = tuple(JOINTS_PER_LEG * slots[leg] + k for leg in range(N_LEGS) for k in range(3))
    names = " ".join(LEGS[leg] for leg in order)
    moved = [LEGS[leg] for leg in range(N_LEGS) if order[leg] != leg]
    if not moved:
        return source, "", 0
    if tuple(order) == (1, 0, 3, 2):
        return source, f"left and right legs are swapped: legs come as {names}", 1
    if tuple(order) == (2, 3, 0, 1):
        return source, f"front and rear legs are swapped: legs come as {names}", 1
    if len(moved) == 2:
        return source, f"{moved[0]} and {moved[1]} are swapped: legs come as {names}", 1
    return source, f"legs come as {names}", 1


def joint_order(order: Sequence[int]) -> tuple[tuple[int, ...], str]:
    """Source and words of legs whose joints come as `order` (places in hip, thigh, calf)."""
    slots = [order.index(kind) for kind in range(JOINTS_PER_LEG)]
    source = tuple(JOINTS_PER_LEG * leg + slots[k] for leg in range(N_LEGS) for k in range(3))
    names = ", ".join(JOINTS_OF_A_LEG[kind] for kind in order)
    return source, "" if tuple(order) == (0, 1, 2) else f"each leg's joints come as {names}"


BY_KIND = tuple(N_LEGS * kind + leg for leg in range(N_LEGS) for kind in range(JOINTS_PER_LEG))
"""Source of joints that come by kind, legs in order."""
_KIND_TEXT = "joints come by kind (hips, thighs, calves), not by leg"
SIGN_PATTERNS: dict[tuple[int, ...], tuple[str, int]] = {
    (1, 1, 1, 1): ("", 0),
    (-1, -1, -1, -1): ("all legs", 1),
    (1, -1, 1, -1): ("the right legs", 1),
    (-1, 1, -1, 1): ("the left legs", 1),
    (-1, -1, 1, 1): ("the front legs", 1),
    (1, 1, -1, -1): ("the rear legs", 1),
}
"""Signs by leg -> the legs where they are wrong, in words, and the mistakes that it takes."""
for _leg in range(N_LEGS):
    SIGN_PATTERNS[tuple(-1 if leg == _leg else 1 for leg in range(N_LEGS))] = (LEGS[_leg], 1)
for _pair in ((0, 3), (1, 2)):
    SIGN_PATTERNS[tuple(-1 if leg in _pair else 1 for leg in range(N_LEGS))] = (
        " and ".join(LEGS[leg] for leg in _pair),
        2,
    )
for _one in range(N_LEGS):
    _signs = tuple(1 if leg == _one else -1 for leg in range(N_LEGS))
    SIGN_PATTERNS[_signs] = (f"all legs but {LEGS[_one]}", 2)


def sign_map(patterns: Sequence[tuple[int, ...]]) -> tuple[tuple[int, ...], str, int]:
    """Signs, words and cost of a pattern of legs for hips, thighs and calves each."""
    signs = tuple(patterns[kind][leg] for leg in range(N_LEGS) for kind in range(JOINTS_PER_LEG))
    if patterns[0] == patterns[1] == patterns[2]:
        legs, cost = SIGN_PATTERNS[patterns[0]]
        return signs, f"signs of all joints of {legs} are wrong" if legs else "", cost
    texts = []
    cost = 0
    for kind, pattern in zip(JOINTS_OF_A_LEG, patterns, strict=True):
        legs, mistakes = SIGN_PATTERNS[pattern]
        cost += mistakes
        if legs:
            texts.append(f"the {'calves' if kind == 'calf' else kind + 's'} of {legs}")
    return signs, f"signs of {' and of '.join(texts)} are wrong", cost


NO_MAP = JointMap("", "", cost=0)


@cache
def single_joint_maps() -> tuple[JointMap, ...]:
    """`NO_MAP`, then all single mistakes of order, sign and unit."""
    maps = [NO_MAP]
    for order in permutations(range(N_LEGS)):
        source, text, cost = leg_order(order)
        if cost:
            maps.append(JointMap("order", text, source))
    maps.append(JointMap("order", _KIND_TEXT, BY_KIND))
    sides = tuple(N_LEGS * kind + (leg ^ 1) for leg in range(N_LEGS) for kind in range(3))
    maps.append(JointMap("order", f"{_KIND_TEXT}, right legs first", sides))
    for order in permutations(range(JOINTS_PER_LEG)):
        source, text = joint_order(order)
        if text:
            maps.append(JointMap("order", text, source))
    none = (1,) * N_LEGS
    patterns = [pattern for pattern, (_, cost) in SIGN_PATTERNS.items() if cost == 1]
    for pattern in patterns:
        for kind in range(JOINTS_PER_LEG):
            chosen = [pattern if k == kind else none for k in range(JOINTS_PER_LEG)]
            signs, text, _ = sign_map(chosen)
            maps.append(JointMap("sign", text, signs=signs))
    for pattern in patterns[:5]:  # single legs with three wrong signs are no single mistake
        signs, text, _ = sign_map([pattern] * JOINTS_PER_LEG)
        maps.append(JointMap("sign", text, signs=signs))
    return (*maps, JointMap("unit", "in degrees, not in rad", scale=DEGREE))


# The trunk's attitude.
_HALF_TURN = ((-1, 0, 0), (0, -1, 0), (0, 0, 1))
AS_LOGGED = Reading("", "", cost=0)
READINGS = (
    AS_LOGGED,
    Reading("order", "the quaternion is x, y, z, w, not w, x, y, z", (3, 0, 1, 2)),
    Reading(
        "convention",
        "the quaternion turns from the world's frame to the trunk's (it is the conjugate)",
        signs=(1, -1, -1, -1),
    ),
    Reading(
        "convention",
        "the quaternion is x, y, z, w, and turns from the world's frame to the trunk's",
        (3, 0, 1, 2),
        (1, -1, -1, -1),
        cost=2,
    ),
    Reading(
        "axes",
        "the quaternion's axes are forward, right, down, not forward, left, up",
        signs=(1, 1, -1, -1),
    ),
    Reading("axes", "the IMU's axes are turned by 180 degrees about z", turn=_HALF_TURN),
    Reading(
        "axes",
        "the IMU's axes are turned by 90 degrees about z",
        turn=((0, -1, 0), (1, 0, 0), (0, 0, 1)),
    ),
    Reading(
        "axes",
        "the IMU's axes are turned by -90 degrees about z",
        turn=((0, 1, 0), (-1, 0, 0), (0, 0, 1)),
    ),
    Reading(
        "axes",
        "the IMU is upside down: its axes are turned by 180 degrees about x",
        turn=((1, 0, 0), (0, -1, 0), (0, 0, -1)),
    ),
    Reading(
        "axes",
        "the IMU is upside down: its axes are turned by 180 degrees about y",
        turn=((-1, 0, 0), (0, 1, 0), (0, 0, -1)),
    ),
)


# The gyro.
_AXES = "xyz"


@cache
def gyro_maps() -> tuple[GyroMap, ...]:
    """Orders and signs of the gyro's axes, each in rad/s and in degrees/s."""
    maps = []
    for source, signs in product(permutations(range(3)), product((1, -1), repeat=3)):
        moved = [_AXES[a] for a in range(3) if source[a] != a]
        turned = [_AXES[a] for a in range(3) if signs[a] < 0]
        texts = []
        if len(moved) == 2:
            texts.append(f"{moved[0]} and {moved[1]} are swapped")
        elif moved:
            names = [_AXES[source.index(a)] for a in range(3)]
            texts.append(f"its axes come as {', '.join(names)}")
        if turned:
            wrong = "the sign of {} is wrong" if len(turned) == 1 else "the signs of {} are wrong"
            texts.append(wrong.format(" and ".join(turned)))
        cost = bool(moved) + bool(turned)
        kind = "order" if moved else "sign" if turned else ""
        maps.append(GyroMap(kind, " and ".join(texts), source, signs, cost=cost))
        texts.append("in degrees/s, not in rad/s")
        unit = kind or "unit"
        maps.append(GyroMap(unit, " and ".join(texts), source, signs, DEGREE, cost + 1))
    return tuple(maps)
