"""Observations in units of their spread, and policies that do without."""

import pytest
import torch

from gaitforge.plugins.gym.training.sac import Actor
from recipes.adroit.observation_scale import ObservationScale


def test_a_scale_goes_into_the_first_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn((50, 3), generator=generator) * torch.tensor([2.0, 0.5, 0.0]) + 4.0
    scale = ObservationScale.of(obs.numpy())
    torch.testing.assert_close(scale(obs).mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert scale(obs).std(0).tolist() == pytest.approx([1.0, 1.0, 0.0], abs=0.04)
    actor, plain = Actor(3, 2, 8), Actor(3, 2, 8)
    plain.load_state_dict(scale.weights_for_unscaled(actor))
    with torch.no_grad():
        for mine, its in zip(actor(scale(obs)), plain(obs), strict=True):
            torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)
