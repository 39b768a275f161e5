"""FCNet's control step as a pure function of few, large tensor operations.

The same results as `FCNet.step`, for runtimes with a cost per operation. Let Z_k be the sum over
the window of x_tau u_k^(-tau), u_k = exp(2 pi i k / n): the modes of Eq. (13) without their common
phase, X_k(t) = u_k^(t+1) Z_k. Then

- what enters or leaves the window in slot s = t mod n is multiplied by the same u_k^(-s): the modes
  are never rotated, and exactly the number that was added is later subtracted;
- the past's contribution to a layer, Re sum_k r_k X_k, does not depend on the present input, so one
  product gives it for all layers; the present input adds h[0] x (lag 0 of the kernel);
- the sums in `window` leave out the slot that the next step overwrites;
- the last layer's second linear map and the decoder's first are folded into one.

The sums' rounding errors grow without bound. In float64 they are about 1e-16 of the sum a step, at
random: some 1e-11 after a year at 50 Hz, below float32's own.

Legend: B batch, D token, A action, n context length, m modes, C = layers x hidden channels.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from gaitforge.learners.control.step_state import StateTensor
from gaitforge.learners.models.fcnet.fcnet import FCNet, FourierLayer
from gaitforge.learners.models.fcnet.spectral_basis import dft_angles


class FourierStep(nn.Module):
    """One Fourier layer up to its FFN's second map; takes the contribution of past inputs."""

    present: Tensor

    def __init__(self, layer: FourierLayer) -> None:
        super().__init__()
        self.spectral_norm = layer.spectral_norm
        self.ffn_norm = layer.ffn_norm
        self.widen, self.activation, self.narrow = layer.ffn
        self.register_buffer("present", layer.spectral.kernel()[0].detach().clone())

    def forward(self, x: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take x and past (B, d) to the convolution's input, y, the FFN's hidden activations."""
        entered = self.spectral_norm(x)
        y = functional.gelu(past + self.present * entered) + x
        return entered, y, self.activation(self.widen(self.ffn_norm(y)))


class DecoderStep(nn.Module):
    """The decoder of y + W2 inside, with its first map D folded: D y + (D W2) inside."""

    def __init__(self, narrow: nn.Linear, decoder: nn.Sequential) -> None:
        super().__init__()
        first, self.activation, self.last = decoder
        assert isinstance(first, nn.Linear)
        d = first.weight.detach()
        w2 = narrow.weight.detach()
        self.of_y = _linear(d, first.bias.detach() + d @ narrow.bias.detach())
        self.of_inside = _linear((d.double() @ w2.double()).to(d.dtype))

    def forward(self, y: Tensor, inside: Tensor) -> Tensor:
        """Both (B, d) -> action (B, A)."""
        return self.last(self.activation(self.of_y(y) + self.of_inside(inside)))


class FCNetStep(nn.Module):
    """token (B, D), ring (n, B C), window (2m, B C), slot (1,) -> action (B, A) and the next."""

    readout: Tensor
    leave: Tensor
    change: Tensor
    following: Tensor

    def __init__(self, network: FCNet, batch_size: int) -> None:
        super().__init__()
        config = network.config
        layers = list(network.layers)
        n = config.context_len
        m = config.n_modes
        self.width = config.hidden_dim
        self.batch_size = batch_size
        self.encoder = network.encoder
        self.layers: Any = nn.ModuleList(FourierStep(layer) for layer in layers)
        self.decoder = DecoderStep(layers[-1].ffn[2], network.decoder)

        r = torch.cat([layer.spectral.readout().detach() for layer in layers], dim=1)
        real = r[:m]
        imag = r[m:]
        products = torch.stack([torch.cat([real, -imag]), torch.cat([imag, real])])
        self.register_buffer("readout", products.repeat(1, 1, batch_size))
        leave, change = _phase_tables(m, n)
        self.register_buffer("leave", leave.to(r.dtype))
        self.register_buffer("change", change)
        self.register_buffer("following", (torch.arange(n) + 1) % n)

        columns = batch_size * r.shape[1]
        window = torch.zeros(2 * m, columns, dtype=torch.float64)
        self.state_tensors = (
            StateTensor("state_ring", r.new_zeros(n, columns), 1, in_place=True),
            StateTensor("state_window", window, 1, in_place=True),
            StateTensor("state_slot", torch.zeros(1, dtype=torch.int64), None),
        )

    def forward(self, token: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        """One control step; does not change `state`."""
        ring, window, slot = state
        modes = (window.to(self.readout.dtype) * self.readout).flatten(0, 1)
        past = self.leave.index_select(0, slot).mm(modes)
        if self.batch_size > 1:
            past = past.view(self.batch_size, -1)
        x = self.encoder(token)
        y = token
        inside = token
        entered = []
        for layer, part in zip(self.layers, past.split(self.width, dim=1), strict=True):
            normed, y, inside = layer(x, part)
            entered.append(normed)
            x = layer.narrow(inside) + y  # unused after the last layer
        row = torch.cat(entered, dim=1)

        ring = ring.index_copy(0, slot, row if self.batch_size == 1 else row.view(1, -1))
        next_slot = self.following.index_select(0, slot)
        rows = ring.index_select(0, torch.cat([slot, next_slot])).to(window.dtype)
        change = self.change.index_select(0, slot)[0]
        window = torch.addmm(window, change, rows)
        return self.decoder(y, inside), ring, window, next_slot


def _linear(weight: Tensor, bias: Tensor | None = None) -> nn.Linear:
    """A linear map with these weights."""
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, dtype=weight.dtype)
    linear.weight.data = weight.clone()
    if bias is not None:
        linear.bias.data = bias.clone()
    return linear


def _phase_tables(n_modes: int, context_len: int) -> tuple[Tensor, Tensor]:
    """The phases of every slot s, float64.

    leave (n, 4m): products of modes and readout -> Re sum_k r_k u_k^(s+1) Z_k.
    change (n, 2m, 2): adds the slot's input times u^(-s) and subtracts the next slot's.
    """
    angles = dft_angles(n_modes, context_len, context_len).double()
    after = angles.roll(-1, 1).T
    leave = torch.cat([after.cos(), after.cos(), -after.sin(), -after.sin()], dim=1)
    enter = torch.cat([angles.cos(), -angles.sin()])
    change = torch.stack([enter, -enter.roll(-1, 1)], dim=-1).transpose(0, 1)
    return leave, change.contiguous()
