"""FCNet: the paper's size, causality, and the recurrent form against the parallel one."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.models.fcnet import FCNet, FCNetConfig


def small_net(seed: int, context_len: int = 6, n_layers: int = 2) -> FCNet:
    torch.manual_seed(seed)
    config = FCNetConfig(
        hidden_dim=8,
        decoder_dim=4,
        n_layers=n_layers,
        n_modes=min(3, context_len // 2 + 1),
        context_len=context_len,
    )
    return FCNet(config, token_dim=5, act_dim=3)


@settings(max_examples=25)
@given(
    context_len=st.integers(1, 12),
    n_layers=st.integers(1, 3),
    batch=st.integers(1, 3),
    steps=st.integers(1, 45),
    seed=st.integers(0, 2**20),
)
def test_steps_equal_the_parallel_form_also_beyond_the_context(
    context_len: int, n_layers: int, batch: int, steps: int, seed: int
) -> None:
    net = small_net(seed, context_len, n_layers)
    tokens = torch.randn(batch, steps, 5)
    with torch.no_grad():
        parallel = net(tokens)
    state = net.init_state(batch)
    for t in range(steps):
        action, state = net.step(tokens[:, t], state)
        torch.testing.assert_close(action, parallel[:, t], atol=2e-5, rtol=1e-4)


def test_unknown_computations_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: folded, fft-modes, defining"):
        FCNetConfig(convolution="wavelet")


def test_nothing_is_remembered_beyond_the_context_of_all_layers() -> None:
    net = small_net(0, context_len=4, n_layers=2)
    reach = 2 * (4 - 1)
    tokens = torch.randn(1, 20, 5, dtype=torch.float64)
    other = tokens.clone()
    other[:, 3] += 1.0
    net = net.double()
    with torch.no_grad():
        gap = (net(tokens) - net(other)).abs().amax(dim=(0, 2))
    assert (gap[3 : 3 + reach + 1] > 1e-9).all()
    assert (gap[3 + reach + 1 :] < 1e-12).all()


def test_more_modes_than_the_window_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_modes must lie in 1\.\.33"):
        FCNet(FCNetConfig(n_modes=34), 70, 12)
