"""RetNet and DT-RetNet: what is particular to them."""

from typing import Any

import pytest
import torch

from gaitforge.learners.models.bodies import SPACES
from gaitforge.learners.models.transformer import rotary_frequencies, rotation
from gaitforge.plugins.baselines import retnet
from gaitforge.plugins.baselines.retnet import (
    DTRetNetConfig,
    RetentionLayer,
    RetNetConfig,
    chunk_decay,
)
from tests.learners.models.test_baselines import (
    assert_embedded_apart,
    assert_only_lags_matter,
    assert_refused,
    reach,
)

OBS, RETURN = SPACES["legged"].layout, SPACES["legged-return"].layout
STEPS = 15
CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("network", "width"),
    [
        (RetNetConfig(8, 2, 2).build(OBS, 12), OBS.dim),
        (DTRetNetConfig(8, 2, 2).build(RETURN, 12), RETURN.dim),
    ],
    ids=["retnet", "dt-retnet"],
)
def test_control_after_ten_million_steps_is_as_at_first(network: Any, width: int) -> None:
    assert_only_lags_matter(network, width, STEPS)


def test_what_they_cannot_be_is_refused() -> None:
    assert_refused(RetNetConfig, DTRetNetConfig)


def test_action_return_and_state_are_embedded_apart() -> None:
    assert_embedded_apart(DTRetNetConfig(8, 2, 1).build(RETURN, 12))


def test_retention_is_the_decayed_sum_it_is_defined_as() -> None:
    """o_t = sum over s <= t of decay^(t-s) Re[q_t e^(i theta (t-s)) . conj(k_s)] v_s."""
    heads, width, length = 2, 4, 7
    layer = RetentionLayer(heads * width, heads).double()
    x = torch.randn(1, length, heads * width, dtype=torch.float64)
    frequencies = rotary_frequencies(width, CPU)
    turn = rotation(torch.arange(length), frequencies, torch.float64)
    query_key = layer.query_key(layer.retention_norm(x)).view(length, 2, heads, width)
    value, gate = layer.value_gate(layer.retention_norm(x))[0].chunk(2, dim=-1)
    pairs = torch.complex(query_key[..., : width // 2], query_key[..., width // 2 :])
    theta = 10_000.0 ** (-2.0 * torch.arange(width // 2, dtype=torch.float64) / width)
    out = torch.zeros(length, heads, 2 * width, dtype=torch.float64)
    for t in range(length):
        for s in range(t + 1):
            phase = torch.polar(torch.ones_like(theta), theta * (t - s))
            score = (pairs[t, 0] * phase * pairs[s, 1].conj()).sum(-1).real / width**0.5
            decay = 1 - 2.0 ** (-5 - torch.arange(heads, dtype=torch.float64))
            weight = decay ** (t - s) * score
            out[t] += weight[:, None] * value[s].view(heads, 2 * width)
    expected = layer._finish(x, out.transpose(0, 1)[None], gate[None])
    found, _ = layer(x, turn, chunk_decay(heads, length, x), None)
    torch.testing.assert_close(found, expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("chunk_len", [1, 4, 19, 20, 64])
def test_chunks_of_any_length(chunk_len: int, monkeypatch: pytest.MonkeyPatch) -> None:
    network = RetNetConfig(16, 2, 2).build(OBS, 12).double()
    tokens = torch.randn(2, 20, OBS.dim, dtype=torch.float64)
    whole = network(tokens)
    monkeypatch.setattr(retnet, "CHUNK_LEN", chunk_len)
    torch.testing.assert_close(network(tokens), whole, atol=1e-10, rtol=1e-10)


def test_retnet_sees_the_whole_episode() -> None:
    assert reach(RetNetConfig(8, 2, 1).build(OBS, 12), OBS.dim, 200) == 200
    assert reach(DTRetNetConfig(8, 2, 1).build(RETURN, 12), RETURN.dim, 200) == 200


def test_dt_retnet_has_the_layers_of_retnet_over_three_tokens_a_step() -> None:
    """With the same weights, its memory after 5 steps is that of 15 of RetNet's tokens."""
    network, plain = (c(8, 2, 2).trunk(k) for c, k in ((DTRetNetConfig, 3), (RetNetConfig, 1)))
    plain.load_state_dict(network.state_dict())
    tokens = torch.randn(2, 15, 8)
    steps, singly = network.init_state(2), plain.init_state(2)
    by_step = [network.step(each, steps) for each in tokens.split(3, dim=1)]
    by_token = [plain.step(each, singly) for each in tokens.split(1, dim=1)]
    torch.testing.assert_close(torch.cat(by_step, 1), torch.cat(by_token, 1))
    torch.testing.assert_close(steps.memories, singly.memories)
    assert steps.clock == singly.clock == 15
