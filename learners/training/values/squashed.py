"""A Gaussian squashed by a tanh, whose spread depends on the state (Haarnoja et al., 2018)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from learners.training.values.critics import Ensemble

_LOG_STD = (-5.0, 2.0)


class SquashedGaussian(nn.Module):
    """Samples around a policy's actions before the tanh; its own network has the spread.

    Args:
        sizes: of the network from a token: inputs, then the hidden layers.
    """

    def __init__(self, sizes: Sequence[int], act_dim: int) -> None:
        super().__init__()
        self.log_std = Ensemble(1, sizes, act_dim)

    def sample(self, mean: Tensor, obs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Actions (count, N, A) and their log densities (count, N), from means and tokens (N, ...).

        Densities are of the squashed actions: log N(u; mean, std) - sum log(1 - tanh(u)^2).
        """
        log_std = self.log_std(obs)[0].reshape(mean.shape).clamp(*_LOG_STD)
        noise = torch.randn(count, *mean.shape, device=mean.device)
        before = mean + log_std.exp() * noise
        # log(1 - tanh(u)^2) without a difference of nearly equal numbers.
        squashing = 2.0 * (math.log(2.0) - before - functional.softplus(-2.0 * before))
        density = -0.5 * noise.square() - log_std - 0.5 * math.log(2.0 * math.pi) - squashing
        return before.tanh(), density.sum(-1)
