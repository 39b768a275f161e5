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
kernel gives the same numbers with m times fewer products. Eq. (8) as printed puts absolute time
in the exponent; the window-relative form of Eq. (9) and (13) is the one that is meant.

Legend: B batch, T time, d channels, n context length, m modes.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn

from learners.convolution import causal_convolution, dft_angles


def synthesis_weights(n_modes: int, context_len: int) -> Tensor:
    """Weight e_j of each mode in the inverse DFT at index n-1, Eq. (6) and (7); complex128 (m,).

    Modes and their mirror images add up to twice the real part; mode 0 and, where it is kept, the
    Nyquist mode n/2 have no mirror image.
    """
    mode = torch.arange(n_modes)
    phase = (2 * math.pi / context_len) * ((mode * (context_len - 1)) % context_len).double()
    unpaired = (mode == 0) | (2 * mode == context_len)
    magnitude = torch.where(unpaired, 1.0, 2.0).double() / context_len
    return torch.polar(magnitude, phase)


@dataclass(frozen=True)
class SpectralBasis:
    """Constants of (m, n) as real matrices; mode vectors hold m real, then m imaginary parts.

    synthesis (2, 2m): mixed modes to the folded weight. analysis (n, 2m): folded weights to the
    kernel. rotation (2m, 2m): multiply mode k by u_k. ring_dft (2m, n): full ring to its modes.
    """

    synthesis: Tensor
    analysis: Tensor
    rotation: Tensor
    ring_dft: Tensor


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a constant made during control must also serve training
def spectral_basis(
    n_modes: int, context_len: int, dtype: torch.dtype, device: torch.device
) -> SpectralBasis:
    """The constants in the wanted precision, computed in float64."""
    e = synthesis_weights(n_modes, context_len)
    angles = dft_angles(n_modes, context_len + 1, context_len)
    lags, slots = angles[:, 1:], angles[:, :-1]
    turn_re, turn_im = torch.diag(angles[:, 1].cos()), torch.diag(angles[:, 1].sin())
    matrices = (
        torch.stack([torch.cat([e.real, -e.imag]), torch.cat([e.imag, e.real])]),
        torch.cat([lags.cos(), -lags.sin()]).T.contiguous(),
        torch.cat([torch.cat([turn_re, -turn_im], dim=1), torch.cat([turn_im, turn_re], dim=1)]),
        torch.cat([slots.cos(), -slots.sin()]),
    )
    return SpectralBasis(*(matrix.to(device, dtype) for matrix in matrices))


@dataclass
class SpectralState:
    """Recurrent state of one block for B robots. All zero means: nothing was seen yet.

    ring (n, B, d): the last n inputs, slot = time modulo n (plus the block's fixed offset).
    modes (2m, B * d): X_k of the current window, real parts first, then imaginary parts.
    readout (2m, 1, d): folded weights taken from the block when the state was made, imaginary parts
    negated, so that the output is a plain product and sum.
    """

    ring: Tensor
    modes: Tensor
    readout: Tensor
    basis: SpectralBasis
    slot: int


class SpectralConv(nn.Module):
    """Causal spectral convolution with one complex m x m mixing matrix a channel.

    weight (2, m_out, m_in, d) holds the real and the imaginary part. The initial distribution is
    the published code's: complex normal divided by m.
    """

    def __init__(self, channels: int, n_modes: int, context_len: int) -> None:
        """Raises ValueError unless context_len >= 1 and 1 <= n_modes <= context_len // 2 + 1."""
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
        """(B, T, d) -> (B, T, d) for any T; inputs before the first step count as zero."""
        return causal_convolution(x, self.kernel())

    def init_state(self, batch_size: int, offset: int = 0) -> SpectralState:
        """State before the first step; `offset` chooses at which steps the modes are renewed."""
        readout = self.readout().detach()
        readout[self.n_modes :].neg_()
        return SpectralState(
            ring=self.weight.new_zeros(self.context_len, batch_size, self.channels),
            modes=self.weight.new_zeros(2 * self.n_modes, batch_size * self.channels),
            readout=readout[:, None],
            basis=self.basis(),
            slot=offset % self.context_len,
        )

    def step(self, x: Tensor, state: SpectralState) -> Tensor:
        """One step of the sliding DFT, Eq. (13): x (B, d) -> y (B, d); updates `state` in place.

        Because |u_k| = 1 rounding errors would add up for ever. The modes are therefore computed
        afresh from the ring whenever it has been filled once round, every n steps.
        """
        oldest = state.ring[state.slot]
        difference = x - oldest
        oldest.copy_(x)
        state.slot += 1
        if state.slot == self.context_len:
            state.slot = 0
            state.modes = state.basis.ring_dft.mm(state.ring.view(self.context_len, -1))
        else:
            state.modes[: self.n_modes] += difference.view(-1)
            state.modes = state.basis.rotation.mm(state.modes)
        return (state.modes.view(-1, *x.shape) * state.readout).sum(0)

    def reset_state(self, state: SpectralState, rows: Tensor) -> None:
        """Forget what the robots `rows` (indices) have seen, in place."""
        state.ring[:, rows] = 0.0
        state.modes.view(2 * self.n_modes, -1, self.channels)[:, rows] = 0.0
