"""The causal spectral convolution as in the paper: its definition and its parallel algorithm.

Source: Tan et al. 2024, "Fourier Controller Networks", Section 3.2 and 3.3. `SpectralConv` gives
the same results with one folded kernel, much faster, and is tested against both.

Deviations from the paper: Eq. (8) is printed with absolute time in the exponent, but Eq. (9) and
(13) need time relative to the window, as here. Inputs before the sequence count as zero, so the
recurrence starts from zero modes and Eq. (12) needs no special first and last terms.

Legend: B batch, T time, d channels, n context length, m modes, j mixed mode, k mode.
"""

import torch
from torch import Tensor

from gaitforge.learners.models.fcnet.spectral_basis import dft_angles, synthesis_weights


def defining_convolution(x: Tensor, weight: Tensor, context_len: int) -> Tensor:
    """Eq. (5) to (7), with one window of n inputs per step; O(T n d m) time, O(T n d) memory.

    Args: x (B, T, d), any T; weight (2, m_out, m_in, d), the real and the imaginary part of W.
    Returns (B, T, d); differentiable.
    """
    n, (batch, _, channels) = context_len, x.shape
    mixing = torch.complex(*weight)
    m = mixing.shape[0]
    angles = dft_angles(n, n, n)
    unit = torch.polar(torch.ones_like(angles), angles).to(x.device, mixing.dtype)

    padded = torch.cat([x.new_zeros(batch, n - 1, channels), x], dim=1)
    windows = padded.unfold(1, n, 1).to(mixing.dtype)  # (B, T, d, n)
    x_hat = windows @ unit[:, :m].conj()
    y_hat = torch.einsum("jkd,btdk->btdj", mixing, x_hat)
    z_hat = [y_hat[..., k] if k < m else _mirrored(y_hat, n - k) for k in range(n)]
    return (torch.stack(z_hat, dim=-1) @ unit[:, n - 1]).real / n


def _mirrored(y_hat: Tensor, mode: int) -> Tensor:
    """The conjugate of a kept mode, or zero for a dropped one: Eq. (6) for k >= m."""
    if mode < y_hat.shape[-1]:
        return y_hat[..., mode].conj()
    return torch.zeros_like(y_hat[..., 0])


def fft_modes_convolution(x: Tensor, weight: Tensor, context_len: int) -> Tensor:
    """The paper's parallel form, Eq. (9) to (12): every mode is convolved over time by FFT.

    O(T d m (log T + m)) time, O(T d m) memory; arguments and result as `defining_convolution`.
    """
    n, (_, steps, _) = context_len, x.shape
    mixing = torch.complex(*weight)
    m = mixing.shape[0]
    angles = dft_angles(m, steps + 1, n)[:, 1:].T
    powers = torch.polar(torch.ones_like(angles), angles).to(x.device, mixing.dtype)  # u_k^(i+1)
    change = x - torch.cat([torch.zeros_like(x[:, :n]), x[:, : max(steps - n, 0)]], dim=1)

    change_hat = torch.fft.fft(change, n=2 * steps, dim=1)
    powers_hat = torch.fft.fft(powers, n=2 * steps, dim=0)
    x_hat = torch.fft.ifft(change_hat[:, :, None] * powers_hat[:, :, None], dim=1)[:, :steps]
    y_hat = torch.einsum("jkd,btkd->btjd", mixing, x_hat)
    readout = synthesis_weights(m, n).to(x.device, mixing.dtype)
    return torch.einsum("j,btjd->btd", readout, y_hat).real
