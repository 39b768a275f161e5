"""The spectral convolution: three computations of one block, and its recurrent form."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.models.fcnet import (
    CONVOLUTIONS,
    SpectralConv,
    SpectralState,
    causal_convolution,
)


@dataclass(frozen=True)
class Sizes:
    n: int
    m: int
    steps: int
    batch: int


@st.composite
def sizes(draw: st.DrawFn) -> Sizes:
    """Any legal block, with sequences both shorter and longer than its window."""
    n = draw(st.integers(1, 24))
    m = draw(st.integers(1, n // 2 + 1))
    return Sizes(n, m, draw(st.integers(1, 3 * n + 2)), draw(st.integers(1, 3)))


def values_and_gradients(
    block: SpectralConv, x: torch.Tensor, direction: torch.Tensor
) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    output = block(x)
    return [output, *torch.autograd.grad((output * direction).sum(), [x, block.weight])]


def largest_error(ours: torch.Tensor, truth: torch.Tensor) -> float:
    """Relative to the largest number, or absolute where all are below one."""
    ours, truth = ours.detach().double(), truth.detach().double()
    return float((ours - truth).abs().max() / truth.abs().max().clamp(min=1.0))


@settings(max_examples=60, deadline=None)
@given(size=sizes(), seed=st.integers(0, 2**20))
def test_all_three_computations_agree_in_values_and_gradients(size: Sizes, seed: int) -> None:
    torch.manual_seed(seed)
    blocks = {name: SpectralConv(3, size.m, size.n, name) for name in CONVOLUTIONS}
    for block in blocks.values():
        block.load_state_dict(blocks["defining"].state_dict())
    x, direction = torch.randn(2, size.batch, size.steps, 3)
    single = {name: values_and_gradients(block, x, direction) for name, block in blocks.items()}
    double = {
        name: values_and_gradients(block.double(), x.double(), direction.double())
        for name, block in blocks.items()
    }
    for name in CONVOLUTIONS:
        for ours, truth in zip(single[name], double["defining"], strict=True):
            assert largest_error(ours, truth) < 1e-5
        for ours, truth in zip(double[name], double["defining"], strict=True):
            assert largest_error(ours, truth) < 1e-10


def test_the_definition_equals_numpys_transforms() -> None:
    n, m, rng = 8, 5, np.random.default_rng(0)
    block = SpectralConv(1, m, n, "defining").double()
    x = rng.standard_normal(13)
    mixing = torch.complex(*block.weight.detach())[..., 0].numpy()
    padded = np.concatenate([np.zeros(n - 1), x])
    expected = [
        np.fft.irfft(mixing @ np.fft.rfft(padded[t : t + n])[:m], n=n)[-1] for t in range(13)
    ]
    with torch.no_grad():
        result = block(torch.from_numpy(x)[None, :, None])[0, :, 0]
    np.testing.assert_allclose(result.numpy(), expected, atol=1e-12)


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_autocast_leaves_the_block_in_full_precision(convolution: str) -> None:
    torch.manual_seed(0)
    block = SpectralConv(3, 4, 12, convolution)
    x, direction = torch.randn(2, 2, 300, 3)
    output, _, gradient = values_and_gradients(block, x, direction)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = block(x)
        rounded = block(x.bfloat16())
    torch.testing.assert_close(mixed, output)
    assert rounded.dtype == torch.bfloat16
    torch.testing.assert_close(rounded.float(), output, atol=0.03, rtol=0.03)
    mixed_gradient = torch.autograd.grad((mixed * direction).sum(), block.weight)[0]
    torch.testing.assert_close(mixed_gradient, gradient)


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


@pytest.mark.slow
def test_drift_is_bounded_over_many_steps() -> None:
    torch.manual_seed(1)
    n, m, steps = 24, 8, 40_000
    block = SpectralConv(1, m, n)
    x = 3.0 + torch.randn(steps, 1)
    with torch.inference_mode():
        state = block.init_state(1)
        renewed = torch.cat([block.step(x[t : t + 1], state, t % n) for t in range(steps)])
        exact = block.double()(x[None].double())[0]
    plain = sliding_dft_for_ever(x[:, 0].numpy(), state, n)

    def largest_by_stretch(output: np.ndarray) -> np.ndarray:
        return np.abs(output - exact[:, 0].numpy()).reshape(10, -1).max(axis=1)

    drifting, bounded = largest_by_stretch(plain), largest_by_stretch(renewed[:, 0].numpy())
    assert drifting[-1] > 3 * drifting[0]
    assert bounded.max() < 5e-6
    assert bounded.max() < drifting[0] / 3


def sliding_dft_for_ever(x: np.ndarray, state: SpectralState, n: int) -> np.ndarray:
    """Eq. (13) in single precision as the paper prints it, with no remedy for rounding."""
    readout = state.readout[:, 0, 0].numpy()
    m = readout.size // 2
    turn = np.exp(2j * np.pi * np.arange(m) / n).astype(np.complex64)
    read = (readout[:m] - 1j * readout[m:]).astype(np.complex64)
    padded = np.concatenate([np.zeros(n, np.float32), x])
    difference = x - padded[: x.size]
    modes = np.zeros(m, np.complex64)
    outputs = np.empty(x.size, np.float32)
    for t in range(x.size):
        modes = turn * (modes + difference[t])
        outputs[t] = (read @ modes).real
    return outputs


@pytest.mark.parametrize(("n", "m"), [(0, 1), (8, 0), (8, 6)])
def test_impossible_sizes_are_refused(n: int, m: int) -> None:
    with pytest.raises(ValueError, match="must"):
        SpectralConv(4, m, n)
