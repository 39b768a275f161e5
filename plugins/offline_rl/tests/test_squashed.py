"""The squashed Gaussian's densities, and CQL's mean over all actions."""

import itertools
import math

import pytest
import torch

from gaitforge.plugins.offline_rl.cql import CQL, CQLSettings
from gaitforge.plugins.offline_rl.squashed import SquashedGaussian


def test_a_density_is_that_of_the_samples() -> None:
    torch.manual_seed(0)
    gaussian = SquashedGaussian((3, 8), act_dim=1)
    obs, mean = torch.randn(1, 3), torch.tensor([[0.4]])
    with torch.no_grad():
        actions, density = gaussian.sample(mean, obs, 200_000)
    actions, density = actions.flatten(), density.flatten()
    # The share of the samples in a bin is the density's mean there times the bin's width.
    edges = torch.linspace(-0.9, 0.9, 10)
    for low, high in itertools.pairwise(edges):
        inside = (actions > low) & (actions < high)
        if inside.float().mean() > 0.01:
            # Mean of 1 / density over the samples inside is the width over their share.
            width = (-density[inside]).exp().mean() * inside.float().mean()
            assert float(width) == pytest.approx(float(high - low), rel=0.03)


def test_the_values_of_all_actions_are_their_log_mean_exponent() -> None:
    torch.manual_seed(0)
    learner = CQL.__new__(CQL)
    torch.nn.Module.__init__(learner)
    learner.settings, learner._act_dim = CQLSettings(samples=20_000), 1
    learner.spread = SquashedGaussian((2, 8), act_dim=1)

    class Known(torch.nn.Module):
        """Q(s, a) = 2 a."""

        def forward(self, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
            return 2.0 * action.T

    object.__setattr__(learner, "q", Known())
    obs, mean = torch.randn(3, 2), torch.randn(3, 1)
    found = learner._others(obs, mean, mean, obs) - math.log(3 * 20_000)
    # log of the integral of exp(2 a) over -1 to 1.
    expected = math.log((math.exp(2.0) - math.exp(-2.0)) / 2.0)
    torch.testing.assert_close(found, torch.full_like(found, expected), atol=0.05, rtol=0.0)
