"""CoMic's tracking reward and the tracking error, on batches.

Source: Hasenclever et al. 2020, "CoMic: Complementary Task Learning & Mimicry for Reusable Skills",
with the weights and scales of dm_control's "comic" reward.
"""

import numpy as np

from gaitforge.plugins.mocapact.humanoid.environment import TERMINATION_ERROR
from gaitforge.plugins.mocapact.humanoid.walker import TrackedPoses

_CENTER_OF_MASS = (0.1, 10.0)
_JOINT_VELOCITY = (1.0, 0.1)
_APPENDAGES = (0.15, 40.0)
_BODY_ORIENTATION = (0.65, 2.0)
"""Weight and scale of each term, weight x exp(-scale x squared difference)."""


def tracking_error(walker: TrackedPoses, reference: TrackedPoses) -> np.ndarray:
    """(N,) half the mean joint error (rad) plus half the mean error of body coordinates (m)."""
    joints = np.abs(walker.qpos[:, 7:] - reference.qpos[:, 7:]).mean(axis=1)
    bodies = np.abs(walker.body_pos - reference.body_pos).mean(axis=(1, 2))
    return 0.5 * (joints + bodies)


def comic_reward(walker: TrackedPoses, reference: TrackedPoses, error: np.ndarray) -> np.ndarray:
    """(N,) half the share of the allowed error (N,) that is left, plus half the pose terms."""
    angle = _orientation_distance(walker.body_quat, reference.body_quat)
    terms = [
        (_CENTER_OF_MASS, _squared(walker.center_of_mass, reference.center_of_mass)),
        (_JOINT_VELOCITY, _squared(walker.qvel[:, 6:], reference.qvel[:, 6:])),
        (_APPENDAGES, _squared(walker.appendages, reference.appendages)),
        (_BODY_ORIENTATION, np.square(angle).sum(axis=1)),
    ]
    pose = sum(weight * np.exp(-scale * difference) for (weight, scale), difference in terms)
    return 0.5 * (1.0 - error / TERMINATION_ERROR) + 0.5 * pose


def _squared(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.square(a - b).reshape(len(a), -1).sum(axis=1)


def _orientation_distance(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(...) rad: half the angle between orientations (..., 4), at most pi / 2."""
    cosine = 2.0 * np.square(np.einsum("...i,...i", a, b)) - 1.0
    return 0.5 * np.arccos(np.minimum(cosine, 1.0))
