"""Quaternion algebra on batches; quaternions are wxyz and rotate body vectors into the world."""

from math import atan2, cos, pi, sin, sqrt

import numpy as np

from gaitforge.common.kernels import compiled, elementwise


def rotate(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate body vectors (..., 3) into the world by unit quaternions (..., 4)."""
    w = quat[..., :1]
    xyz = quat[..., 1:]
    t = 2.0 * np.cross(xyz, vector)
    return vector + w * t + np.cross(xyz, t)


def rotate_inverse(quat: np.ndarray, vector: np.ndarray) -> np.ndarray:
    """Rotate world vectors (..., 3) into the body frame."""
    w = quat[..., :1]
    xyz = quat[..., 1:]
    t = 2.0 * np.cross(xyz, vector)
    return vector - w * t + np.cross(xyz, t)


def gravity_in_body(quat: np.ndarray) -> np.ndarray:
    """(..., 3): unit vector of gravity in the body frame; (0, 0, -1) when level."""
    w, x, y, z = (quat[..., i] for i in range(4))
    return np.stack(
        [2.0 * (w * y - x * z), -2.0 * (w * x + y * z), 2.0 * (x * x + y * y) - 1.0], axis=-1
    )


def yaw_of(quat: np.ndarray) -> np.ndarray:
    """(...): heading angle about the world's vertical in rad."""
    return heading_angle(quat[..., 0], quat[..., 1], quat[..., 2], quat[..., 3])


@elementwise
def heading_angle(w: float, x: float, y: float, z: float) -> float:
    """Heading of a quaternion's parts, rad."""
    return atan2(2.0 * (w * z + x * y), 1.0 - 2.0 * (y * y + z * z))


def from_yaw(yaw: np.ndarray) -> np.ndarray:
    """(..., 4): a level body with the heading `yaw` in rad."""
    zero = np.zeros_like(yaw)
    return np.stack([cosine(yaw / 2), zero, zero, sine(yaw / 2)], axis=-1)


@elementwise
def sine(angle: float) -> float:
    """Sine of rad."""
    return sin(angle)


@elementwise
def cosine(angle: float) -> float:
    """Cosine of rad."""
    return cos(angle)


@elementwise
def wrapped(angle: float) -> float:
    """The same angle in [-pi, pi), rad."""
    turned = angle + pi
    return turned - 2 * pi * np.floor(turned / (2 * pi)) - pi


@compiled
def lengths(vectors: np.ndarray) -> np.ndarray:
    """Euclidean lengths of vectors (N, K, 3): (N, K)."""
    norms = np.empty(vectors.shape[:2])
    for i in range(vectors.shape[0]):
        for k in range(vectors.shape[1]):
            x = vectors[i, k, 0]
            y = vectors[i, k, 1]
            z = vectors[i, k, 2]
            norms[i, k] = sqrt(x * x + y * y + z * z)
    return norms
