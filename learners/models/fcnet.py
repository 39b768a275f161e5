"""Fourier Controller Network (FCNet), Tan et al. 2024, Section 3.1, Eq. (3).

A position-wise encoder P, L Fourier layers and a position-wise decoder Q. Details that the paper
leaves open are chosen so that the legged setting of its Table 5 has the 787,852 parameters of its
Table 7: P is one linear map, each FFN keeps the hidden width, the two LayerNorms of a layer are
separate, the mixing weights are per channel, and Q is linear, GELU, linear.

The causal spectral convolution (CSC) of FCNet, and the paper's form of it as a reference.

Source: Tan et al. 2024, "Fourier Controller Networks", Section 3.2 to 3.4.

`SpectralConv` is the CSC, folded into one causal kernel per channel. Eq. (5) to (7) transform the
last n inputs, keep m modes, mix them with W, and evaluate the inverse transform at the window's
last index. All of it after the DFT is linear in the m modes and folds, for each channel c, into m
complex numbers

    r[c, k] = sum_j e_j W[c, k -> j],    y_t[c] = Re sum_k r[c, k] X_k(t)[c],

where e_j is the weight of mode j in the inverse DFT at index n-1. With the recurrence of Eq. (9)
and (13), X_k(t) = sum_tau x_{t-tau} u_k^(tau+1) with u_k = exp(2 pi i k / n), the block is a causal
convolution with the kernel h[tau, c] = Re sum_k r[c, k] u_k^(tau+1).

Deviation from the paper: Eq. (12) convolves every mode and then mixes them; the folded kernel gives
the same result with a factor of m fewer products.

`SpectralBasis` holds the constants of Eq. (6), (7), (9) and (13): DFT angles, inverse-DFT weights,
real matrices. They are computed in float64 and then rounded to the network's dtype.

`causal_convolution` is a causal convolution with long per-channel kernels, fast on a CPU. For short
sequences the DFT is a dense matrix product, which needs no transposes. The backward pass is written
by hand: autograd reads and writes the spectrum twice as often. Forward and backward of 64 windows
of 64 steps and 128 channels on one core: this function 7.4 ms, real FFT 12.5 ms, depthwise
convolution 12.2 ms, Toeplitz product 17.9 ms. A spectrum has F real parts, then F imaginary parts
along its frequency axis.

`defining_convolution` and `fft_modes_convolution` are the CSC as in the paper's Section 3.2 and
3.3: its definition and its parallel algorithm. `SpectralConv` gives the same results, much faster,
and is tested against both. Deviations of these two from the paper: Eq. (8) is printed with absolute
time in the exponent, but Eq. (9) and (13) need time relative to the window, as here. Inputs before
the sequence count as zero, so the recurrence starts from zero modes and Eq. (12) needs no special
first and last terms.

Legend: B batch, T time, D token, A action, d channels, n context length or lags, m modes, F
frequencies, j mixed mode, k mode.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from gaitforge.learners.models.base import NoPrefix, check_counts
from gaitforge.learners.tokens import TokenLayout


# Constants: DFT angles, inverse-DFT weights, real matrices.
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


# Causal convolution with long per-channel kernels.

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


# The convolution as in the paper: its definition and its parallel algorithm.
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


# The convolution folded into one causal kernel per channel.
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

    @property
    def receptive_field(self) -> int:
        """Steps before the current one that can change its action: n - 1 more with each layer."""
        return self.n_layers * (self.context_len - 1)

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
