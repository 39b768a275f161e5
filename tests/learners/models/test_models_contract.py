"""What every kind of network must do, whatever is inside."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from gaitforge.datasets.stream.pool import Steps, Windows, gather
from gaitforge.learners.checkpoint import load_policy, policy_card, save_checkpoint
from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.registry import PRESETS, build_network, default_settings, preset
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork
from tests.learners.making import CONTEXT, KIND_SETTINGS, NETWORKS, RETURN_KINDS

LONG = 3 * CONTEXT + 1
SIZES = {"hidden_dim", "decoder_dim", "embed_dim", "feedforward_dim", "n_heads", "n_layers"}
SIZES |= {"n_modes", "context_len", "history", "chunk", "steps"}

every_kind = pytest.mark.parametrize("kind", NETWORKS)


def make(kind: str, dtype: torch.dtype = torch.float64) -> tuple[Any, int]:
    """A small network of random weights, none of them zero, in eval mode; its token's width."""
    layout = SPACES["legged-return" if kind in RETURN_KINDS else "legged"].layout
    spec = preset(kind, KIND_SETTINGS[kind])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = build_network(spec, layout, act_dim=12).to(dtype)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
    return network.eval(), layout.dim


def make_tokens(*shape: int, dtype: torch.dtype = torch.float64, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def run_steps(network: Any, tokens: Tensor, state: Any = None) -> tuple[Tensor, Any]:
    """All tokens (B, T, D) one by one -> actions (B, T, A) and the last state."""
    state = network.init_state(len(tokens)) if state is None else state
    actions = []
    for t in range(tokens.shape[1]):
        action, state = network.step(tokens[:, t], state)
        actions.append(action)
    return torch.stack(actions, dim=1), state


@every_kind
@pytest.mark.parametrize("length", [1, CONTEXT, LONG])
def test_forward_gives_one_finite_action_a_step(kind: str, length: int) -> None:
    network, width = make(kind, torch.float32)
    action = network(make_tokens(2, length, width, dtype=torch.float32))
    assert action.shape == (2, length, 12)
    assert action.dtype == torch.float32
    assert torch.isfinite(action).all()


@every_kind
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-10)])
def test_steps_equal_forward(kind: str, dtype: torch.dtype, tolerance: float) -> None:
    network, width = make(kind, dtype)
    tokens = make_tokens(3, LONG, width, dtype=dtype)
    with torch.no_grad():
        torch.testing.assert_close(
            run_steps(network, tokens)[0], network(tokens), atol=tolerance, rtol=tolerance
        )


@every_kind
@pytest.mark.parametrize("window_len", [1, 4])
def test_a_window_with_its_prefix_gives_the_actions_of_control(kind: str, window_len: int) -> None:
    network, width = make(kind, torch.float32)
    field = preset(kind, KIND_SETTINGS[kind]).config.receptive_field
    reach = LONG if field is None else field
    tokens = make_tokens(1, LONG, width, dtype=torch.float32)
    expected = run_steps(network, tokens)[0][0]

    offset = np.arange(LONG - window_len + 1)  # also windows at the episode's start and end
    windows = Windows(np.zeros_like(offset), offset, np.full_like(offset, window_len))
    steps = Steps({"obs": np.pad(tokens[0].numpy(), ((0, 1), (0, 0)))}, np.zeros(1, np.int64))

    def largest_error(prefix_len: int) -> float:
        shape = (len(offset), prefix_len + window_len)
        arrays = {"obs": np.empty((*shape, width), np.float32), "mask": np.empty(shape, bool)}
        gather(steps, windows, prefix_len, arrays)
        obs, mask = torch.from_numpy(arrays["obs"]), torch.from_numpy(arrays["mask"])
        with torch.no_grad():
            actions = network(obs, mask) if hasattr(network, "takes_mask") else network(obs)
        counted = torch.cat([expected[first : first + window_len] for first in offset.tolist()])
        return float((actions[mask] - counted).abs().max())

    assert largest_error(reach) < 1e-5
    assert reach == 0 or largest_error(CONTEXT - 2) > 1e-4  # one step too few


@every_kind
def test_the_receptive_field_is_what_can_change_an_action(kind: str) -> None:
    network, width = make(kind)
    field = preset(kind, KIND_SETTINGS[kind]).config.receptive_field
    tokens = make_tokens(1, LONG, width).requires_grad_()
    network(tokens)[0, -1].sum().backward()
    assert tokens.grad is not None
    change = tokens.grad[0].abs().sum(-1).flip(0)  # by steps before the last
    changing = (change > 1e-12 * change.max()).nonzero()  # FCNet's sums have float64's rounding
    assert int(changing.max()) == (LONG - 1 if field is None else field)


