"""A tanh-squashed Gaussian actor and SAC's twin critics: two hidden ReLU layers each.

Source: Haarnoja et al. 2018b, Table 1.

Legend: B rows, Do observation, A action, H hidden units.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import relu, softplus

from gaitforge.collectors.gym.experts import LOG_STD_RANGE


class Actor(nn.Module):
    """Observation (B, Do) -> Gaussian (mean, log_std), each (B, A), of the pre-tanh action."""

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
        pre_tanh_action = mean + log_std.exp() * noise
        return pre_tanh_action.tanh(), squashed_log_prob(pre_tanh_action, log_std, noise)


def squashed_log_prob(pre_tanh_action: Tensor, log_std: Tensor, noise: Tensor) -> Tensor:
    """Log-density (B,) of tanh(u), where u = mean + exp(log_std) * noise is `pre_tanh_action`.

    Haarnoja et al. 2018a, Eq. 21, with log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), which
    does not cancel where tanh saturates.
    """
    gaussian = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
    squashing = 2.0 * (math.log(2.0) - pre_tanh_action - softplus(-2.0 * pre_tanh_action))
    return (gaussian - squashing).sum(-1)


class TwinCritics(nn.Module):
    """Two Q-functions with stacked layers (2, in, out), each one batched product."""

    def __init__(self, obs_dim: int, act_dim: int, hidden: int) -> None:
        super().__init__()
        self.weight0, self.bias0 = _stacked(obs_dim + act_dim, hidden)
        self.weight1, self.bias1 = _stacked(hidden, hidden)
        self.weight2, self.bias2 = _stacked(hidden, 1)

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Observation (B, Do), action (B, A) -> action values (2, B)."""
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
