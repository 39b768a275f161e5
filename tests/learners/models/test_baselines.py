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


def test_positions_and_dropout_that_there_are_not_are_refused() -> None:
    for kind in (TransformerConfig, DecisionTransformerConfig):
        with pytest.raises(ValueError, match=r"no positions 'learned'.*rotary, none"):
            kind(positions="learned")
        with pytest.raises(ValueError, match="hidden_dim must be a multiple of n_heads = 4, got 6"):
            kind(hidden_dim=6, positions="none")
        for dropout in (-0.1, 1.0, float("nan")):
            with pytest.raises(ValueError, match=r"dropout must be in \[0, 1\), got"):
                kind(dropout=dropout)
    assert TransformerConfig(hidden_dim=12, positions="none").hidden_dim == 12


@pytest.mark.parametrize(
    ("config", "layout"),
    [
        (TransformerConfig(8, 2, 2, N, "none", 0.5, embedding_norm=True), OBS),
        (DecisionTransformerConfig(8, 2, 2, N, "none", 0.5), RETURN),
    ],
    ids=["transformer", "dt"],
)
def test_dropout_acts_in_training_alone_and_follows_the_seed(config: Any, layout: Any) -> None:
    network = config.build(layout, 12)
    tokens = torch.randn(2, 2 * N, layout.dim)
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(network(tokens))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    state = network.init_state(2)
    stepped = []
    for token in tokens.unbind(1):  # a control step drops nothing, also of a network in training
        action, state = network.step(token, state)
        stepped.append(action)
    network.eval()
    torch.testing.assert_close(torch.stack(stepped, 1), network(tokens), atol=1e-5, rtol=1e-5)
    assert torch.equal(network(tokens), network(tokens))


def test_dropout_is_on_the_embedding_the_weights_and_both_sums() -> None:
    """Once on the embedding and twice in a block, besides its attention's weights."""
    network: Any = TransformerConfig(8, 2, 1, N, "none", 0.5, embedding_norm=True).build(OBS, 12)
    tokens = torch.randn(1, N, OBS.dim)
    places = [network.trunk.dropout, network.trunk.blocks[0].dropout]
    calls = dict.fromkeys(places, 0)
    for place in places:
        place.register_forward_hook(lambda layer, *_: calls.update({layer: calls[layer] + 1}))
    network(tokens)
    assert list(calls.values()) == [1, 2]
    places[0].p = 0.0
    places[1].forward = lambda x: x  # attention's weights are dropped still
    assert not torch.equal(network(tokens), network(tokens))
    places[1].p = 0.0
    assert torch.equal(network(tokens), network(tokens))


def test_without_positions_only_the_mask_tells_the_order() -> None:
    """Of one layer, the last step does not see in which order the steps before it came."""
    for positions, seen in (("none", False), ("rotary", True)):
        network = TransformerConfig(8, 2, 1, N, positions).build(OBS, 12).double()
        tokens = torch.randn(1, N, OBS.dim, dtype=torch.float64)
        other = torch.cat([tokens[:, : N - 1].flip(1), tokens[:, N - 1 :]], dim=1)
        difference = (network(other) - network(tokens))[:, -1].abs().max()
        assert (difference > 1e-9) == seen


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
