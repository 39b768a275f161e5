"""Multi-layer perceptrons (MLP) over one token or over a memory of the last n tokens.

With a stacked memory the second is the "MLP (history)" of Table 1 of the FCNet paper (Tan et al.
2024); the first has n = 1. All hidden layers have the same width and GELU activations.

Legend: B batch, T time, D token, A action, n steps, F numbers of a channel, d hidden channels.
"""

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.base import (
    STACKED,
    HistoryNetwork,
    NoPrefix,
    SpectralMemory,
    StackedMemory,
    check_counts,
    check_memory,
    make_memory,
)
from gaitforge.learners.tokens import TokenLayout


@dataclass(frozen=True)
class MLPConfig(NoPrefix):
    """Width and number of hidden layers."""

    hidden_dim: int = 512
    n_layers: int = 3

    def __post_init__(self) -> None:
        check_counts("MLP", self, "hidden_dim", "n_layers")

    @property
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action: none."""
        return 0

    def build(self, layout: TokenLayout, act_dim: int) -> "HistoryMLP":
        """The network for tokens of `layout`."""
        return HistoryMLP(self.hidden_dim, self.n_layers, StackedMemory(1), layout.dim, act_dim)


@dataclass(frozen=True)
class HistoryMLPConfig:
    """Width and number of hidden layers; context_len = n steps, see `memory` for how it sees them.

    history_kind: "stacked" or "spectral"; n_modes: of the latter.
    """

    hidden_dim: int = 256
    n_layers: int = 3
    context_len: int = 64
    history_kind: str = STACKED
    n_modes: int = 8

    def __post_init__(self) -> None:
        check_counts("history MLP", self, "hidden_dim", "n_layers", "context_len")
        check_memory("history MLP", self.history_kind, self.context_len, self.n_modes)

    @property
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action."""
        return self.context_len - 1

    prefix_len = receptive_field

    def build(self, layout: TokenLayout, act_dim: int) -> "HistoryMLP":
        """The network for tokens of `layout`."""
        memory = make_memory(self.history_kind, self.context_len, self.n_modes)
        return HistoryMLP(self.hidden_dim, self.n_layers, memory, layout.dim, act_dim)


class HistoryMLP(HistoryNetwork):
    """Maps what it remembers of the last n tokens to an action; those before are zeros."""

    def __init__(
        self,
        hidden_dim: int,
        n_layers: int,
        memory: StackedMemory | SpectralMemory,
        token_dim: int,
        act_dim: int,
    ) -> None:
        super().__init__(memory, token_dim)
        self.first = nn.Linear(memory.numbers * token_dim, hidden_dim)
        self.rest = nn.Sequential(nn.GELU())
        for _ in range(n_layers - 1):
            self.rest.extend([nn.Linear(hidden_dim, hidden_dim), nn.GELU()])
        self.rest.append(nn.Linear(hidden_dim, act_dim))

    def encode(self, tokens: Tensor) -> Tensor:
        """(..., F x D) -> (..., A)."""
        return self.rest(self.first(tokens))

    def forward(self, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T."""
        steps = self.memory.steps
        few = mask is not None and 2 * mask.sum() < mask.numel()
        if steps == 1 or few or isinstance(self.memory, SpectralMemory):
            return super().forward(tokens, mask)
        # A convolution gives the same result without copying each token n times.
        kernel = self.first.weight.unflatten(1, (steps, self.width)).transpose(1, 2)
        padded = functional.pad(tokens, (0, 0, steps - 1, 0)).transpose(1, 2)
        return self.rest(functional.conv1d(padded, kernel, self.first.bias).transpose(1, 2))
