"""Tokens, normalisation and the objective."""

import numpy as np
import pytest
import torch

from gaitforge.learners.policy_network import Normaliser
from gaitforge.learners.tokens import TokenLayout
from tests.learners.making import OBS_SLICES, make_policy


def test_return_token_is_last_action_return_and_the_rest() -> None:
    policy = make_policy(tokens="return", return_scale=20.0)
    obs, remaining = torch.randn(2, 5, 70), torch.full((2, 5), 10.0)
    token = policy.tokens(obs, policy.share(remaining)[..., None])
    normalised = policy.obs_normaliser.normalise(obs)
    assert token.shape == (2, 5, 71)
    torch.testing.assert_close(token[..., :12], normalised[..., 42:54])
    torch.testing.assert_close(token[..., 12], torch.full((2, 5), 0.5))
    torch.testing.assert_close(token[..., 13:55], normalised[..., :42])
    torch.testing.assert_close(token[..., 55:], normalised[..., 54:])


def test_return_token_slices_name_what_is_there() -> None:
    layout = TokenLayout("return", OBS_SLICES)
    policy = make_policy(tokens="return")
    obs = torch.randn(70)
    token = policy.tokens(obs, torch.tensor([3.0]))
    normalised = policy.obs_normaliser.normalise(obs)
    for name, (start, stop) in layout.slices.items():
        if name == "condition":
            assert token[start:stop].tolist() == [3.0]
        else:
            torch.testing.assert_close(token[start:stop], normalised[slice(*OBS_SLICES[name])])
    assert max(stop for _, stop in layout.slices.values()) == layout.dim == 71


def test_normaliser_inverts_itself_and_spares_constant_channels() -> None:
    normaliser = Normaliser(np.array([1.0, -2.0, 3.0]), np.array([2.0, 0.0, 0.5]))
    x = torch.randn(4, 3)
    torch.testing.assert_close(normaliser.restore(normaliser.normalise(x)), x)
    assert normaliser.normalise(torch.tensor([5.0, -2.0, 3.0])).tolist() == [2.0, 0.0, 0.0]


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match=r"channels \[1\] is not finite"):
        Normaliser(np.array([0.0, np.nan]), np.ones(2))
    with pytest.raises(ValueError, match="give the condition"):
        make_policy(tokens="return")(torch.zeros(1, 2, 70))
    for slices in ({"a": (0, 3), "b": (4, 6)}, {"a": (0, 3), "b": (2, 6)}):
        with pytest.raises(ValueError, match="gaps or overlaps"):
            TokenLayout("obs", slices)
    with pytest.raises(ValueError, match="no named slices"):
        TokenLayout("obs", {})
    with pytest.raises(ValueError, match="allowed: obs, return"):
        TokenLayout("pixels", OBS_SLICES)


@pytest.mark.parametrize(("model", "tokens"), [("fcnet", "return"), ("bot", "obs")])
def test_steps_equal_forward_in_physical_units(model: str, tokens: str) -> None:
    policy = make_policy(model, tokens)
    obs, remaining = torch.randn(2, 20, 70), torch.rand(2, 20, 1)
    returns = remaining if policy.conditioned else None
    with torch.no_grad():
        parallel = policy(obs, returns)
        state = policy.init_state(2)
        for t in range(20):
            step_return = None if returns is None else returns[:, t]
            action, state = policy.step(obs[:, t], state, step_return)
            torch.testing.assert_close(action, parallel[:, t], atol=2e-5, rtol=1e-4)
