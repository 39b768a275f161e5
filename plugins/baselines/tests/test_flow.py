"""The flow matching policy: what is particular to it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gaitforge.learners.tokens import TokenLayout
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.objectives import OBJECTIVES, squared_error, summed_loss
from gaitforge.learners.training.train import train
from gaitforge.plugins.baselines.flow import FlowConfig, FlowPolicy
from tests.learners.making import SHORT, SMALL, make_policy, make_selection
from tests.learners.training.test_resume import (
    LONGER,
    assert_same_run,
    stop_and_go_on,
    told_of_other_numbers,
)

LAYOUT = TokenLayout("obs", {"state": (0, 3)})
SIZES: dict[str, Any] = {"hidden_dim": 16, "n_layers": 2, "context_len": 3, "chunk": 4}
FLOW = replace(SHORT, model="flow", model_overrides=SMALL["flow"])


def make(seed: int = 0, **settings: Any) -> FlowPolicy:
    torch.manual_seed(seed)
    return FlowConfig(**SIZES | settings).build(LAYOUT, act_dim=2)


def losses(network: FlowPolicy, tokens: Tensor, actions: Tensor, mask: Tensor) -> Tensor:
    torch.manual_seed(5)
    return network.imitation_losses(tokens, actions, mask)


@given(steps=st.integers(1, 4), temperature=st.floats(0.0, 3.0), seed=st.integers(0, 100))
def test_straight_paths_end_at_the_chunk(steps: int, temperature: float, seed: int) -> None:
    network = make(seed, steps=steps, temperature=temperature).double()
    chunk = torch.randn(5, 8, dtype=torch.float64)
    network.path_end = lambda context, x, time: chunk  # type: ignore[method-assign]
    found = network.predict_chunk(torch.randn(5, 9, dtype=torch.float64))
    torch.testing.assert_close(found.flatten(1), chunk, atol=1e-12, rtol=0)
    torch.testing.assert_close(
        network.encode(torch.randn(5, 9, dtype=torch.float64)), chunk[:, :2], atol=1e-12, rtol=0
    )


def velocity(network: FlowPolicy, histories: Tensor, x: Tensor, time: Tensor) -> Tensor:
    return (network.path_end(network.history_in(histories), x, time) - x) / (1 - time)


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_the_chunk_is_integrated_by_euler_steps_from_the_start(steps: int) -> None:
    network = make(steps=steps, temperature=1.0).double()
    histories, x = torch.randn(5, 9, dtype=torch.float64), network.start.expand(5, -1)
    assert 0.3 < x.std() < 2.0
    for number in range(steps):
        time = torch.full((5, 1), number / steps, dtype=torch.float64)
        x = x + velocity(network, histories, x, time) / steps
    torch.testing.assert_close(network.predict_chunk(histories).flatten(1), x)


def test_the_loss_is_the_weighted_error_of_the_velocity() -> None:
    network = make().double()
    tokens, actions = (torch.randn(6, 6, n, dtype=torch.float64) for n in (3, 2))
    mask = torch.tensor([False] * 5 + [True]).expand(6, -1)
    found = losses(network, tokens, actions, mask)
    torch.manual_seed(5)
    noise = torch.randn(6, 8, dtype=torch.float64)
    time = torch.rand(6, 1, dtype=torch.float64)
    chunk, histories = actions[:, 2:].flatten(1), tokens[:, :3].flatten(1)
    error = velocity(network, histories, (1 - time) * noise + time * chunk, time) - (chunk - noise)
    expected = ((1 - time) * error).square().mean(-1)
    torch.testing.assert_close(found, expected)


@given(st.data())
def test_what_follows_the_learned_steps_changes_no_loss(data: st.DataObject) -> None:
    """Padding is what follows."""
    lengths = data.draw(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 4)), min_size=2))
    mask, network = torch.zeros(len(lengths), 9, dtype=torch.bool), make()
    tokens, actions = torch.randn(*mask.shape, 3), torch.randn(*mask.shape, 2)
    other_tokens, other_actions = tokens.clone(), actions.clone()
    for row, (prefix, length) in enumerate(lengths):
        mask[row, prefix : prefix + length] = True
        other_tokens[row, prefix + length :] = 1e6
        other_actions[row, prefix + length :] = torch.nan
    found = losses(network, other_tokens, other_actions, mask)
    assert torch.equal(found, losses(network, tokens, actions, mask))
    assert found.shape == (int(mask.sum()),)
    found.sum().backward()  # also of no step
    assert all(
        each.grad is not None and each.grad.isfinite().all() for each in network.parameters()
    )


def test_what_stands_in_for_unknown_actions_is_not_learned() -> None:
    """At an episode's start one action is known: only its numbers have a gradient."""
    network = make()
    mask = torch.tensor([[1, 0, 0, 0, 0]], dtype=torch.bool)
    losses(network, torch.randn(1, 5, 3), torch.randn(1, 5, 2), mask).sum().backward()
    bias = network.rest[-1].bias.grad
    assert isinstance(bias, Tensor)
    assert (bias != 0).tolist() == [True, True, *[False] * 6]


