"""The networks of the trainings: a tanh-squashed Gaussian actor, and the two critics of SAC.

Two hidden layers of ReLU units, as Haarnoja et al. 2018b (Table 1) have them.

Legend: B rows, Do observation, A action, H hidden units.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from collectors.gym.experts import LOG_STD_RANGE


class Actor(nn.Module):
    """Observation (B, Do) -> Gaussian (mean, log_std), each (B, A), of the action before tanh."""

    def __init__(self, obs_dim: int, act_dim: int, hidden: int) -> None:
        super().__init__()
        self.layer0 = nn.Linear(obs_dim, hidden)
        self.layer1 = nn.Linear(hidden, hidden)
        self.mean = nn.Linear(hidden, act_dim)
        self.log_std = nn.Linear(hidden, act_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, Do) -> mean (B, A), log_std (B, A)."""
        x = relu(self.layer1(relu(self.layer0(obs))))
        return self.mean(x), self.log_std(x).clamp(*LOG_STD_RANGE)

    def sample(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Action (B, A) in (-1, 1) for standard normal noise (B, A), and its log-density (B,)."""
        mean, log_std = self(obs)
        before = mean + log_std.exp() * noise
        return before.tanh(), squashed_log_density(before, log_std, noise)


def squashed_log_density(before: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """log-density (B,) of tanh(before), where before = mean + exp(log_std) * noise.

    Haarnoja et al. 2018a, Eq. 21, with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which
    does not cancel where tanh saturates.
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squashing = 2.0 * (math.log(2.0) - before - softplus(-2.0 * before))
    return (gaussian - squashing).sum(-1)


class TwinCritics(nn.Module):
    """Two action values at once: observation (B, Do) and action (B, A) -> (2, B).

    Both critics' layers are stacked, (2, in, out), so that each is one batched product.
    """

    def __init__(self, obs_dim: int, act_dim: int, hidden: int) -> None:
        super().__init__()
        self.weight0, self.bias0 = _stacked(obs_dim + act_dim, hidden)
        self.weight1, self.bias1 = _stacked(hidden, hidden)
        self.weight2, self.bias2 = _stacked(hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """(B, Do), (B, A) -> (2, B)."""
        x = torch.cat([obs, action], dim=-1).expand(2, -1, -1)
        x = relu(torch.baddbmm(self.bias0, x, self.weight0))
        x = relu(torch.baddbmm(self.bias1, x, self.weight1))
        return torch.baddbmm(self.bias2, x, self.weight2).squeeze(-1)


def _stacked(width_in: int, width_out: int) -> tuple[nn.Parameter, nn.Parameter]:
    """Weights (2, in, out) and biases (2, 1, out), uniform as nn.Linear draws them."""
    bound = 1.0 / math.sqrt(width_in)
    weight = torch.empty(2, width_in, width_out).uniform_(-bound, bound)
    bias = torch.empty(2, 1, width_out).uniform_(-bound, bound)
    return nn.Parameter(weight), nn.Parameter(bias)
