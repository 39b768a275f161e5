"""Recurrent networks (GRU, LSTM): the row "RNN" of the FCNet paper's Table 1 as a baseline.

Stacked layers of gated recurrent units (Cho et al. 2014, arXiv 1406.1078, in the form of
`torch.nn.GRU`, whose reset gate acts after the recurrent product) or of long short-term memory
(Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000, in the form of
`torch.nn.LSTM`) read the tokens, and a linear map reads the last layer out. A step of control costs
O(d^2) whatever the episode's length, and training is sequential in time.

The paper has no recurrent network in its experiments. Its published code names a model
"rnn_imitation" (github.com/thkkk/FCNet, FCNet/DT/train.py) whose file is not published, so the
sizes here are ours: two layers, of the width that has about as many parameters as FCNet.

Legend: B batch, T time, D token, A action, L layers, d hidden channels.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from gaitforge.learners.models.base import NoPrefix, check_counts
from gaitforge.learners.tokens import TokenLayout


@dataclass(frozen=True)
class GRUConfig(NoPrefix):
    """Width and number of the layers.

    Raises:
        ValueError: a size below 1.
    """

    title: ClassVar[str] = "GRU"
    hidden_dim: int = 284
    n_layers: int = 2

    def __post_init__(self) -> None:
        check_counts(self.title, self, "hidden_dim", "n_layers")

    def build(self, layout: TokenLayout, act_dim: int) -> "RecurrentNetwork":
        """The network for tokens of `layout`."""
        return GRU(self, layout.dim, act_dim)


@dataclass(frozen=True)
class LSTMConfig(GRUConfig):
    """Width and number of the layers, as `GRUConfig`."""

    title: ClassVar[str] = "LSTM"
    hidden_dim: int = 244

    def build(self, layout: TokenLayout, act_dim: int) -> "RecurrentNetwork":
        """The network for tokens of `layout`."""
        return LSTM(self, layout.dim, act_dim)


class RecurrentNetwork(nn.Module, ABC):
    """Maps a sequence of tokens to a sequence of actions, each from all tokens so far."""

    layers_class: ClassVar[Any]
    state_parts: ClassVar[int]

    def __init__(self, config: GRUConfig, token_dim: int, act_dim: int) -> None:
        super().__init__()
        sizes = (token_dim, config.hidden_dim, config.n_layers)
        self.layers: Any = self.layers_class(*sizes, batch_first=True)
        self.decoder = nn.Linear(config.hidden_dim, act_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T.

        The recurrence keeps the weights' precision within autocast, too: rounding to bf16 would add
        up over the steps, and torch has no LSTM in bf16 on CPUs without its instructions.
        """
        with torch.autocast(tokens.device.type, enabled=False):
            hidden, _ = self.layers(tokens.to(self.decoder.weight.dtype))
        return self.decoder(hidden)

    def init_state(self, batch_size: int) -> Tensor:
        """(L, parts, B, d) zeros: the state of `batch_size` robots before an episode."""
        shape = (self.layers.num_layers, self.state_parts, batch_size, self.layers.hidden_size)
        return self.decoder.weight.new_zeros(shape)

    @torch.no_grad()
    def step(self, token: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One control step: token (B, D) -> action (B, A) as in `forward`; returns a new state."""
        following = []
        x = token
        for weights, layer_state in zip(self.layers.all_weights, state, strict=True):
            layer_state = self.layer_step(x, layer_state, weights)
            x = layer_state[0]
            following.append(layer_state)
        return self.decoder(x), torch.stack(following)

    @abstractmethod
    def layer_step(self, x: Tensor, state: Tensor, weights: list[Tensor]) -> Tensor:
        """One layer's input (B, D or d) and state (parts, B, d) -> its state after the step.

        The hidden state, which is the layer's output, is the first part.
        """

    def reset_state(self, state: Tensor, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        state[:, :, rows] = 0.0


class GRU(RecurrentNetwork):
    """Gated recurrent units; a layer's state is its hidden state."""

    layers_class = nn.GRU
    state_parts = 1

    def layer_step(self, x: Tensor, state: Tensor, weights: list[Tensor]) -> Tensor:
        """As in the base class."""
        return torch.gru_cell(x, state[0], *weights)[None]


class LSTM(RecurrentNetwork):
    """Long short-term memory; a layer's state is its hidden state and its cells."""

    layers_class = nn.LSTM
    state_parts = 2

    def layer_step(self, x: Tensor, state: Tensor, weights: list[Tensor]) -> Tensor:
        """As in the base class."""
        return torch.stack(torch.lstm_cell(x, (state[0], state[1]), *weights))