@every_kind
def test_the_future_changes_nothing(kind: str) -> None:
    network, width = make(kind)
    tokens = make_tokens(2, LONG, width)
    for now in (0, CONTEXT, LONG - 2):
        other = tokens.clone()
        other[:, now + 1 :] += 10.0
        before, after = network(tokens), network(other)
        torch.testing.assert_close(after[:, : now + 1], before[:, : now + 1], atol=1e-10, rtol=0)
        assert (after[:, now + 1 :] - before[:, now + 1 :]).abs().max() > 1e-6


@every_kind
def test_the_past_matters_to_all_but_the_mlp_of_one_step(kind: str) -> None:
    network, width = make(kind)
    tokens = make_tokens(1, CONTEXT, width)
    other = tokens.clone()
    other[:, -2] += 1.0
    difference = (network(other) - network(tokens))[:, -1].abs().max()
    assert (difference == 0) == (kind == "mlp")


@every_kind
def test_robots_of_a_batch_do_not_see_each_other(kind: str) -> None:
    network, width = make(kind)
    tokens = make_tokens(3, LONG, width)
    together, alone = network(tokens), network(tokens[1:2])
    torch.testing.assert_close(together[1:2], alone, atol=1e-10, rtol=0)
    stepped = run_steps(network, tokens)[0]
    torch.testing.assert_close(stepped[1:2], run_steps(network, tokens[1:2])[0], atol=1e-10, rtol=0)


@every_kind
def test_a_reset_forgets_these_robots_and_no_others(kind: str) -> None:
    network, width = make(kind)
    early, late = make_tokens(3, LONG, width), make_tokens(3, LONG, width, seed=2)
    _, state = run_steps(network, early)
    network.reset_state(state, torch.tensor([1]))
    after, _ = run_steps(network, late, state)
    undisturbed = run_steps(network, torch.cat([early, late], dim=1))[0][:, LONG:]
    fresh = run_steps(network, late)[0]
    torch.testing.assert_close(after[[0, 2]], undisturbed[[0, 2]], atol=1e-10, rtol=0)
    torch.testing.assert_close(after[1], fresh[1], atol=1e-10, rtol=0)


@every_kind
def test_a_reset_cures_a_state_that_saw_a_nan(kind: str) -> None:
    network, width = make(kind)
    _, state = run_steps(network, torch.full((2, 2, width), torch.nan, dtype=torch.float64))
    network.reset_state(state, torch.tensor([0, 1]))
    tokens = make_tokens(2, CONTEXT, width)
    torch.testing.assert_close(
        run_steps(network, tokens, state)[0], run_steps(network, tokens)[0], atol=1e-10, rtol=0
    )


@every_kind
def test_gradients_reach_every_parameter(kind: str) -> None:
    network, width = make(kind)
    network(make_tokens(2, LONG, width)).square().sum().backward()
    unreached = [
        name
        for name, parameter in network.named_parameters()
        if parameter.grad is None or not (parameter.grad.abs().sum() > 0)
    ]
    assert unreached == []


@every_kind
def test_one_seed_gives_one_network_and_one_answer(kind: str) -> None:
    (first, width), (second, _) = make(kind), make(kind)
    tokens = make_tokens(2, LONG, width)
    assert torch.equal(first(tokens), second(tokens))
    assert torch.equal(first(tokens), first(tokens))


@every_kind
def test_a_checkpoint_brings_the_network_back(kind: str, tmp_path: Path) -> None:
    network, _ = make(kind, torch.float32)
    layout = SPACES["legged-return" if kind in RETURN_KINDS else "legged"].layout
    policy = PolicyNetwork(
        network, layout, Normaliser.identity(layout.obs_dim), Normaliser.identity(12)
    )
    spec = preset(kind, KIND_SETTINGS[kind])
    save_checkpoint(tmp_path, policy, None, policy_card(policy, spec))
    loaded = load_policy(tmp_path)
    obs = make_tokens(2, CONTEXT, layout.obs_dim, dtype=torch.float32)
    remaining = make_tokens(2, CONTEXT, 1, dtype=torch.float32) if policy.conditioned else None
    with torch.no_grad():
        assert torch.equal(loaded(obs, remaining), policy(obs, remaining))


@every_kind
def test_sizes_below_one_are_refused(kind: str) -> None:
    settings = SIZES & set(default_settings(PRESETS[kind].kind))
    assert settings
    for setting in settings:
        for size in (0, -1):
            with pytest.raises(ValueError, match=setting) as caught:
                preset(kind, KIND_SETTINGS[kind] | {setting: size})
            assert "\n" not in str(caught.value)
