"""Fourier Controller Network (FCNet), Tan et al. 2024, Section 3.1, Eq. (3).

A position-wise encoder P, L Fourier layers and a position-wise decoder Q. Details that the paper
leaves open are chosen so that the legged setting of its Table 5 has the 787,852 parameters of its
Table 7: P is one linear map, each FFN keeps the hidden width, the two LayerNorms of a layer are
separate, the mixing weights are per channel, and Q is linear, GELU, linear.

Legend: B batch, T time, D token, A action, d hidden channels, n context length, m modes.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.models.base import NoPrefix, check_counts
from gaitforge.learners.models.spectral import CONVOLUTIONS, SpectralConv, SpectralState
from gaitforge.learners.tokens import TokenLayout


@dataclass(frozen=True)
class FCNetConfig(NoPrefix):
    """Sizes of an FCNet; the defaults are the paper's legged setting (Table 5).

    convolution: how sequences are computed, with the same parameters and results: "folded" (fast),
    "fft-modes" (the paper's algorithm, Eq. 12) or "defining" (Eq. 5 to 7).
    """

    hidden_dim: int = 256
    decoder_dim: int = 128
    n_layers: int = 4
    n_modes: int = 10
    context_len: int = 64
    convolution: str = "folded"

    def __post_init__(self) -> None:
        sizes = ("hidden_dim", "decoder_dim", "n_layers", "n_modes", "context_len")
        check_counts("FCNet", self, *sizes)
        if self.convolution not in CONVOLUTIONS:
            allowed = ", ".join(CONVOLUTIONS)
            raise ValueError(f"no FCNet convolution {self.convolution!r}; allowed: {allowed}")

    def build(self, layout: TokenLayout, act_dim: int) -> "FCNet":
        """The network for tokens of `layout`."""
        return FCNet(self, layout.dim, act_dim)


@dataclass
class FCNetState:
    """Recurrent state of B robots, updated in place by `FCNet.step`.

    layers: the state of each layer's spectral block, with the weights at the time of `init_state`.
    slot: steps modulo n, shared by all layers and robots: where the rings take the next input.
    """

    layers: list[SpectralState]
    slot: int = 0


class FourierLayer(nn.Module):
    """Y = gelu(CSC(LN(X))) + X, then FFN(LN(Y)) + Y (Eq. 3)."""

    def __init__(self, config: FCNetConfig) -> None:
        super().__init__()
        d = config.hidden_dim
        self.spectral_norm = nn.LayerNorm(d)
        self.spectral = SpectralConv(d, config.n_modes, config.context_len, config.convolution)
        self.ffn_norm = nn.LayerNorm(d)
        self.ffn = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d)."""
        return self.join(x, self.spectral(self.spectral_norm(x)))

    def step(self, x: Tensor, state: SpectralState, slot: int) -> Tensor:
        """(B, d) -> (B, d); updates `state` in place."""
        return self.join(x, self.spectral.step(self.spectral_norm(x), state, slot))

    def join(self, x: Tensor, convolved: Tensor) -> Tensor:
        """The layer's output (..., d) from its input and its spectral block's output."""
        y = functional.gelu(convolved) + x
        return self.ffn(self.ffn_norm(y)) + y


class FCNet(nn.Module):
    """Maps a sequence of tokens to a sequence of actions; each layer reads the last n steps."""

    def __init__(self, config: FCNetConfig, token_dim: int, act_dim: int) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(token_dim, config.hidden_dim)
        self.layers: Any = nn.ModuleList(FourierLayer(config) for _ in range(config.n_layers))
        self.decoder = nn.Sequential(
            nn.Linear(config.hidden_dim, config.decoder_dim),
            nn.GELU(),
            nn.Linear(config.decoder_dim, act_dim),
        )

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T."""
        x = self.encoder(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.decoder(x)

    def init_state(self, batch_size: int) -> FCNetState:
        """State before the first step; it holds the folded weights as they are now."""
        return FCNetState([layer.spectral.init_state(batch_size) for layer in self.layers])

    @torch.no_grad()
    def step(self, token: Tensor, state: FCNetState) -> tuple[Tensor, FCNetState]:
        """One control step: token (B, D) -> action (B, A) as in `forward`; updates `state`."""
        x = self.encoder(token)
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, layer_state, state.slot)
        state.slot = (state.slot + 1) % self.config.context_len
        return self.decoder(x), state

    def reset_state(self, state: FCNetState, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        for layer, layer_state in zip(self.layers, state.layers, strict=True):
            layer.spectral.reset_state(layer_state, rows)
