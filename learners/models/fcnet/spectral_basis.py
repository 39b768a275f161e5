"""Constants of the causal spectral convolution: DFT angles, inverse-DFT weights, real matrices.

Source: Tan et al. 2024, "Fourier Controller Networks", Eq. (6), (7), (9) and (13). They are
computed in float64 and then rounded to the network's dtype.

Legend: n context length, m modes, u_k = exp(2 pi i k / n).
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


def paper_modes(context_len: int) -> int:
    """Modes that the paper's Section 4.3 keeps: min(2.5 ln n, n // 2 + 1)."""
    return max(1, min(int(2.5 * math.log(context_len)), context_len // 2 + 1))


def dft_angles(rows: int, columns: int, period: int) -> Tensor:
    """(rows, columns) float64 angles 2 pi r c / period, rad; r c is first reduced modulo period."""
    product = torch.arange(rows)[:, None] * torch.arange(columns)[None, :]
    return (2 * math.pi / period) * (product % period).double()


def synthesis_weights(n_modes: int, context_len: int) -> Tensor:
    """Weight e_j of each mode in the inverse DFT at index n-1, Eq. (6) and (7); complex128 (m,).

    A mode and its conjugate n - k add up to twice the real part; mode 0 and, if it is kept, the
    Nyquist mode n/2 are their own conjugates.
    """
    mode = torch.arange(n_modes)
    phase = (2 * math.pi / context_len) * ((mode * (context_len - 1)) % context_len).double()
    unpaired = (mode == 0) | (2 * mode == context_len)
    magnitude = torch.where(unpaired, 1.0, 2.0).double() / context_len
    return torch.polar(magnitude, phase)


@dataclass(frozen=True)
class SpectralBasis:
    """Constants for (m, n) as real matrices; mode vectors have m real, then m imaginary parts.

    synthesis (2, 2m) maps mixed modes to a folded weight. analysis (n, 2m) maps folded weights to
    the kernel. rotation (2m, 2m), float64, multiplies mode k by u_k.
    """

    synthesis: Tensor
    analysis: Tensor
    rotation: Tensor


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # training must be able to use constants made during control
def spectral_basis(
    n_modes: int, context_len: int, dtype: torch.dtype, device: torch.device
) -> SpectralBasis:
    """The constants with the given dtype and device."""
    e = synthesis_weights(n_modes, context_len)
    lags = dft_angles(n_modes, context_len + 1, context_len)[:, 1:]
    turn_re = torch.diag(lags[:, 0].cos())
    turn_im = torch.diag(lags[:, 0].sin())
    matrices = (
        torch.stack([torch.cat([e.real, -e.imag]), torch.cat([e.imag, e.real])]),
        torch.cat([lags.cos(), -lags.sin()]).T.contiguous(),
        torch.cat([torch.cat([turn_re, -turn_im], dim=1), torch.cat([turn_im, turn_re], dim=1)]),
    )
    synthesis, analysis, rotation = (matrix.to(device) for matrix in matrices)
    return SpectralBasis(synthesis.to(dtype), analysis.to(dtype), rotation)
