"""Proximal policy optimisation: what it computes, what it learns, and that it can go on."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recipes.adroit.ppo import (
    PPO,
    PPOConfig,
    Rollout,
    generalised_advantages,
    symlog,
    value_scale,
)

SMALL = PPOConfig(hidden=16, episodes=8, batch_size=32, imitation_batch_size=16, learning_rate=1e-3)

NOISE = 0.3


def make_ppo(config: PPOConfig = SMALL, scale: float = 1.0) -> PPO:
    return PPO(config, 2, torch.tensor([NOISE]), scale, seed=0)


def play(ppo: PPO, generator: torch.Generator, wanted: float, steps: int = 8) -> Rollout:
    """Rewards are high near one action, wherever the actor is."""
    obs = torch.randn((steps + 1, 8, 2), generator=generator)
    with torch.no_grad():
        mean, log_std = ppo.actor(obs[:-1])
    action = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
    return Rollout(obs, action, -(action.squeeze(-1) - wanted).square())


def mean_action(ppo: PPO) -> float:
    """Before tanh."""
    with torch.no_grad():
        return ppo.actor(torch.randn((64, 2), generator=torch.Generator().manual_seed(9)))[0].mean()


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 1000),
    steps=st.integers(1, 7),
    gamma=st.floats(0.0, 0.99),
    gae_lambda=st.floats(0.0, 1.0),
)
def test_advantages_are_the_weighted_sum_of_all_that_follows(
    seed: int, steps: int, gamma: float, gae_lambda: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    reward = torch.randn((steps, 2), generator=generator, dtype=torch.float64)
    values = torch.randn((steps + 1, 2), generator=generator, dtype=torch.float64)
    found = generalised_advantages(reward, values, gamma, gae_lambda)
    for now in range(steps):
        wanted = sum(
            (gamma * gae_lambda) ** (step - now)
            * (reward[step] + gamma * values[step + 1] - values[step])
            for step in range(now, steps)
        )
        torch.testing.assert_close(found[now], wanted)


@given(reward=st.floats(-1e6, 1e6))
def test_symlog_keeps_order_and_sign_and_is_the_identity_near_nothing(reward: float) -> None:
    there = torch.tensor([reward, reward + 1.0 + 0.01 * abs(reward)], dtype=torch.float64)
    found = symlog(there)
    assert found[0] < found[1]
    torch.testing.assert_close(found.sign() * (found.abs().exp() - 1.0), there)
    small = 1e-6 * there.sign()
    torch.testing.assert_close(symlog(small), small)


def test_values_are_learned_in_units_of_their_size() -> None:
    reward = torch.zeros((3, 2))
    assert 0 < value_scale(reward, 0.9) < 0.01
    reward[2, 0] = math.exp(2.0) - 1.0
    sums = 2.0 * torch.tensor([[0.81, 0.0], [0.9, 0.0], [1.0, 0.0]])
    assert value_scale(reward, 0.9) == pytest.approx(sums.std().item())
    alone = replace(SMALL, learning_rate=1e-9)
    met = play(make_ppo(alone), torch.Generator().manual_seed(0), wanted=0.5)
    learned = []
    for scale in (1.0, 3.0):
        ppo = make_ppo(alone, scale)
        rewards = (1.0 + met.reward.abs()) ** scale - 1.0  # of a symlog so many times as large
        ppo.update(replace(met, reward=rewards), torch.Generator().manual_seed(1))
        learned.append(ppo.state_dict())
    for name, value in learned[0].items():
        if name.startswith("values."):
            torch.testing.assert_close(learned[1][name], value, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
def test_what_was_rewarded_becomes_likely() -> None:
    ppo, generator = make_ppo(), torch.Generator().manual_seed(0)
    before = mean_action(ppo)
    for _ in range(60):
        ppo.update(play(ppo, generator, wanted=0.8), generator)
    assert abs(before - 0.8) > 0.5
    assert mean_action(ppo) == pytest.approx(0.8, abs=0.15)


def test_a_round_moves_the_policy_no_farther_than_is_allowed() -> None:
    moved = []
    for target_kl in (0.001, 100.0):
        ppo = make_ppo(replace(SMALL, target_kl=target_kl))
        generator, before = torch.Generator().manual_seed(0), mean_action(ppo)
        ppo.update(play(ppo, generator, wanted=3.0), generator)
        moved.append(abs(mean_action(ppo) - before))
    assert 0 < moved[0] < 0.5 * moved[1]


def test_values_may_learn_alone() -> None:
    ppo, generator = make_ppo(), torch.Generator().manual_seed(0)
    before = {name: value.clone() for name, value in ppo.state_dict().items()}
    ppo.update(play(ppo, generator, wanted=0.5), generator, actor=False)
    for name, value in before.items():
        assert torch.equal(ppo.state_dict()[name], value) == name.startswith("actor."), name


def test_the_actor_comes_to_imitate() -> None:
    ppo, generator = (
        make_ppo(replace(SMALL, imitation_learning_rate=3e-3)),
        torch.Generator().manual_seed(0),
    )
    obs = torch.randn((64, 2), generator=generator)
    action = torch.where(obs[:, :1] > 0, 0.6, -0.3)
    for _ in range(400):
        ppo.imitate(obs, action, generator)
    with torch.no_grad():
        mean, log_std = ppo.actor(obs)
    assert (mean.tanh() - action).abs().mean().item() < 0.15
    assert log_std.exp().mean().item() == pytest.approx(NOISE), "imitation leaves it as it is"