def test_a_prefix_holds_what_a_chunk_and_its_history_need() -> None:
    config = FlowConfig(**SIZES)
    before = config.prefix_len
    network = config.build(LAYOUT, act_dim=2)
    tokens, actions = torch.randn(1, 12, 3), torch.randn(1, 12, 2)
    mask = torch.zeros(1, 12, dtype=torch.bool)
    mask[0, -1] = True
    whole = losses(network, tokens, actions, mask)

    def shorter(prefix: int) -> Tensor:
        return losses(network, *(each[:, 11 - prefix :] for each in (tokens, actions, mask)))

    torch.testing.assert_close(shorter(before), whole)
    assert (shorter(before - 1) != whole).all()


def train_on_two_modes() -> FlowPolicy:
    """Whole episodes of action +1 or -1, half of them each, under the same observation."""
    network = make(hidden_dim=32, steps=4, temperature=1.0)
    optimiser = torch.optim.Adam(network.parameters(), lr=5e-3)
    mask = torch.ones(64, 6, dtype=torch.bool)
    for _ in range(300):
        sign = torch.where(torch.rand(64, 1, 1) < 0.5, -1.0, 1.0)
        loss = network.imitation_losses(torch.ones(64, 6, 3), sign.expand(-1, 6, 2), mask).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return network


def test_from_noise_it_takes_one_of_two_modes_and_keeps_to_it() -> None:
    network = train_on_two_modes()
    with torch.no_grad():
        action = network(torch.ones(1, 12, 3))[0, 2:]
        assert (action.abs() > 0.6).all()
        assert (action.sign() == action.sign()[0, 0]).all()
        first = action.sign()[0, 0]
        network.start.neg_()  # the opposite draw takes the other one
        assert (network(torch.ones(1, 12, 3))[0, 2:].sign() == -first).all()
        network.start.zero_()
        network.steps = 1  # one step from the noise's mean: the mean of the data
        assert network(torch.ones(1, 12, 3))[0, 2:].abs().max() < 0.3


def test_it_is_trained_by_its_own_loss_and_validated_by_its_actions() -> None:
    policy = make_policy("flow")
    batch = {"obs": torch.randn(2, 6, 70), "action": torch.randn(2, 6, 12)}
    batch["mask"] = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 0, 0, 0]], dtype=torch.bool)
    target = policy.action_normaliser.normalise(batch["action"])
    tokens = policy.obs_normaliser.normalise(batch["obs"])
    own = losses(policy.network, tokens, target, batch["mask"]).sum()
    torch.manual_seed(5)
    assert torch.equal(summed_loss(policy, batch), own)
    error = squared_error(policy.eval().predict_normalised(batch["obs"]), target)
    torch.testing.assert_close(summed_loss(policy, batch), error[batch["mask"]].sum())


def test_it_learns_by_imitation(tmp_path: Path) -> None:
    selection = make_selection(tmp_path / "walks.zarr")
    config = replace(FLOW, objective="return", peak_lr=0.01, ema_decay=0.5)
    short = train(replace(config, steps=1), selection, tmp_path / "short")
    long = train(replace(config, steps=150), selection, tmp_path / "long")
    assert long.loss < 0.8 * short.loss
    assert long.validation_loss is not None
    assert short.validation_loss is not None
    assert long.validation_loss < 0.7 * short.validation_loss


def test_a_stopped_run_ends_as_one_that_was_not_and_says_what_moves_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", 0.0)
    selection = make_selection(tmp_path / "walks.zarr")
    config = replace(LONGER, model="flow", model_overrides=SMALL["flow"])
    uninterrupted = train(config, selection, tmp_path / "whole")
    stopped = stop_and_go_on(config, selection, tmp_path / "stopped")
    assert_same_run(stopped, uninterrupted.run_dir)
    # Its loss draws random numbers, and the parts of a batch decide which.
    assert told_of_other_numbers(replace(config, objective="bc"), selection, tmp_path / "parts")


def test_other_losses_and_settings_outside_their_range_are_refused(tmp_path: Path) -> None:
    selection = make_selection(tmp_path / "walks.zarr", episodes=4)
    for objective in [name for name, each in OBJECTIVES.items() if each.values or each.gaussian]:
        config = TrainConfig.recommended(
            "flow", objective=objective, steps=1, held_out_fraction=0.0
        )
        message = f"learns by a loss of its own, not by .* {objective}; allowed: bc, return$"
        with pytest.raises(ValueError, match=message):
            train(config, selection, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(ValueError, match="flow steps must be 1 to 4, got 5"):
        FlowConfig(steps=5)
    for temperature in (-0.1, float("nan")):
        with pytest.raises(ValueError, match="flow temperature must be at least 0, got"):
            FlowConfig(temperature=temperature)
