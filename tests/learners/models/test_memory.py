"""The memories of networks of single steps: exact sums, whatever the length of an episode."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.models.base import SpectralMemory
from gaitforge.learners.models.registry import config_class, default_settings
from tests.learners.making import KINDS, make_policy

SPECTRAL = {"history_kind": "spectral", "n_modes": 3}
WITH_MEMORY = [kind for kind in KINDS if "history_kind" in default_settings(kind)]
SMALL = {"hidden_dim": 8, "embed_dim": 8, "n_layers": 2, "feedforward_dim": 8}
SMALL |= {"context_len": 9, "history": 9}


def small(kind: str) -> dict[str, Any]:
    """Settings of a small network."""
    return {name: SMALL[name] for name in default_settings(kind) if name in SMALL} | SPECTRAL


@settings(max_examples=15)
@given(st.integers(1, 20), st.data())
def test_modes_are_the_sums_that_they_are_said_to_be(n: int, data: st.DataObject) -> None:
    m = data.draw(st.integers(1, (n + 1) // 2))
    x = torch.randn(2, 3 * n + 5, 4, dtype=torch.float64)
    memory = SpectralMemory(n, m)
    state = memory.init_state(x[:, 0])
    for t in range(x.shape[1]):
        if t == n + 2:
            memory.reset_state(state, torch.tensor([1]))
            x[1, :t] = 0.0
        remembered, state = memory.step(x[:, t], state)
        remembered = remembered.unflatten(1, (2 * m, 4))
        recent = torch.zeros(2, n, 4, dtype=torch.float64)  # by age
        seen = min(t + 1, n)
        recent[:, :seen] = x[:, t + 1 - seen : t + 1].flip(1)
        age = torch.arange(n, dtype=torch.float64)
        assert torch.equal(remembered[:, 0], x[:, t])
        for k in range(m):
            scale, angle = math.sqrt((1 if k == 0 else 2) / n), 2 * math.pi * k / n
            cos = scale * torch.einsum("bnd,n->bd", recent, (angle * age).cos())
            torch.testing.assert_close(remembered[:, 1 + k], cos)
            if k:
                sin = scale * torch.einsum("bnd,n->bd", recent, (angle * age).sin())
                torch.testing.assert_close(remembered[:, m + k], sin)


@pytest.mark.parametrize("kind", WITH_MEMORY)
def test_a_spectral_network_steps_as_it_was_trained(kind: str) -> None:
    policy = make_policy(kind, settings=small(kind)).eval()
    obs = torch.randn(2, 40, 70)
    with torch.no_grad():
        parallel, state = policy(obs), policy.init_state(2)
        for t in range(obs.shape[1]):
            action, state = policy.step(obs[:, t], state)
            torch.testing.assert_close(action, parallel[:, t], atol=1e-5, rtol=1e-5)


def test_the_rounding_of_a_long_run_stays_below_float32s() -> None:
    memory, n = SpectralMemory(64, 8), 64
    x = 100 + torch.randn(1, 5_000, 3)
    state = memory.init_state(x[:, 0])
    remembered = torch.empty(0)
    for t in range(x.shape[1]):
        remembered, state = memory.step(x[:, t], state)
    expected = memory.of_steps(x[:, -n:].flatten(1), 3)
    torch.testing.assert_close(remembered, expected, atol=2e-3, rtol=1e-5)


def test_what_makes_no_sense_is_refused() -> None:
    for kind in WITH_MEMORY:
        with pytest.raises(ValueError, match="allowed: stacked, spectral"):
            config_class(kind)(history_kind="wavelets")
        with pytest.raises(ValueError, match="n_modes must be 1 to 5"):
            config_class(kind)(**small(kind) | {"n_modes": 6})
