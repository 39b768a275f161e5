"""Objectives: equal to their definitions, and never touched by padding."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.distributions import Normal, kl_divergence

from gaitforge.common.networks import gaussian_kl, gaussian_nll
from gaitforge.learners.checkpoint import load_policy, policy_card, save_checkpoint
from gaitforge.learners.models.registry import preset
from gaitforge.learners.policy_network import GaussianSpread
from gaitforge.learners.training.objectives import (
    OBJECTIVES,
    masked_sum,
    objective_fields,
    squared_error,
    summed_loss,
)
from gaitforge.learners.training.train import NonFiniteError, train
from tests.learners.making import SHORT, SMALL, make_policy, make_selection

CONFIG = replace(SHORT, objective="gaussian-bc", steps=60, peak_lr=0.02, validation_every=20)
MASK = torch.tensor([[1] * 6, [1] * 2 + [0] * 4, [1] * 3 + [0] * 3], dtype=torch.bool)


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@given(seed=st.integers(0, 2**32), scale=st.floats(0.1, 5.0))
@settings(max_examples=30, deadline=None)
def test_gaussian_losses_equal_torchs_distributions(seed: int, scale: float) -> None:
    mean, action = normal(seed, 2, 3, 4) * scale, normal(seed + 1, 2, 3, 4)
    log_std, expert_std = normal(seed + 2, 4), normal(seed + 3, 2, 3, 4).exp()
    policy = Normal(mean, log_std.exp())
    torch.testing.assert_close(
        gaussian_nll(mean, log_std, action), -policy.log_prob(action).sum(-1)
    )
    expected = kl_divergence(Normal(action, expert_std), policy).sum(-1)
    torch.testing.assert_close(gaussian_kl(action, expert_std, mean, log_std), expected)


def batch(seed: int, *expert: str) -> dict[str, Tensor]:
    made = {name: normal(seed, 3, 6, 12).float().abs() + 0.1 for name in ("action", *expert)}
    return made | {"obs": normal(seed + 1, 3, 6, 70).float(), "mask": MASK}


@pytest.mark.parametrize("expert", [(), ("action_mean", "action_std")], ids=["nll", "kl"])
@pytest.mark.parametrize("gaussian", [False, True], ids=["bc", "gaussian"])
def test_padding_changes_neither_loss_nor_gradient(gaussian: bool, expert: tuple[str, ...]) -> None:
    policy = make_policy(gaussian=GaussianSpread(12) if gaussian else None)
    expert = expert if gaussian else ()
    clean, spoiled = batch(1, *expert), batch(1, *expert)
    for name in ("action", *expert):
        spoiled[name][~MASK] = 0.0 if name == "action_std" else 1e6
    results = []
    for each in (clean, spoiled):
        policy.zero_grad()
        loss = summed_loss(policy, each)
        loss.backward()
        results.append(
            [loss.detach(), *(p.grad.clone() for p in policy.parameters() if p.grad is not None)]
        )
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)
    assert all(value.isfinite().all() for value in results[1])


def test_a_deterministic_loss_is_the_squared_error_of_normalised_actions() -> None:
    policy, each = make_policy(), batch(2)
    target = policy.action_normaliser.normalise(each["action"])
    error = squared_error(policy.predict_normalised(each["obs"]), target)
    expected = error[MASK].sum()
    torch.testing.assert_close(summed_loss(policy, each), expected)
    torch.testing.assert_close(masked_sum(error, MASK), expected)


def test_the_learned_spread_starts_at_one_and_has_a_floor() -> None:
    spread = GaussianSpread(3)
    torch.testing.assert_close(spread.log_std(), torch.zeros(3))
    with torch.no_grad():
        spread.unbounded.fill_(-100.0)
    torch.testing.assert_close(spread.log_std().exp(), torch.full((3,), 0.01))


def test_a_fixed_spread_stays_and_has_nothing_to_learn() -> None:
    spread = GaussianSpread(3, fixed_std=0.1)
    torch.testing.assert_close(spread.log_std().exp(), torch.full((3,), 0.1))
    assert not list(spread.parameters())
    for wrong in (0.0, -1.0, float("nan")):
        with pytest.raises(ValueError, match="fixed_std must be above 0"):
            GaussianSpread(3, fixed_std=wrong)


@pytest.mark.parametrize("fixed_std", [None, 0.1])
def test_the_spread_is_part_of_the_checkpoint(fixed_std: float | None, tmp_path: Path) -> None:
    policy = make_policy(gaussian=GaussianSpread(12, fixed_std))
    with torch.no_grad():
        for value in policy.gaussian.parameters() if policy.gaussian else ():
            value.add_(torch.linspace(-1, 1, 12))
    card = policy_card(policy, preset("fcnet", SMALL["fcnet"]))
    save_checkpoint(tmp_path, policy, None, card)
    loaded = load_policy(tmp_path)
    assert torch.equal(loaded.action_std(), policy.action_std())
    assert policy_card(loaded, preset("fcnet", SMALL["fcnet"])) == card


def test_gaussian_cloning_learns_how_far_the_data_spread(tmp_path: Path) -> None:
    selection = make_selection(tmp_path / "walks.zarr")
    result = train(CONFIG, selection, tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    assert result.validation_loss is not None
    # Nats of the best Gaussian that ignores the observation, in normalised actions.
    assert result.validation_loss < 12 * 1.419
    assert (policy.log_std < -0.05).all()
    assert (policy.log_std > -3).all()


def test_a_stored_expert_distribution_is_matched(tmp_path: Path) -> None:
    selection = make_selection(tmp_path / "walks.zarr", expert_std=0.4)
    assert objective_fields(OBJECTIVES["gaussian-bc"], selection.store.schema, executed=False) == (
        "obs",
        "action_mean",
        "action_std",
    )
    assert objective_fields(OBJECTIVES["bc"], selection.store.schema, executed=False) == (
        "obs",
        "action",
    )
    result = train(CONFIG, selection, tmp_path / "run")
    untrained = train(replace(CONFIG, steps=1), selection, tmp_path / "start")
    assert 0 <= result.loss < 0.5 * untrained.loss


def test_an_expert_without_spread_is_named(tmp_path: Path) -> None:
    selection = make_selection(tmp_path / "walks.zarr", expert_std=0.0)
    with pytest.raises(NonFiniteError, match="action_std of the data holds numbers that are not"):
        train(CONFIG, selection, tmp_path / "run")
