"""The compiled control step against the network it was made from."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learners.deploy.compiled_fcnet import CompiledFCNet
from learners.policy.policy_network import PolicyNetwork
from tests.learners.making import make_policy

CONTEXT_LEN = 8
STEPS = 3 * CONTEXT_LEN + 5


def observations(steps: int = STEPS, seed: int = 0) -> torch.Tensor:
    return torch.randn(steps, 70, generator=torch.Generator().manual_seed(seed))


def stepped(
    policy: PolicyNetwork, obs: torch.Tensor, returns: torch.Tensor | None = None
) -> np.ndarray:
    state, actions = policy.init_state(1), []
    with torch.no_grad():
        for t in range(len(obs)):
            remaining = None if returns is None else returns[t : t + 1]
            action, state = policy.step(obs[t : t + 1], state, remaining)
            actions.append(action[0])
    return torch.stack(actions).numpy()


def test_compiled_steps_equal_the_networks_beyond_the_context() -> None:
    policy, obs = make_policy(), observations()
    compiled = CompiledFCNet(policy)
    actions = np.stack([compiled.step(each) for each in obs.numpy()])
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, stepped(policy, obs), atol=1e-5, rtol=1e-5)
    with torch.no_grad():
        parallel = policy(obs[None])[0].numpy()
    np.testing.assert_allclose(actions, parallel, atol=1e-5, rtol=1e-5)


def test_return_to_go_is_part_of_the_token() -> None:
    policy, obs = make_policy(tokens="return", return_scale=20.0), observations()
    returns = torch.linspace(25.0, 1.0, STEPS)
    compiled = CompiledFCNet(policy)
    actions = np.stack(
        [
            compiled.step(each, remaining)
            for each, remaining in zip(obs.numpy(), returns.tolist(), strict=True)
        ]
    )
    np.testing.assert_allclose(actions, stepped(policy, obs, returns), atol=1e-5, rtol=1e-5)


def test_reset_starts_the_next_episode_from_nothing() -> None:
    compiled, obs = CompiledFCNet(make_policy()), observations().numpy()
    first = np.stack([compiled.step(each) for each in obs])
    compiled.reset()
    again = np.stack([compiled.step(each) for each in obs])
    np.testing.assert_array_equal(again, first)


def test_later_training_does_not_change_a_compiled_policy() -> None:
    policy, obs = make_policy(), observations(3).numpy()
    compiled, twin = CompiledFCNet(policy), CompiledFCNet(policy)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    for each in obs:
        np.testing.assert_array_equal(compiled.step(each), twin.step(each))


@pytest.mark.parametrize("value", [1e-3, 1.0, 30.0])
def test_the_activation_is_exact_at_every_size(value: float) -> None:
    policy = make_policy()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(value)
    obs = observations(4)
    compiled = CompiledFCNet(policy)
    actions = np.stack([compiled.step(each) for each in obs.numpy()])
    expected = stepped(policy, obs)
    np.testing.assert_allclose(actions, expected, atol=1e-5 * np.abs(expected).max(), rtol=1e-5)


def test_a_nan_in_the_observation_is_not_hidden() -> None:
    compiled, obs = CompiledFCNet(make_policy()), observations(1).numpy()[0]
    obs[5] = np.nan
    assert np.isnan(compiled.step(obs)).all()


def test_wrong_use_is_refused() -> None:
    with pytest.raises(ValueError, match="only a policy of kind FCNet"):
        CompiledFCNet(make_policy("bot"))
    with pytest.raises(ValueError, match=r"shape \(70,\), got \(1, 70\)"):
        CompiledFCNet(make_policy()).step(np.zeros((1, 70), np.float32))
    with pytest.raises(ValueError, match="give return_to_go"):
        CompiledFCNet(make_policy(tokens="return")).step(np.zeros(70, np.float32))
