"""Causal convolution with long per-channel kernels, fast on a CPU.

For short sequences the DFT is a dense matrix product, which needs no transposes. The backward pass
is written by hand: autograd reads and writes the spectrum twice as often. Forward and backward of
64 windows of 64 steps and 128 channels on one core: this file 7.4 ms, real FFT 12.5 ms, depthwise
convolution 12.2 ms, Toeplitz product 17.9 ms.

Legend: B batch, T time, d channels, n lags, F frequencies. A spectrum has F real parts, then F
imaginary parts along its frequency axis.
"""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from gaitforge.learners.models.fcnet.spectral_basis import dft_angles

# Above this, the real FFT is faster.
_DENSE_DFT_MAX_STEPS = 256


@lru_cache(maxsize=32)
@torch.inference_mode(False)  # training must be able to use constants made during control
def _dft_matrices(
    steps: int, length: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Matrices of a real DFT of odd `length`, for its first `steps` samples: forward, inverse.T.

    Both are (2F, steps) with F = (length + 1) / 2.
    """
    frequencies = (length + 1) // 2
    angles = dft_angles(frequencies, steps, length)
    forward = torch.cat([angles.cos(), -angles.sin()])
    scale = torch.full((frequencies, 1), 2.0 / length, dtype=torch.float64)
    scale[0] = 1.0 / length
    inverse = forward * torch.cat([scale, scale])
    return forward.to(device, dtype), inverse.to(device, dtype)


def _filtered(spectrum: Tensor, transfer: Tensor, conjugate: bool) -> Tensor:
    """Complex product of spectrum (B, 2F, d) and transfer (2F, d), or transfer's conjugate."""
    result = torch.empty_like(spectrum)
    (x_re, x_im), (h_re, h_im) = spectrum.chunk(2, dim=1), transfer.chunk(2)
    out_re, out_im = result.chunk(2, dim=1)
    sign = -1.0 if conjugate else 1.0
    torch.mul(x_re, h_re, out=out_re).addcmul_(x_im, h_im, value=-sign)
    torch.mul(x_im, h_re, out=out_im).addcmul_(x_re, h_im, value=sign)
    return result


class _SpectralFilter(torch.autograd.Function):
    """x (B, T, d), filtered: forward DFT, product with transfer (2F, d), inverse DFT."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, transfer: Tensor, forward: Tensor, inverse: Tensor) -> Tensor:
        spectrum = torch.matmul(forward, x)
        ctx.save_for_backward(spectrum, transfer, forward, inverse)
        return torch.matmul(inverse.T, _filtered(spectrum, transfer, conjugate=False))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        spectrum, transfer, forward, inverse = ctx.saved_tensors
        grad_spectrum = torch.matmul(inverse, grad)
        (x_re, x_im), (g_re, g_im) = spectrum.chunk(2, dim=1), grad_spectrum.chunk(2, dim=1)
        correlation = torch.mul(g_re, x_re).addcmul_(g_im, x_im)
        transfer_re = correlation.sum(0)
        torch.mul(g_im, x_re, out=correlation).addcmul_(g_re, x_im, value=-1.0)
        transfer_grad = torch.cat([transfer_re, correlation.sum(0)])
        grad_x = torch.matmul(forward.T, _filtered(grad_spectrum, transfer, conjugate=True))
        return grad_x, transfer_grad, None, None


def causal_convolution(x: Tensor, kernel: Tensor) -> Tensor:
    """y[b, t, c] = sum_tau kernel[tau, c] x[b, t - tau, c]; inputs before t = 0 count as zero.

    Args: x (B, T, d), any T; kernel (n, d). Returns (B, T, d). Differentiable once.
    """
    steps = x.shape[1]
    kernel = kernel[:steps]
    lags = kernel.shape[0]
    length = steps + lags - 1
    if steps > _DENSE_DFT_MAX_STEPS:
        x_hat = torch.fft.rfft(x.transpose(1, 2).contiguous(), n=length)
        kernel_hat = torch.fft.rfft(kernel.T.contiguous(), n=length)
        return torch.fft.irfft(x_hat * kernel_hat, n=length)[..., :steps].transpose(1, 2)
    forward, inverse = _dft_matrices(steps, length | 1, x.dtype, x.device)
    return _SpectralFilter.apply(x, forward[:, :lags] @ kernel, forward, inverse)
