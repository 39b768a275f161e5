"""Rotary positions: queries and keys are rotated by their time, so scores depend on the lag only.

Source: Su et al. 2021, "RoFormer", Section 3.2; Sun et al. 2023, "Retentive Network", use the same
rotation with a decay. Channel pair i (channels i and i + w/2) of a head of width w is rotated by
t * 10000^(-2i/w) rad at step t. Angles are computed in float64: in float32 their error would exceed
1e-3 rad after 10^4 steps, and control may run for longer.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Rotation:
    """cos and signed sin of the angles, each (T, w), in the network's dtype."""

    cos: Tensor
    sin: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Rotate x (..., T, w)."""
        swapped = x.roll(x.shape[-1] // 2, dims=-1)
        return torch.addcmul(x * self.cos, swapped, self.sin)


def rotary_frequencies(width: int, device: torch.device) -> Tensor:
    """(w,) float64 rad per step; negative in the first half, where the rotation subtracts."""
    half = ROTARY_BASE ** (-torch.arange(0, width, 2, dtype=torch.float64, device=device) / width)
    return torch.cat([-half, half])


def rotation(times: Tensor, frequencies: Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation at the steps `times` (T,) int."""
    angles = times[:, None] * frequencies
    return Rotation(angles.cos().to(dtype), angles.sin().to(dtype))
