"""A tanh-squashed Gaussian actor with two hidden ReLU layers.

Source: Haarnoja et al. 2018b, Table 1.

Legend: B rows, Do observation, A action, H hidden units.
"""

from torch import Tensor, nn
from torch.nn.functional import relu

from gaitforge.collectors.gym.experts import LOG_STD_RANGE
from gaitforge.common.networks import squashed_log_density


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
        return pre_tanh_action.tanh(), squashed_log_density(pre_tanh_action, log_std, noise)
