"""The spectral convolution against the paper's defining equations, written out plainly."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learners.convolution import causal_convolution
from learners.spectral import SpectralConv


def window_output(window: Tensor, weight: Tensor) -> Tensor:
    """y_{n-1} of Eq. (5) to (7) for one window (n, d), weight (m_out, m_in, d) complex."""
    n, m = window.shape[0], weight.shape[0]
    index = torch.arange(n, dtype=torch.float64)
    x_hat = torch.stack(
        [(window * torch.exp(-2j * math.pi / n * k * index)[:, None]).sum(0) for k in range(m)]
    )
    y_hat = torch.stack([(weight[j] * x_hat).sum(0) for j in range(m)])
    z_hat = torch.zeros(n, window.shape[1], dtype=torch.complex128)
    for k in range(n):
        if k < m:
            z_hat[k] = y_hat[k]
        elif k >= n - m + 1:
            z_hat[k] = y_hat[n - k].conj()
    return (z_hat * torch.exp(2j * math.pi / n * index * (n - 1))[:, None]).sum(0).real / n


def defining_output(x: Tensor, weight: Tensor, n: int) -> Tensor:
    """The block's output at every step of x (B, T, d), zeros before the sequence's start."""
    padded = torch.cat([x.new_zeros(x.shape[0], n - 1, x.shape[2]), x], dim=1)
    return torch.stack(
        [
            torch.stack([window_output(row[t : t + n], weight) for t in range(x.shape[1])])
            for row in padded
        ]
    )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
@pytest.mark.parametrize(
    ("n", "m", "steps"), [(16, 5, 23), (8, 5, 8), (9, 5, 14), (2, 2, 5), (1, 1, 3), (12, 4, 3)]
)
def test_folded_kernel_equals_defining_equations(
    n: int, m: int, steps: int, dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    block = SpectralConv(3, m, n).to(dtype)
    x = torch.randn(2, steps, 3, dtype=dtype, requires_grad=True)
    direction = torch.randn(2, steps, 3, dtype=dtype)

    folded = block(x)
    folded_grads = torch.autograd.grad((folded * direction).sum(), [x, block.weight])
    weight = torch.complex(block.weight[0].double(), block.weight[1].double())
    plain = defining_output(x.double(), weight, n).to(dtype)
    plain_grads = torch.autograd.grad((plain * direction).sum(), [x, block.weight])

    torch.testing.assert_close(folded, plain, atol=tolerance, rtol=tolerance)
    for ours, reference in zip(folded_grads, plain_grads, strict=True):
        torch.testing.assert_close(ours, reference, atol=tolerance, rtol=tolerance)


def test_constants_first_made_for_control_also_serve_training() -> None:
    block = SpectralConv(2, 3, 17)
    with torch.inference_mode():
        block(torch.zeros(1, 9, 2))
    block(torch.ones(1, 9, 2)).sum().backward()
    assert block.weight.grad is not None
    assert block.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("steps", [5, 40, 300])
@pytest.mark.parametrize("lags", [1, 7, 64])
def test_causal_convolution_equals_its_sum(steps: int, lags: int) -> None:
    generator = torch.Generator().manual_seed(steps + lags)
    x = torch.randn(2, steps, 3, generator=generator, dtype=torch.float64)
    kernel = torch.randn(lags, 3, generator=generator, dtype=torch.float64)
    expected = torch.zeros_like(x)
    for lag in range(min(lags, steps)):
        expected[:, lag:] += kernel[lag] * x[:, : steps - lag]
    torch.testing.assert_close(causal_convolution(x, kernel), expected, atol=1e-11, rtol=0)


@settings(max_examples=30, deadline=None)
@given(
    n=st.integers(1, 20),
    mode_fraction=st.floats(0, 1),
    steps=st.integers(1, 50),
    batch=st.integers(1, 3),
    offset=st.integers(0, 40),
    seed=st.integers(0, 2**20),
)
def test_recurrent_step_equals_parallel_form(
    n: int, mode_fraction: float, steps: int, batch: int, offset: int, seed: int
) -> None:
    torch.manual_seed(seed)
    block = SpectralConv(4, 1 + round(mode_fraction * (n // 2)), n)
    x = torch.randn(batch, steps, 4)
    with torch.no_grad():
        parallel = block(x)
        state = block.init_state(batch, offset)
        recurrent = torch.stack([block.step(x[:, t], state) for t in range(steps)], dim=1)
    torch.testing.assert_close(recurrent, parallel, atol=2e-5, rtol=1e-4)


def test_drift_stays_bounded_over_many_steps() -> None:
    torch.manual_seed(1)
    block = SpectralConv(8, 10, 64)
    x = 3.0 + torch.randn(20_000, 8)
    with torch.inference_mode():
        state = block.init_state(1)
        outputs = torch.cat([block.step(row[None], state) for row in x])
        exact = block.double()(x[None].double())[0]
    errors = (outputs - exact).abs().amax(1)
    early, late = errors[64:2_000].max(), errors[-2_000:].max()
    assert late < 2 * early
    assert late < 1e-4


@pytest.mark.parametrize(("n", "m"), [(0, 1), (8, 0), (8, 6)])
def test_impossible_sizes_are_refused(n: int, m: int) -> None:
    with pytest.raises(ValueError, match="must"):
        SpectralConv(4, m, n)
