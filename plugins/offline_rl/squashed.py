"""Gaussians squashed by a tanh, whose spread depends on the state (Haarnoja et al., 2018)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from gaitforge.common.networks import Ensemble, squashed_log_density

_LOG_STD = (-5.0, 2.0)
_INSIDE = 1.0 - 1e-5
"""Largest action whose inverse tanh is used."""


class SquashedGaussian(nn.Module):
    """Samples around a policy's actions before the tanh; a network of its own gives the spread.

    Args:
        sizes: widths of that network: its inputs (a token), then the hidden layers.
    """

    def __init__(self, sizes: Sequence[int], act_dim: int) -> None:
        super().__init__()
        self.log_std = Ensemble(1, sizes, act_dim)

    def sample(self, mean: Tensor, obs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Actions (count, N, A) and their log densities (count, N), from means and tokens (N, ...).

        Densities are of the squashed actions.
        """
        before, log_std = self.samples_before_tanh(mean, obs, count)
        noise = (before - mean) * (-log_std).exp()
        return before.tanh(), squashed_log_density(before, log_std, noise)

    def samples_before_tanh(self, mean: Tensor, obs: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Samples (count, N, A) of the Gaussian, and its log std (N, A); arguments as `sample`."""
        log_std = self.log_std(obs)[0].reshape(mean.shape).clamp(*_LOG_STD)
        noise = torch.randn(count, *mean.shape, device=mean.device)
        return mean + log_std.exp() * noise, log_std


class Behaviour(nn.Module):
    """A squashed Gaussian that imitates the data's actions, with its own mean and spread.

    Args:
        sizes: widths of its network: its inputs (a token), then the hidden layers.
    """

    def __init__(self, sizes: Sequence[int], act_dim: int) -> None:
        super().__init__()
        self._act_dim = act_dim
        self.network = Ensemble(1, sizes, 2 * act_dim)

    def log_density(self, action: Tensor, obs: Tensor) -> Tensor:
        """(..., N) log densities of actions (..., N, A) at tokens (N, D)."""
        output = self.network(obs)[0]
        mean = output[:, : self._act_dim]
        log_std = output[:, self._act_dim :].clamp(*_LOG_STD)
        before = action.clamp(-_INSIDE, _INSIDE).atanh()
        return squashed_log_density(before, log_std, (before - mean) * (-log_std).exp())
