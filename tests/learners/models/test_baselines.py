"""The Transformer, the Decision Transformer and the MLPs: what is particular to each."""

from typing import Any

import pytest
import torch

from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.mlp import HistoryMLPConfig, MLPConfig
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.models.transformer import DecisionTransformerConfig, TransformerConfig
from gaitforge.learners.tokens import TokenLayout

OBS, RETURN = SPACES["legged"].layout, SPACES["legged-return"].layout
N = 5


def reach(network: Any, width: int, length: int = 4 * N) -> int:
    """How many steps back the last action sees, its own step included."""
    tokens = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
    network.double()(tokens)[:, -1].sum().backward()
    assert tokens.grad is not None
    seen = tokens.grad[0].abs().sum(-1).nonzero().flatten()
    return length - int(seen.min())


@pytest.mark.parametrize("layers", [1, 2])
def test_attention_reaches_n_steps_back_in_every_layer(layers: int) -> None:
    transformer = TransformerConfig(8, 2, layers, N).build(OBS, 12)
    dt = DecisionTransformerConfig(8, 2, layers, N).build(RETURN, 12)
    expected = layers * (N - 1) + 1
    assert (reach(transformer, OBS.dim), reach(dt, RETURN.dim)) == (expected, expected)


def test_the_cache_is_allocated_once() -> None:
    network: Any = TransformerConfig(8, 2, 2, N).build(OBS, 12)
    state = network.init_state(2)
    tensors = [*state.keys, *state.values, state.penalty]
    places = [(tensor.data_ptr(), tensor.shape) for tensor in tensors]
    for _ in range(3 * N):
        _, state = network.step(torch.randn(2, OBS.dim), state)
    tensors = [*state.keys, *state.values, state.penalty]
    assert [(tensor.data_ptr(), tensor.shape) for tensor in tensors] == places


@pytest.mark.parametrize(
    ("network", "width"),
    [
        (TransformerConfig(8, 2, 2, N).build(OBS, 12), OBS.dim),
        (DecisionTransformerConfig(8, 2, 2, N).build(RETURN, 12), RETURN.dim),
    ],
    ids=["transformer", "dt"],
)
def test_control_after_ten_million_steps_is_as_at_first(network: Any, width: int) -> None:
    assert_only_lags_matter(network, width, 3 * N)


def assert_only_lags_matter(network: Any, width: int, steps: int) -> None:
    """What the clock says must not."""
    young, old = network.init_state(1), network.init_state(1)
    old.clock += 10_000_000
    for token in torch.randn(steps, 1, width):
        first, young = network.step(token, young)
        second, old = network.step(token, old)
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def test_what_the_attention_models_cannot_be_is_refused() -> None:
    assert_refused(TransformerConfig, DecisionTransformerConfig)


def assert_refused(plain: Any, of_returns: Any) -> None:
    """Widths that heads do not divide, and tokens that a model conditioned on returns lacks."""
    for kind in (plain, of_returns):
        with pytest.raises(ValueError, match=r"multiple of 2 \* n_heads = 8, got 12"):
            kind(hidden_dim=12, n_heads=4)
    layout = TokenLayout("return", {"last_action": (0, 3)})
    with pytest.raises(ValueError, match="needs tokens of kind 'return', not 'obs'"):
        of_returns().build(OBS, 12)
    with pytest.raises(ValueError, match="besides the last action"):
        of_returns().build(layout, 3)


def test_action_return_and_state_are_embedded_apart() -> None:
    assert_embedded_apart(DecisionTransformerConfig(8, 2, 1, N).build(RETURN, 12))


def assert_embedded_apart(network: Any) -> None:
    """Each of the three changes its own place alone."""
    token = torch.randn(RETURN.dim)
    base = network.embed(token)
    for index, (start, stop) in enumerate([(0, 12), (12, 13), (13, 71)]):
        other = token.clone()
        other[start:stop] += 1.0
        changed = (network.embed(other) != base).any(-1)
        assert changed.tolist() == [position == index for position in range(3)]


def test_mlp_treats_every_step_on_its_own() -> None:
    network = MLPConfig(16).build(OBS, 12)
    tokens, order = torch.randn(1, 9, OBS.dim), torch.randperm(9)
    torch.testing.assert_close(network(tokens[:, order]), network(tokens)[:, order])
    assert network.init_state(3).numel() == 0


def test_history_mlp_sees_n_observations_and_zeros_before_the_first() -> None:
    network = HistoryMLPConfig(16, 2, N).build(OBS, 12)
    tokens = torch.randn(1, 3, OBS.dim)
    padded = torch.cat([torch.zeros(1, N, OBS.dim), tokens], dim=1)
    torch.testing.assert_close(network(padded)[:, N:], network(tokens), atol=1e-6, rtol=1e-5)
    by_hand = network.rest(network.first(padded[:, -N:].flatten(1)))
    torch.testing.assert_close(network(tokens)[:, -1], by_hand, atol=1e-6, rtol=1e-5)
    assert reach(network, OBS.dim) == N


def test_history_of_one_is_the_plain_mlp() -> None:
    plain = MLPConfig(16, 2).build(OBS, 12)
    short = HistoryMLPConfig(16, 2, 1).build(OBS, 12)
    short.load_state_dict(plain.state_dict())
    tokens = torch.randn(2, 4, OBS.dim)
    assert torch.equal(plain(tokens), short(tokens))
    assert count_parameters(plain) == 71 * 16 + 17 * 16 + 17 * 12
