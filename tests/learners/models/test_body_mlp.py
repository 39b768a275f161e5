"""The body MLP: the same in training and in control, and what its nodes see."""

from __future__ import annotations

import pytest
import torch

from gaitforge.learners.models.bot.body_mlp import BodyMLP, BodyMLPConfig
from gaitforge.learners.models.registry import count_parameters
from gaitforge.learners.policy.tokens import TokenLayout
from tests.learners.making import OBS_SLICES


def small(history: int = 1) -> BodyMLP:
    torch.manual_seed(0)
    config = BodyMLPConfig(embed_dim=4, feedforward_dim=16, history=history)
    return config.build(TokenLayout("obs", OBS_SLICES), act_dim=12)


def test_size_is_that_of_its_maps() -> None:
    ends = 70 * 4 + 13 * 4 + (13 * 4 + 1) * 12
    hidden = (13 * 4 + 1) * 16 + (16 + 1) * 16 + (16 + 1) * 13 * 4
    assert count_parameters(small()) == ends + hidden


def test_every_action_depends_on_every_observation() -> None:
    net = small().double()
    token = torch.randn(1, 70, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(net, token[None])
    assert isinstance(jacobian, torch.Tensor)
    assert (jacobian[0, 0, :, 0, 0] != 0).all()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="no body 'snake'"):
        BodyMLPConfig(body="snake")
