"""Objectives of the planner on the Adroit tasks.

The tasks' own rewards say nothing between reaching an object and having moved it, which a planner
with a short horizon needs. These add the fingertips' distances, for a grip, to the tasks' terms
(Gymnasium-Robotics' `adroit_*.py`), with our own weights; in metres and radians.
"""

import numpy as np

from recipes.adroit.mppi import Objective, Points

_PALM = "site S_grasp"
_THUMB = "site S_thtip"
_TIPS = ("site S_fftip", "site S_mftip", "site S_rftip", "site S_lftip", _THUMB)
_HAND = (_PALM, *_TIPS)


def _distance(points: Points, first: str, second: str) -> np.ndarray:
    return np.linalg.norm(points[first] - points[second], axis=-1)


def _tips_away(points: Points, thing: str) -> np.ndarray:
    """Mean distance of the five fingertips to a point."""
    return np.mean([_distance(points, tip, thing) for tip in _TIPS], axis=0)


def _door(points: Points, positions: np.ndarray) -> np.ndarray:
    handle = "site S_handle"
    hinge = positions[..., -2]
    latch = positions[..., -1]
    grip = -2.0 * _distance(points, _PALM, handle) - 0.5 * _tips_away(points, handle)
    return grip + 0.5 * latch + 4.0 * np.clip(hinge, 0.0, np.pi / 2.0) + (hinge > 1.35)


def _hammer(points: Points, positions: np.ndarray) -> np.ndarray:
    hammer = "body Object"
    head = "site tool"
    nail = "site S_target"
    goal = "site nail_goal"
    grip = -2.0 * _distance(points, _PALM, hammer) - 0.5 * _tips_away(points, hammer)
    lifted = (points[hammer][..., 2] > 0.04) & (points[head][..., 2] > 0.04)
    left = _distance(points, nail, goal)
    struck = -30.0 * left + (left < 0.02) + (left < 0.01)
    return grip - 2.0 * _distance(points, head, nail) + 0.5 * lifted + struck


def _relocate(points: Points, positions: np.ndarray) -> np.ndarray:
    ball = "body Object"
    target = "site target"
    away = _distance(points, _PALM, ball)
    tips = _tips_away(points, ball)
    grip = -4.0 * away - 3.0 * tips - _distance(points, _THUMB, ball)
    lift = np.clip(points[ball][..., 2] - 0.035, 0.0, 0.1)
    left = _distance(points, ball, target)
    # Without `held`, the hand hits the ball to the target again and again.
    held = (away < 0.06) & (tips < 0.08)
    # The arm can turn and slide; one of the two is enough.
    turned = np.square(positions[..., 4:6]).sum(axis=-1)
    return grip + 3.0 * lift - 5.0 * left + held * ((left < 0.1) + 1.0 * (left < 0.05)) - turned


OBJECTIVES = {
    "AdroitHandDoor-v1": Objective((*_HAND, "site S_handle"), _door),
    "AdroitHandHammer-v1": Objective(
        (*_HAND, "body Object", "site tool", "site S_target", "site nail_goal"), _hammer
    ),
    "AdroitHandRelocate-v1": Objective(
        (*_HAND, "body Object", "site target"), _relocate, unguided=6, reach=(_PALM, "body Object")
    ),
}
