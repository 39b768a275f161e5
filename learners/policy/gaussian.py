"""State-independent standard deviations of a Gaussian policy, one per action."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

# In normalised action units. Without a lower bound the likelihood of noise-free data is unbounded.
MIN_LOG_STD = math.log(0.01)


class GaussianSpread(nn.Module):
    """Learned log std (A,) in normalised action units, or the constant log(fixed_std).

    A learned std starts at 1 and has a smooth lower bound, log std = min + softplus(x - min), as
    the variances of Chua et al. 2018 (PETS, appendix A.1). Raises ValueError for fixed_std <= 0.
    """

    def __init__(self, act_dim: int, fixed_std: float | None = None) -> None:
        super().__init__()
        if fixed_std is not None and not (math.isfinite(fixed_std) and fixed_std > 0):
            raise ValueError(f"fixed_std must be above 0, got {fixed_std}")
        self.fixed_std = fixed_std
        if fixed_std is None:
            start = MIN_LOG_STD + math.log(math.expm1(-MIN_LOG_STD))
            self.unbounded = nn.Parameter(torch.full((act_dim,), start))
        else:
            self.register_buffer("fixed", torch.full((act_dim,), math.log(fixed_std)))

    def log_std(self) -> Tensor:
        """(A,) in normalised action units."""
        if self.fixed_std is not None:
            return self.get_buffer("fixed")
        return MIN_LOG_STD + functional.softplus(self.unbounded - MIN_LOG_STD)
