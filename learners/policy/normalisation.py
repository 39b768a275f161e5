"""Normalisation of observations and actions, saved in the checkpoint."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

# Channels with a smaller std in the data count as constant.
MIN_STD = 1e-5


class Normaliser(nn.Module):
    """Channel-wise (x - mean) / std and its inverse; constant channels are not divided.

    mean, std: (D,) in the units of x. Raises ValueError if they are not finite vectors of one size.
    bound: (D,) the largest size of a normalised value, see `bounded`; kept in a checkpoint's card.
    """

    mean: Tensor
    std: Tensor
    bound: Tensor | None

    def __init__(self, mean: np.ndarray | Tensor, std: np.ndarray | Tensor) -> None:
        super().__init__()
        mean = torch.as_tensor(mean, dtype=torch.float32).clone()
        std = torch.as_tensor(std, dtype=torch.float32).clone()
        if mean.shape != std.shape or mean.ndim != 1:
            raise ValueError(
                f"mean and std must be vectors of the same size, got shapes {tuple(mean.shape)} "
                f"and {tuple(std.shape)}"
            )
        if not (mean.isfinite().all() and std.isfinite().all()):
            channels = (~(mean.isfinite() & std.isfinite())).nonzero().flatten().tolist()
            raise ValueError(
                f"mean or std of channels {channels} is not finite; check the data for NaN"
            )
        self.register_buffer("mean", mean)
        self.register_buffer("std", torch.where(std < MIN_STD, 1.0, std))
        self.register_buffer("bound", None, persistent=False)

    @classmethod
    def identity(cls, size: int) -> "Normaliser":
        """A normaliser that changes nothing, to load a checkpoint into."""
        return cls(torch.zeros(size), torch.ones(size))

    def followed_by(self, other: "Normaliser") -> "Normaliser":
        """The normaliser of this one's channels followed by the other's."""
        return Normaliser(torch.cat([self.mean, other.mean]), torch.cat([self.std, other.std]))

    def bounded(self, bound: np.ndarray | Sequence[float] | None) -> "Normaliser":
        """Limit normalised values to -bound .. bound, (D,); None for no limit. Returns itself.

        Raises ValueError if they are not D numbers above 0.
        """
        limit = None if bound is None else torch.as_tensor(bound, dtype=torch.float32)
        if limit is not None and not (limit.shape == self.mean.shape and bool((limit > 0).all())):
            raise ValueError(f"bounds of inputs must be {len(self.mean)} numbers above 0")
        self.bound = limit
        return self

    def limits(self) -> Tensor:
        """(D,) the bounds, infinite where there are none."""
        return torch.full_like(self.mean, torch.inf) if self.bound is None else self.bound

    def normalise(self, x: Tensor) -> Tensor:
        """(..., D) in data units, any dtype -> (..., D) normalised, float32."""
        normalised = ((x - self.mean) / self.std).to(self.mean.dtype)
        if self.bound is None:
            return normalised
        return torch.minimum(torch.maximum(normalised, -self.bound), self.bound)

    def restore(self, x: Tensor) -> Tensor:
        """(..., D) normalised -> (..., D) in data units."""
        return torch.addcmul(self.mean, x, self.std)
