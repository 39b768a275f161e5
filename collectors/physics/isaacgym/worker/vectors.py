"""Batches of vectors; quaternions xyzw rotate body vectors into the world."""

import torch


def rotate(quat: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """(N, 3) body vectors into the world by unit quaternions (N, 4)."""
    return _turned(quat, vector, 1.0)


def rotate_inverse(quat: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
    """(N, 3) world vectors into the body frame."""
    return _turned(quat, vector, -1.0)


def length(vector: torch.Tensor) -> torch.Tensor:
    """(...) of vectors (..., 3)."""
    return (vector * vector).sum(dim=-1).sqrt()


def to_wxyz(quat: torch.Tensor) -> torch.Tensor:
    """(N, 4) xyzw with the scalar brought to the front."""
    return torch.roll(quat, 1, 1)


def to_xyzw(quat: torch.Tensor) -> torch.Tensor:
    """(N, 4) wxyz with the scalar brought to the end."""
    return torch.roll(quat, -1, 1)


def _turned(quat: torch.Tensor, vector: torch.Tensor, sign: float) -> torch.Tensor:
    xyz, w = quat[:, :3], quat[:, 3:]
    t = 2.0 * torch.cross(xyz, vector, dim=1)
    return vector + sign * w * t + torch.cross(xyz, t, dim=1)
