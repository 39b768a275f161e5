"""The causal spectral convolution (CSC) of FCNet, folded into one causal kernel a channel.

Source: Tan et al. 2024, "Fourier Controller Networks", Section 3.2 to 3.4.

Eq. (5) to (7) transform the last n inputs, keep m modes, mix them with W, and read the inverse
transform at one index only, the window's last. Everything after the DFT is therefore linear in
the m modes and collapses, per channel c, into m complex numbers

    r[c, k] = sum_j e_j W[c, k -> j],    y_t[c] = Re sum_k r[c, k] X_k(t)[c],

where e_j is the weight of mode j in the inverse DFT at index n-1. With the recurrence of Eq. (9)
and (13), X_k(t) = sum_tau x_{t-tau} u_k^(tau+1) with u_k = exp(2 pi i k / n), the whole block is a
causal convolution with the kernel h[tau, c] = Re sum_k r[c, k] u_k^(tau+1).

Deviation from the paper: Eq. (12) convolves every mode on its own and then mixes; the folded
kernel gives the same numbers with m times fewer products. `spectral_reference` keeps the paper's
form, and a block computes by it when asked to.

Legend: B batch, T time, d channels, n context length, m modes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from learners.models.fcnet.convolution import causal_convolution
from learners.models.fcnet.spectral_basis import SpectralBasis, spectral_basis
from learners.models.fcnet.spectral_reference import defining_convolution, fft_modes_convolution

REFERENCES = {"fft-modes": fft_modes_convolution, "defining": defining_convolution}
CONVOLUTIONS = ("folded", *REFERENCES)


@dataclass
class SpectralState:
    """Recurrent state of one block for B robots. Zero ring and modes: nothing was seen yet.

    ring (n, B, d): the last n inputs.
    modes (2m, 2, B, d): real parts first, then imaginary parts. [:, 0] is X_k of the current
    window; [:, 1] is X_k of the inputs since the ring last came round to slot 0 (see `renew`).
    readout (2m, 1, d): folded weights taken from the block when the state was made, imaginary parts
    negated, so that the output is a plain product and sum. Constant.
    """

    ring: Tensor
    modes: Tensor
    readout: Tensor


def slide(modes: Tensor, x: Tensor, oldest: Tensor, rotation: Tensor) -> Tensor:
    """Eq. (13) for both transforms: x (B, d) enters, `oldest` (B, d) leaves the window's.

    Returns the modes after the step; `modes` (2m, 2, B, d) is used up.
    """
    modes[: modes.shape[0] // 2] += torch.stack([x - oldest, x])
    return rotation.mm(modes.flatten(1)).view_as(modes)


def renew(modes: Tensor) -> Tensor:
    """The modes once the ring has come round: the younger transform takes the window's place.

    Because |u_k| = 1, the rounding errors of a sliding DFT add up for ever. The transform that
    started from zero n steps ago only ever added, and by now holds exactly the window's inputs: it
    replaces the other, and the next one starts from zero. So no mode carries the errors of more
    than 2 n steps, and every step costs the same.
    """
    younger = modes[:, 1:]
    return torch.cat([younger, torch.zeros_like(younger)], dim=1)


class SpectralConv(nn.Module):
    """Causal spectral convolution with one complex m x m mixing matrix a channel.

    weight (2, m_out, m_in, d) holds the real and the imaginary part. The initial distribution is
    the published code's: complex normal divided by m.
    """

    def __init__(
        self, channels: int, n_modes: int, context_len: int, convolution: str = "folded"
    ) -> None:
        """`convolution`: how `forward` computes, one of CONVOLUTIONS; the numbers are the same.

        Raises ValueError unless context_len >= 1, 1 <= n_modes <= context_len // 2 + 1, and the
        convolution is known.
        """
        super().__init__()
        if context_len < 1:
            raise ValueError(f"context_len must be at least 1, got {context_len}")
        if not 1 <= n_modes <= context_len // 2 + 1:
            raise ValueError(
                f"n_modes must lie in 1..{context_len // 2 + 1} (context_len // 2 + 1), "
                f"got {n_modes}"
            )
        if convolution not in CONVOLUTIONS:
            raise ValueError(f"no convolution {convolution!r}; known are {', '.join(CONVOLUTIONS)}")
        self.channels = channels
        self.n_modes = n_modes
        self.context_len = context_len
        self.convolution = convolution
        spread = 1.0 / (n_modes * math.sqrt(2.0))
        self.weight = nn.Parameter(torch.randn(2, n_modes, n_modes, channels) * spread)

    def basis(self) -> SpectralBasis:
        """The constants in the weight's precision, on its device."""
        return spectral_basis(self.n_modes, self.context_len, self.weight.dtype, self.weight.device)

    def readout(self) -> Tensor:
        """Folded weights r (2m, d): real parts of the m modes, then imaginary parts."""
        m = self.n_modes
        mixed = self.basis().synthesis @ self.weight.reshape(2 * m, m * self.channels)
        return mixed.reshape(2 * m, self.channels)

    def kernel(self) -> Tensor:
        """The causal kernel h (n, d), lag 0 first."""
        return self.basis().analysis @ self.readout()

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, d) -> (B, T, d) for any T; inputs before the first step count as zero.

        Computed in the weight's precision, also under autocast: half precision would spread the
        rounding errors of the large frequencies over all times.
        """
        with torch.autocast(x.device.type, enabled=False):
            return self._convolved(x.to(self.weight.dtype)).to(x.dtype)

    def _convolved(self, x: Tensor) -> Tensor:
        if self.convolution == "folded":
            return causal_convolution(x, self.kernel())
        return REFERENCES[self.convolution](x, self.weight, self.context_len)

    def init_state(self, batch_size: int) -> SpectralState:
        """State before the first step."""
        readout = self.readout().detach()
        readout[self.n_modes :].neg_()
        size = (batch_size, self.channels)
        return SpectralState(
            ring=self.weight.new_zeros(self.context_len, *size),
            modes=self.weight.new_zeros(2 * self.n_modes, 2, *size),
            readout=readout[:, None],
        )

    def step(self, x: Tensor, state: SpectralState, slot: int) -> Tensor:
        """One step of the sliding DFT, Eq. (13): x (B, d) -> y (B, d); updates `state` in place.

        slot counts the steps modulo n, from 0.
        """
        oldest = state.ring[slot]
        modes = slide(state.modes, x, oldest, self.basis().rotation)
        oldest.copy_(x)
        state.modes = renew(modes) if slot == self.context_len - 1 else modes
        return (state.modes[:, 0] * state.readout).sum(0)

    def reset_state(self, state: SpectralState, rows: Tensor) -> None:
        """Forget what the robots `rows` (indices) have seen, in place."""
        state.ring[:, rows] = 0.0
        state.modes[:, :, rows] = 0.0
