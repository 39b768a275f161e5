"""GRU and LSTM: what is particular to them."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gaitforge.learners.models.bodies import SPACES
from gaitforge.plugins.baselines.recurrent import GRUConfig, LSTMConfig
from tests.learners.models.test_baselines import reach

OBS = SPACES["legged"].layout


@pytest.mark.parametrize("config", [GRUConfig(8, 2), LSTMConfig(8, 2)])
def test_they_see_the_whole_episode(config: Any) -> None:
    """But what is 50 steps old hardly counts: the gates of new weights forget it."""
    assert config.receptive_field is None
    assert reach(config.build(OBS, 12), OBS.dim, 50) == 50


@pytest.mark.parametrize("config", [GRUConfig(8, 2), LSTMConfig(8, 2)])
def test_they_can_be_trained_in_bf16(config: Any) -> None:
    """As `precision=bf16`; the recurrence is computed in float32 still."""
    network = config.build(OBS, 12)
    tokens = torch.randn(2, 9, OBS.dim)
    with torch.autocast("cpu", torch.bfloat16):
        actions = network(tokens)
    actions.float().sum().backward()
    assert actions.dtype == torch.bfloat16
    torch.testing.assert_close(actions.float(), network(tokens), atol=5e-3, rtol=2e-2)


def gates(weights: Any, layer: str, x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """What the input and what the hidden state give to the gates, (3 or 4) x d each."""
    return (
        getattr(weights, f"weight_ih_{layer}") @ x + getattr(weights, f"bias_ih_{layer}"),
        getattr(weights, f"weight_hh_{layer}") @ hidden + getattr(weights, f"bias_hh_{layer}"),
    )


def test_a_gru_is_what_it_is_defined_as() -> None:
    """h = (1 - z) n + z h with n = tanh(W x + r (U h)), gates r and z."""
    network = GRUConfig(5, 2).build(OBS, 12).double()
    tokens = torch.randn(7, OBS.dim, dtype=torch.float64)
    hidden = torch.zeros(2, 5, dtype=torch.float64)
    expected = []
    for token in tokens:
        x = token
        for layer in range(2):
            new, old = gates(network.layers, f"l{layer}", x, hidden[layer])
            (r, z), candidate = (new[:10] + old[:10]).sigmoid().split(5), new[10:]
            x = (1 - z) * torch.tanh(candidate + r * old[10:]) + z * hidden[layer]
            hidden = torch.stack([x, hidden[1]] if layer == 0 else [hidden[0], x])
        expected.append(network.decoder(x))
    torch.testing.assert_close(network(tokens[None])[0], torch.stack(expected))


def test_an_lstm_is_what_it_is_defined_as() -> None:
    """c = f c + i g and h = o tanh(c), gates i, f and o."""
    network = LSTMConfig(5, 1).build(OBS, 12).double()
    tokens = torch.randn(7, OBS.dim, dtype=torch.float64)
    hidden = cell = torch.zeros(5, dtype=torch.float64)
    expected = []
    for token in tokens:
        new, old = gates(network.layers, "l0", token, hidden)
        i, f, g, o = (new + old).split(5)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        hidden = o.sigmoid() * cell.tanh()
        expected.append(network.decoder(hidden))
    torch.testing.assert_close(network(tokens[None])[0], torch.stack(expected))
