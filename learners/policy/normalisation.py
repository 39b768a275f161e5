"""Standardisation that travels inside the checkpoint."""

import numpy as np
import torch
from torch import Tensor, nn

# A channel that varies less than this in the data carries nothing to scale by.
MIN_STD = 1e-5


class Normaliser(nn.Module):
    """Channel-wise (x - mean) / std and its inverse; a constant channel is only centred.

    mean, std: (D,) in the units of x. Raises ValueError where they are not finite.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: np.ndarray | Tensor, std: np.ndarray | Tensor) -> None:
        super().__init__()
        mean = torch.as_tensor(mean, dtype=torch.float32).clone()
        std = torch.as_tensor(std, dtype=torch.float32).clone()
        if mean.shape != std.shape or mean.ndim != 1:
            raise ValueError(
                f"mean and std must be two vectors of one length, got {tuple(mean.shape)} and "
                f"{tuple(std.shape)}"
            )
        if not (mean.isfinite().all() and std.isfinite().all()):
            channels = (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist()
            raise ValueError(f"the statistics of channels {channels} are not finite (NaN in data?)")
        self.register_buffer("mean", mean)
        self.register_buffer("std", torch.where(std < MIN_STD, 1.0, std))

    @classmethod
    def identity(cls, size: int) -> "Normaliser":
        """Changes nothing; to be filled from a checkpoint."""
        return cls(torch.zeros(size), torch.ones(size))

    def followed_by(self, other: "Normaliser") -> "Normaliser":
        """For x with the other's channels appended."""
        return Normaliser(
            torch.cat([self.mean, other.mean]),
            torch.cat([self.std, other.std]),
        )

    def normalise(self, x: Tensor) -> Tensor:
        """(..., D) in data units, any dtype -> (..., D) of zero mean and unit spread, float32."""
        return ((x - self.mean) / self.std).to(self.mean.dtype)

    def restore(self, x: Tensor) -> Tensor:
        """The inverse: (..., D) normalised -> data units."""
        return torch.addcmul(self.mean, x, self.std)
