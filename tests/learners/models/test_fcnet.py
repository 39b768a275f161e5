"""FCNet: the paper's size, causality, and the recurrent form against the parallel one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.models.fcnet.fcnet import FCNet, FCNetConfig


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


@pytest.mark.parametrize("convolution", ["fft-modes", "defining"])
@pytest.mark.parametrize("steps", [5, 40])
def test_every_computation_gives_the_same_network(convolution: str, steps: int) -> None:
    config = small_net(0).config
    fast = small_net(0).double()
    reference = FCNet(replace(config, convolution=convolution), 5, 3).double()
    reference.load_state_dict(fast.state_dict())
    tokens = torch.randn(2, steps, 5, dtype=torch.float64)
    direction = torch.randn(2, steps, 3, dtype=torch.float64)
    for net in (fast, reference):
        (net(tokens) * direction).sum().backward()
    torch.testing.assert_close(fast(tokens), reference(tokens), atol=1e-10, rtol=1e-10)
    for (name, ours), theirs in zip(fast.named_parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(
            ours.grad, theirs.grad, atol=1e-10, rtol=1e-10, msg=f"gradient of {name}"
        )


def test_unknown_computations_are_refused() -> None:
    with pytest.raises(ValueError, match="allowed: folded, fft-modes, defining"):
        FCNetConfig(convolution="wavelet")


@settings(max_examples=20)
@given(steps=st.integers(2, 30), change=st.integers(0, 29), seed=st.integers(0, 2**20))
def test_no_action_depends_on_a_later_token(steps: int, change: int, seed: int) -> None:
    change = change % steps
    net = small_net(seed)
    tokens = torch.randn(1, steps, 5)
    other = tokens.clone()
    other[:, change] += 1.0
    with torch.no_grad():
        before, after = net(tokens), net(other)
    torch.testing.assert_close(after[:, :change], before[:, :change], atol=1e-5, rtol=0)
    assert not torch.allclose(after[:, change], before[:, change], atol=1e-5)


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


def test_resetting_rows_restarts_those_robots_only() -> None:
    net = small_net(4)
    tokens = torch.randn(3, 30, 5)
    state, fresh = net.init_state(3), net.init_state(1)
    with torch.no_grad():
        undisturbed = net(tokens)
    for t in range(30):
        if t == 17:
            net.reset_state(state, torch.tensor([1]))
        action, state = net.step(tokens[:, t], state)
        torch.testing.assert_close(action[[0, 2]], undisturbed[[0, 2], t], atol=2e-5, rtol=1e-4)
        if t >= 17:
            restarted, fresh = net.step(tokens[1:2, t], fresh)
            torch.testing.assert_close(action[1:2], restarted, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("field", ["context_len", "hidden_dim", "n_layers", "n_modes"])
def test_sizes_below_one_are_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        FCNetConfig(**cast(Any, {field: 0}))


def test_more_modes_than_the_window_has_are_refused() -> None:
    with pytest.raises(ValueError, match=r"n_modes must lie in 1\.\.33"):
        FCNet(FCNetConfig(n_modes=34), 70, 12)
