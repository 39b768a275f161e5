"""Fourier Controller Network (FCNet), Tan et al. 2024, Section 3.1, Eq. (3).

A position-wise encoder P, L Fourier layers and a position-wise decoder Q. What the paper leaves
open is read so that the legged setting of its Table 5 has the 787,852 parameters of its Table 7:
P is one linear map, each FFN keeps the hidden width, the two LayerNorms of a layer are separate,
the mixing weights are per channel, and Q is linear, GELU, linear.

Legend: B batch, T time, D observation, A action, d hidden channels, n context length.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from learners.models.fcnet.spectral import CONVOLUTIONS, SpectralConv, SpectralState
from learners.policy.tokens import TokenLayout


@dataclass(frozen=True)
class FCNetConfig:
    """Sizes of an FCNet; the defaults are the paper's legged setting (Table 5).

    convolution says how sequences are computed: "folded" (fast), "fft-modes" (the paper's
    algorithm, Eq. 12) or "defining" (Eq. 5 to 7). Parameters and results are the same.
    """

    obs_dim: int = 70
    act_dim: int = 12
    hidden_dim: int = 256
    decoder_dim: int = 128
    n_layers: int = 4
    n_modes: int = 10
    context_len: int = 64
    convolution: str = "folded"

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name == "convolution":
                if value not in CONVOLUTIONS:
                    known = ", ".join(CONVOLUTIONS)
                    raise ValueError(f"FCNet convolution must be one of {known}, got {value!r}")
            elif value < 1:
                raise ValueError(f"FCNet {name} must be at least 1, got {value}")


@dataclass
class FCNetState:
    """Recurrent state of B robots after some control steps; updated in place by `FCNet.step`.

    layers: per layer the ring of the last n inputs of its spectral block (n, B, d), the modes of
    the window and of the inputs since slot 0 (2m, 2, B, d), and the folded weights (2m, 1, d),
    which are constants of the network at the time the state was made.
    slot: steps taken modulo n, shared by all layers and robots: where the next input goes in the
    rings. After the step at slot n - 1 the younger modes replace the window's (spectral.renew).

    Zero rings and modes mean "nothing seen yet" at any slot, so one robot restarts by zeroing its
    rows.
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
        return self.join(x, self.spectral(self.spectral_norm(x)))

    def step(self, x: Tensor, state: SpectralState, slot: int) -> Tensor:
        return self.join(x, self.spectral.step(self.spectral_norm(x), state, slot))

    def join(self, x: Tensor, convolved: Tensor) -> Tensor:
        """The layer's output (..., d) from its input and what its spectral block made of it."""
        y = functional.gelu(convolved) + x
        return self.ffn(self.ffn_norm(y)) + y


class FCNet(nn.Module):
    """Maps a sequence of tokens to a sequence of actions, each from the last n tokens a layer."""

    def __init__(self, config: FCNetConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = nn.Linear(config.obs_dim, config.hidden_dim)
        self.layers = nn.ModuleList(FourierLayer(config) for _ in range(config.n_layers))
        self.decoder = nn.Sequential(
            nn.Linear(config.hidden_dim, config.decoder_dim),
            nn.GELU(),
            nn.Linear(config.decoder_dim, config.act_dim),
        )

    @property
    def _fourier_layers(self) -> Iterable[FourierLayer]:
        return cast(Iterable[FourierLayer], self.layers)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, A) for any T; tokens before the first one count as unseen."""
        x = self.encoder(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.decoder(x)

    def init_state(self, batch_size: int) -> FCNetState:
        """State before the first step. It holds folded weights: make a new one after training."""
        return FCNetState([layer.spectral.init_state(batch_size) for layer in self._fourier_layers])

    @torch.no_grad()
    def step(self, token: Tensor, state: FCNetState) -> tuple[Tensor, FCNetState]:
        """One control step: token (B, D) -> action (B, A). The given state is updated in place.

        Equal to `forward` at the last of the tokens so far. For control only: no gradients.
        """
        x = self.encoder(token)
        for layer, layer_state in zip(self._fourier_layers, state.layers, strict=True):
            x = layer.step(x, layer_state, state.slot)
        state.slot = (state.slot + 1) % self.config.context_len
        return self.decoder(x), state

    def reset_state(self, state: FCNetState, rows: Tensor) -> None:
        """Forget everything about the robots `rows` (indices), in place."""
        for layer, layer_state in zip(self._fourier_layers, state.layers, strict=True):
            layer.spectral.reset_state(layer_state, rows)


def build_fcnet(config: FCNetConfig, layout: TokenLayout, act_dim: int) -> FCNet:
    """An FCNet of these sizes for the tokens of `layout`."""
    return FCNet(replace(config, obs_dim=layout.dim, act_dim=act_dim))
