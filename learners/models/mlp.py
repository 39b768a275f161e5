"""Multi-layer perceptrons (MLP) over one token or over the last H tokens concatenated.

The second is the "MLP (history)" of Table 1 of the FCNet paper (Tan et al. 2024); the first has
H = 1. All hidden layers have the same width and GELU activations.

Legend: B batch, T time, D token, A action, H history, d hidden channels.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.config_checks import NoPrefix, check_counts
from gaitforge.learners.models.observation_history import HistoryNetwork
from gaitforge.learners.policy.tokens import TokenLayout


@dataclass(frozen=True)
class MLPConfig(NoPrefix):
    """Width and number of hidden layers."""

    hidden_dim: int = 512
    n_layers: int = 3

    def __post_init__(self) -> None:
        check_counts("MLP", self, "hidden_dim", "n_layers")

    def build(self, layout: TokenLayout, act_dim: int) -> "HistoryMLP":
        """The network for tokens of `layout`."""
        return HistoryMLP(self.hidden_dim, self.n_layers, 1, layout.dim, act_dim)


@dataclass(frozen=True)
class HistoryMLPConfig:
    """Width and number of hidden layers, and context_len = H steps."""

    hidden_dim: int = 256
    n_layers: int = 3
    context_len: int = 64

    def __post_init__(self) -> None:
        check_counts("history MLP", self, "hidden_dim", "n_layers", "context_len")

    @property
    def prefix_len(self) -> int:
        """Steps before a training window that the network reads."""
        return self.context_len - 1

    def build(self, layout: TokenLayout, act_dim: int) -> "HistoryMLP":
        """The network for tokens of `layout`."""
        sizes = (self.hidden_dim, self.n_layers, self.context_len)
        return HistoryMLP(*sizes, layout.dim, act_dim)


class HistoryMLP(HistoryNetwork):
    """Maps the last H tokens, oldest first, to an action; tokens before the sequence are zero."""

    def __init__(
        self, hidden_dim: int, n_layers: int, history: int, token_dim: int, act_dim: int
    ) -> None:
        super().__init__(history, token_dim)
        self.first = nn.Linear(history * token_dim, hidden_dim)
        self.rest = nn.Sequential(nn.GELU())
        for _ in range(n_layers - 1):
            self.rest.extend([nn.Linear(hidden_dim, hidden_dim), nn.GELU()])
        self.rest.append(nn.Linear(hidden_dim, act_dim))

    def encode(self, tokens: Tensor) -> Tensor:
        """(..., H x D) -> (..., A)."""
        return self.rest(self.first(tokens))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T."""
        if self.history == 1 or (mask is not None and 2 * mask.sum() < mask.numel()):
            return super().forward(tokens, mask)
        # A convolution gives the same result without copying each token H times.
        kernel = self.first.weight.unflatten(1, (self.history, self.width)).transpose(1, 2)
        padded = functional.pad(tokens, (0, 0, self.history - 1, 0)).transpose(1, 2)
        return self.rest(functional.conv1d(padded, kernel, self.first.bias).transpose(1, 2))
