"""The pure step: equal to the parallel form, and free of side effects and of drift."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.learners.control.step_modules import FCNetStep, PolicyStep
from gaitforge.learners.models.fcnet import FCNet, FCNetConfig
from tests.learners.control.exporting import LONG, RETURN_SCALE, small_policy
from tests.learners.making import NETWORKS, RETURN_KINDS

VARIANTS = [(kind, "obs") for kind in NETWORKS if kind not in RETURN_KINDS]
VARIANTS += [(kind, "return") for kind in NETWORKS if kind in ("fcnet", "bot", *RETURN_KINDS)]


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(("kind", "tokens"), VARIANTS)
def test_the_pure_step_equals_the_parallel_form(kind: str, tokens: str, batch: int) -> None:
    policy, _ = small_policy(kind, tokens)
    module = PolicyStep(policy, batch)
    obs, target = torch.randn(batch, LONG, 70), torch.rand(batch, LONG) * RETURN_SCALE
    state, actions = module.initial_state(), []
    with torch.no_grad():
        for t in range(LONG):
            before = [each.clone() for each in state]
            extra = (target[:, t],) if policy.conditioned else ()
            action, *following = module(obs[:, t], *extra, *state)
            assert all(torch.equal(a, b) for a, b in zip(before, state, strict=True))
            state = tuple(following)
            actions.append(action)
        expected = policy(obs, policy.share(target)[..., None])
    torch.testing.assert_close(torch.stack(actions, dim=1), expected, atol=1e-5, rtol=1e-5)
    assert module.input_names[0] == "observation"
    assert len(module.input_names) == 1 + policy.conditioned + len(state)
    assert module.output_names == ["action", *(f"next_{s.name}" for s in module.state_tensors)]


@settings(max_examples=25)
@given(st.data())
def test_fcnet_of_any_size_takes_the_same_step(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 12), "context_len")
    config = FCNetConfig(
        hidden_dim=data.draw(st.integers(1, 9), "hidden_dim"),
        decoder_dim=3,
        n_layers=data.draw(st.integers(1, 3), "n_layers"),
        n_modes=data.draw(st.integers(1, n // 2 + 1), "n_modes"),
        context_len=n,
    )
    batch = data.draw(st.integers(1, 3), "batch")
    network = FCNet(config, 5, 2).double()
    tokens = torch.randn(batch, 3 * n + 2, 5, dtype=torch.float64)
    with torch.no_grad():
        step = FCNetStep(network, batch)
        state = [each.initial.clone() for each in step.state_tensors]
        actions = []
        for token in tokens.unbind(1):
            action, *state = step(token, *state)
            actions.append(action)
        expected = network(tokens)
    torch.testing.assert_close(torch.stack(actions, dim=1), expected, atol=1e-9, rtol=1e-9)


def test_fcnets_modes_do_not_drift() -> None:
    config = FCNetConfig(4, 4, 1, 3, 8)
    step = FCNetStep(FCNet(config, 5, 2), 1)
    ring, window, slot = (each.initial for each in step.state_tensors)
    with torch.no_grad():
        for token in torch.randn(1000, 1, 5):
            _, ring, window, slot = step(token, ring, window, slot)
    expected = torch.zeros_like(window)
    for index, row in enumerate(ring.double()):
        if index != slot.item():
            expected += step.change[index, :, :1] * row
    torch.testing.assert_close(window, expected, atol=1e-12, rtol=0)


def test_no_robot_is_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1"):
        PolicyStep(small_policy("fcnet")[0], 0)
