"""All orders of legs and of their joints with all signs, for what no single mistake explains.

Heights enter a score by their products alone, so the products of all candidates for each foot are
computed once: 384 a foot, of which 1.2 million sets of four are scored.
"""

from itertools import permutations, product

import numpy as np

from gaitforge.collectors.robots.robot import JOINTS_PER_LEG, N_LEGS
from gaitforge.plugins.robot_runtime.sensors.hypotheses import (
    BY_KIND,
    SIGN_PATTERNS,
    JointMap,
    joint_order,
    leg_order,
    sign_map,
)
from gaitforge.plugins.robot_runtime.sensors.plane import MODES, NEAR_HEIGHT, Legs

_ROWS = 400
"""Blocks that are used at most: the score's noise does not matter among wholes."""
FAR_RAD = 1.2
"""Distance of a joint's mean from the default pose that no stand has."""


def search(
    legs: Legs, q: np.ndarray, up: np.ndarray, first: np.ndarray, limit: float, scale: float = 1.0
) -> list[tuple[JointMap, float]]:
    """Joint maps with the fewest mistakes whose `PlaneFit.motion` is below `limit`, best first."""
    first = first[:: max(1, len(first) // _ROWS)]
    weights = legs.mode_weights(up, first)
    form = (MODES.T * weights) @ MODES
    signs = np.array(list(product((1, -1), repeat=JOINTS_PER_LEG)))
    patterns = list(SIGN_PATTERNS)
    triples = [tuple(signs.tolist().index(list(s)) for s in zip(*combination, strict=True))
               for combination in product(patterns, repeat=JOINTS_PER_LEG)]  # fmt: skip
    names = list(product(patterns, repeat=JOINTS_PER_LEG))
    table = np.array(triples)
    costs = np.array([sign_map(name)[2] for name in names])
    candidates: list[tuple[int, float, JointMap]] = []
    for by_kind, joints in product((False, True), permutations(range(JOINTS_PER_LEG))):
        heights, means, far = _heights(legs, q * scale, up, by_kind, joints, signs)
        gram = _products(heights, first)
        for order in permutations(range(N_LEGS)):
            slots = [order.index(leg) for leg in range(N_LEGS)]
            scores = _scores(gram, slots, form)[tuple(table.T)]
            rows = np.arange(N_LEGS)
            height = means[slots, rows][rows, table].mean(axis=1) / legs.default_height_m
            good = (scores < limit) & (height > NEAR_HEIGHT[0]) & (height < NEAR_HEIGHT[1])
            good &= ~far[slots, rows][rows, table].any(axis=1)
            structure = (order != tuple(range(N_LEGS))) + by_kind + (joints != (0, 1, 2))
            candidates += [
                (
                    int(costs[k]) + structure,
                    float(scores[k]),
                    _named(order, by_kind, joints, names[k], scale),
                )
                for k in np.flatnonzero(good)
            ]
    fewest = min((cost for cost, _, _ in candidates), default=0)
    best = sorted((score, k) for k, (cost, score, _) in enumerate(candidates) if cost == fewest)
    return [(candidates[k][2], score) for score, k in best]


def _source(by_kind: bool, joints: tuple[int, ...]) -> np.ndarray:
    """(12,) places of joints by leg, in the log's order of legs."""
    kinds, _ = joint_order(joints)
    return np.array(BY_KIND)[list(kinds)] if by_kind else np.array(kinds)


def _heights(
    legs: Legs, q: np.ndarray, up: np.ndarray, by_kind: bool, joints: tuple[int, ...],
    signs: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Heights of feet from each leg of the log, with each sign.

    Heights (4 places in the log, 4 feet, 8 signs, K) in m; mean depths (4, 4, 8) below the trunk,
    m; whether (4, 4, 8) a joint is too far from the default pose.
    """
    logged = q[:, _source(by_kind, joints)].reshape(len(q), N_LEGS, JOINTS_PER_LEG)
    default = legs.robot.default_joint_pos_rad.reshape(N_LEGS, JOINTS_PER_LEG)
    heights = np.empty((N_LEGS, N_LEGS, len(signs), len(q)))
    far = np.empty((N_LEGS, N_LEGS, len(signs)), bool)
    for slot in range(N_LEGS):
        for k, sign in enumerate(signs):
            angles = logged[:, slot] * sign
            feet = legs.feet(np.tile(angles, (1, N_LEGS)))
            heights[slot, :, k] = (feet @ up[..., None])[..., 0].T
            far[slot, :, k] = (np.abs(angles.mean(axis=0) - default) > FAR_RAD).any(axis=1)
    return heights, -heights.mean(axis=3), far


def _products(heights: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Lagged covariances (4, 4, 8, 4, 4, 8) of all heights."""
    flat = heights.reshape(-1, heights.shape[-1])
    one = flat[:, first] - flat[:, first].mean(axis=1, keepdims=True)
    other = flat[:, first + 1] - flat[:, first + 1].mean(axis=1, keepdims=True)
    gram = one @ other.T / len(first)
    return ((gram + gram.T) / 2).reshape(*heights.shape[:3], *heights.shape[:3])


def _scores(gram: np.ndarray, slots: list[int], form: np.ndarray) -> np.ndarray:
    """(8, 8, 8, 8) motions of feet whose joints stand at `place` of the log, for signs of each."""
    total = np.zeros((8,) * N_LEGS)
    for i in range(N_LEGS):
        for j in range(N_LEGS):
            pair = gram[slots[i], i, :, slots[j], j, :] * form[i, j]
            axes = [1] * N_LEGS
            axes[i] = 8
            if i == j:
                total += np.diagonal(pair).reshape(axes)
                continue
            axes[j] = 8
            total += (pair if i < j else pair.T).reshape(axes)
    return total


def _named(
    order: tuple[int, ...], by_kind: bool, joints: tuple[int, ...],
    patterns: tuple[tuple[int, ...], ...], scale: float,
) -> JointMap:  # fmt: skip
    leg_source, leg_text, leg_cost = leg_order(order)
    _, joint_text = joint_order(joints)
    signs, sign_text, sign_cost = sign_map(patterns)
    source = _source(by_kind, joints)[list(leg_source)]
    texts = ["joints come by kind (hips, thighs, calves), not by leg"] if by_kind else []
    texts += [text for text in (leg_text, joint_text, sign_text) if text]
    cost = leg_cost + by_kind + bool(joint_text) + sign_cost
    if scale != 1.0:
        texts.append("in degrees, not in rad")
        cost += 1
    kind = "order" if leg_text or joint_text or by_kind else "sign" if sign_text else "unit"
    return JointMap(kind, " and ".join(texts), tuple(source.tolist()), signs, scale, cost)
