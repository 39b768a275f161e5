"""The causal spectral convolution (CSC) of FCNet, folded into one causal kernel per channel.

Source: Tan et al. 2024, "Fourier Controller Networks", Section 3.2 to 3.4.

Eq. (5) to (7) transform the last n inputs, keep m modes, mix them with W, and evaluate the inverse
transform at the window's last index. All of it after the DFT is linear in the m modes and folds,
for each channel c, into m complex numbers

    r[c, k] = sum_j e_j W[c, k -> j],    y_t[c] = Re sum_k r[c, k] X_k(t)[c],

where e_j is the weight of mode j in the inverse DFT at index n-1. With the recurrence of Eq. (9)
and (13), X_k(t) = sum_tau x_{t-tau} u_k^(tau+1) with u_k = exp(2 pi i k / n), the block is a causal
convolution with the kernel h[tau, c] = Re sum_k r[c, k] u_k^(tau+1).

Deviation from the paper: Eq. (12) convolves every mode and then mixes them; the folded kernel gives
the same result with a factor of m fewer products. `spectral_reference` has the paper's form.

Legend: B batch, T time, d channels, n context length, m modes.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gaitforge.learners.models.fcnet.convolution import causal_convolution
from gaitforge.learners.models.fcnet.spectral_basis import SpectralBasis, spectral_basis
from gaitforge.learners.models.fcnet.spectral_reference import (
    defining_convolution,
    fft_modes_convolution,
)

REFERENCES = {"fft-modes": fft_modes_convolution, "defining": defining_convolution}
CONVOLUTIONS = ("folded", *REFERENCES)


@dataclass
class SpectralState:
    """Recurrent state of one block for B robots; before the first step ring and modes are zero.

    ring (n, B, d): the last n inputs.
    modes (2m, B, d), float64: X_k of the current window, real, then imaginary parts. Because
    |u_k| = 1, a sliding DFT keeps all its rounding errors, and one in float32 also the error of a
    rounded u_k from each step of the window. In float64 both stay below float32's own rounding.
    readout (2m, 1, d): the block's folded weights, imaginary parts negated; constant.
    """

    ring: Tensor
    modes: Tensor
    readout: Tensor


class SpectralConv(nn.Module):
    """Causal spectral convolution with one complex m x m mixing matrix per channel.

    weight (2, m_out, m_in, d) holds the real and the imaginary parts, initialised as in the
    published code: complex normal divided by m. `convolution` is one of CONVOLUTIONS, which all
    give the same result. Raises ValueError unless context_len >= 1 and
    1 <= n_modes <= context_len // 2 + 1.
    """

    def __init__(
        self, channels: int, n_modes: int, context_len: int, convolution: str = "folded"
    ) -> None:
        super().__init__()
        if context_len < 1:
            raise ValueError(f"context_len must be at least 1, got {context_len}")
        if not 1 <= n_modes <= context_len // 2 + 1:
            raise ValueError(
                f"n_modes must lie in 1..{context_len // 2 + 1} (context_len // 2 + 1), "
                f"got {n_modes}"
            )
        self.channels = channels
        self.n_modes = n_modes
        self.context_len = context_len
        self.convolution = convolution
        spread = 1.0 / (n_modes * math.sqrt(2.0))
        self.weight = nn.Parameter(torch.randn(2, n_modes, n_modes, channels) * spread)

    def basis(self) -> SpectralBasis:
        """The constants with the weight's dtype and device."""
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

        Computed in the weight's dtype also under autocast: in half precision the rounding errors of
        the largest modes would affect all times.
        """
        with torch.autocast(x.device.type, enabled=False):
            inputs = x.to(self.weight.dtype)
            if self.convolution == "folded":
                return causal_convolution(inputs, self.kernel()).to(x.dtype)
            convolve = REFERENCES[self.convolution]
            return convolve(inputs, self.weight, self.context_len).to(x.dtype)

    def init_state(self, batch_size: int) -> SpectralState:
        """State before the first step."""
        readout = self.readout().detach()
        readout[self.n_modes :].neg_()
        size = (batch_size, self.channels)
        return SpectralState(
            ring=self.weight.new_zeros(self.context_len, *size),
            modes=self.weight.new_zeros(2 * self.n_modes, *size, dtype=torch.float64),
            readout=readout[:, None],
        )

    def step(self, x: Tensor, state: SpectralState, slot: int) -> Tensor:
        """One step of Eq. (13): x (B, d) -> y (B, d); slot is the step's index modulo n."""
        oldest = state.ring[slot]
        state.modes[: self.n_modes] += x.double() - oldest
        state.modes = self.basis().rotation.mm(state.modes.flatten(1)).view_as(state.modes)
        oldest.copy_(x)
        return (state.modes.to(x.dtype) * state.readout).sum(0)

    def reset_state(self, state: SpectralState, rows: Tensor) -> None:
        """Reset the state of the robots `rows` (indices), in place."""
        state.ring[:, rows] = 0.0
        state.modes[:, rows] = 0.0
