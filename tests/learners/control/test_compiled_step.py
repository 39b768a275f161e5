"""The control steps that run, compiled and exported, against torch's."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.legged.environment import LeggedEnvironment
from gaitforge.collectors.legged.rollout import EvaluationGrid, run_episodes
from gaitforge.learners.control.control import (
    CompiledStep,
    LearnedPolicy,
    TorchStep,
    compiled_step,
    fastest_step,
)
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.export import onnx_step, to_onnx, trace
from gaitforge.learners.models.bodies import BODIES, SPACES, Space
from gaitforge.learners.models.bot import MASKINGS
from gaitforge.learners.models.registry import PRESETS, build_network, preset
from gaitforge.learners.policy_network import Normaliser, PolicyNetwork
from gaitforge.learners.tokens import TokenLayout
from tests.learners.making import KIND_SETTINGS, NETWORKS, SMALL, make_policy

LARGE = 3_000_000  # presets with more parameters take too long here, and run in torch
COMPILED = ("fcnet", "bot", "body-mlp", "history-mlp", "mlp", "transformer", "dt")
WITH_CACHE = ("transformer", "transformer-published", "dt")
PICKED = [(name, 1) for name, each in PRESETS.items() if (each.parameters or 0) < LARGE]
PICKED += [(name, 5) for name in ("fcnet", "bot")]


def random_policy(name: str, overrides: dict[str, Any], space: Space | None = None) -> Any:
    """A policy whose weights, biases and normalisers are all uneven."""
    space = space or SPACES[PRESETS[name].space]
    rng = np.random.default_rng(0)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        network = build_network(preset(name, overrides), space.layout, space.act_dim)
        for parameter in network.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    obs, action = (
        Normaliser(rng.normal(size=size), rng.uniform(0.5, 2.0, size))
        for size in (space.layout.obs_dim, space.act_dim)
    )
    return PolicyNetwork(network, space.layout, obs, action, 20.0, return_zero=-3.0).eval()


def assert_equals_torch(step: Any, policy: PolicyNetwork, robots: int, steps: int) -> None:
    """Both act on random observations; some robots are reset now and then."""
    rng, expected = np.random.default_rng(1), TorchStep(policy, robots)
    for t in range(steps):
        if t % 23 == 11:
            ids = rng.choice(robots, max(1, robots // 2), replace=False)
            step.reset(ids)
            expected.reset(ids)
        obs = rng.standard_normal((robots, policy.layout.obs_dim), dtype=np.float32)
        target = rng.uniform(0, 2, (robots, 1)).astype(np.float32) if policy.conditioned else None
        wanted = expected.step(obs, target)
        got = step.step(obs, target)
        assert got.dtype == np.float32
        scale = np.maximum(1.0, np.abs(wanted))
        np.testing.assert_allclose(got / scale, wanted / scale, atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "robots"), PICKED)
def test_the_step_that_is_picked_equals_torchs(name: str, robots: int) -> None:
    policy = random_policy(name, {})
    step = fastest_step(policy, robots)
    assert_equals_torch(step, policy, robots, 80)
    assert isinstance(step, CompiledStep) == (PRESETS[name].kind in COMPILED)


@pytest.mark.parametrize("kind", NETWORKS)
def test_every_compiled_step_equals_torchs_beyond_the_context(kind: str) -> None:
    """A state of return tokens, several robots, and episodes that start at different times."""
    policy = random_policy(kind, KIND_SETTINGS[kind], SPACES["legged-return"])
    step = compiled_step(policy, 3)
    assert (step is None) == (PRESETS[kind].kind not in COMPILED)
    if step is not None:
        assert_equals_torch(step, policy, 3, 40)


@given(
    st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    st.sampled_from(WITH_CACHE),
    st.integers(1, 3),
)
@settings(max_examples=15, deadline=None)
def test_attention_of_any_size_is_compiled(
    sizes: tuple[int, int, int, int], kind: str, robots: int
) -> None:
    layers, heads, half, context = sizes
    width = half if kind == "transformer-published" else 2 * half  # without rotation any width
    chosen = {"hidden_dim": heads * width, "n_heads": heads, "n_layers": layers}
    policy = random_policy(kind, {**chosen, "context_len": context}, SPACES["legged-return"])
    step = compiled_step(policy, robots)
    assert_equals_torch(step, policy, robots, 3 * context + 2)


@pytest.mark.parametrize("name", ["bot", "mlp"])
def test_a_filtered_action_lies_between_the_last_one_and_the_networks(name: str) -> None:
    space = SPACES[PRESETS[name].space]
    plain = random_policy(name, SMALL.get(name, {}), space)
    filtered = copy.deepcopy(plain).filtered(0.3)
    obs = torch.randn(4, plain.layout.obs_dim, generator=torch.Generator().manual_seed(2))
    last = obs[:, slice(*plain.layout.obs_slices["last_action"])]
    action, _ = plain.step(obs, plain.init_state(4))
    smooth, _ = filtered.step(obs, filtered.init_state(4))
    torch.testing.assert_close(smooth, 0.7 * last + 0.3 * action)
    compiled = compiled_step(filtered, 4)
    assert compiled is not None
    np.testing.assert_allclose(compiled.step(obs.numpy(), None), smooth.detach(), atol=1e-5)
    module = PolicyStep(filtered, 4)
    exported, *_ = module(obs, *module.initial_state())
    torch.testing.assert_close(exported, smooth)


@pytest.mark.parametrize("masking", MASKINGS)
@pytest.mark.parametrize("history", [1, 3])
def test_every_body_transformer_equals_torchs(masking: str, history: int) -> None:
    """On a body whose data have a field that is not the body's, with positions."""
    body = BODIES["adroit-door"]
    width = sum(map(len, body.fields.values()))
    layout = TokenLayout("obs", {"unknown": (0, 4), **shifted(body.slices, 4)})
    chosen = {"body": "adroit-door", "masking": masking, "history": history}
    chosen |= SMALL["bot"] | {"n_layers": 3, "n_heads": 2, "positional_embedding": True}
    chosen |= {"shared_tokenizer": history == 3}
    policy = random_policy("bot", chosen, Space(layout, body.act_dim))
    assert policy.layout.obs_dim == width + 4
    step = compiled_step(policy, 3)
    assert step is not None
    assert_equals_torch(step, policy, 3, 40)


def shifted(slices: Any, by: int) -> dict[str, tuple[int, int]]:
    return {name: (start + by, stop + by) for name, (start, stop) in slices.items()}


def test_robots_are_stepped_in_threads() -> None:
    policy, threads = make_policy(), torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        step = fastest_step(policy, 200)
        assert isinstance(step, CompiledStep)
        assert_equals_torch(step, policy, 200, 20)
    finally:
        torch.set_num_threads(threads)


def test_many_robots_and_other_precisions_run_in_torch() -> None:
    assert isinstance(fastest_step(make_policy("bot"), 240), TorchStep)
    assert isinstance(fastest_step(make_policy().double(), 1), TorchStep)


def test_later_training_does_not_change_a_compiled_policy() -> None:
    policy = make_policy()
    compiled, twin = fastest_step(policy, 1), fastest_step(policy, 1)
    obs = np.random.default_rng(0).standard_normal((3, 1, 70), dtype=np.float32)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(1.0)
    for each in obs:
        np.testing.assert_array_equal(compiled.step(each, None), twin.step(each, None))


@pytest.mark.parametrize("model", ["fcnet", "bot", "transformer", "transformer-published"])
@pytest.mark.parametrize("value", [1e-3, 1.0, 30.0])
def test_activations_are_exact_at_every_size(model: str, value: float) -> None:
    policy = make_policy(model, settings=KIND_SETTINGS[model])
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(value)
    compiled, expected = fastest_step(policy, 1), TorchStep(policy, 1)
    for each in np.random.default_rng(0).standard_normal((4, 1, 70), dtype=np.float32):
        wanted = expected.step(each, None)
        got, most = compiled.step(each, None), np.abs(wanted).max()
        np.testing.assert_allclose(got, wanted, atol=1e-5 * most, rtol=1e-5)


@pytest.mark.parametrize("model", ["fcnet", "bot", "transformer", "transformer-published"])
def test_a_nan_in_the_observation_is_not_hidden_and_a_reset_cures_it(model: str) -> None:
    compiled = fastest_step(make_policy(model, settings=KIND_SETTINGS[model]), 2)
    obs = np.random.default_rng(0).standard_normal((2, 70), dtype=np.float32)
    spoiled = obs.copy()
    spoiled[0, 5] = np.nan
    spoilt = np.isnan(compiled.step(spoiled, None)).any(axis=1)
    np.testing.assert_array_equal(spoilt, [True, False])
    compiled.reset(np.array([0]))
    assert np.isfinite(compiled.step(obs, None)).all()


def test_actions_are_the_callers_own() -> None:
    policy = LearnedPolicy(make_policy(), 1)
    seen: Any = type("Seen", (), {"policy": np.ones((1, 70), np.float32), "reward": np.zeros(1)})
    first = policy.act(seen)
    kept = first.copy()
    policy.act(seen)
    np.testing.assert_array_equal(first, kept)


@pytest.mark.slow
def test_every_step_is_exact_over_two_thousand_recorded_steps() -> None:
    """FCNet of the demo's size against the float64 parallel form, one stream without a reset."""
    expert = load_expert().policy
    env = LeggedEnvironment(expert.robot, 18, 1, "mujoco")
    try:
        grid = EvaluationGrid(("flat", "rough"), ("run", "stand", "tilt"), episodes=3)
        results = list(run_episodes(env, expert, grid.specs(), record=True))
    finally:
        env.close()
    recorded = [result.record for result in results if result.record is not None]
    obs = np.concatenate([each.obs for each in recorded])[:2_000, None]
    assert len(obs) == 2_000
    policy = random_policy("fcnet", {})
    policy.obs_normaliser = Normaliser(obs[:, 0].mean(axis=0), obs[:, 0].std(axis=0))
    with torch.inference_mode():
        stream = torch.from_numpy(obs[None, :, 0]).double()
        wanted = copy.deepcopy(policy).double()(stream)[0].numpy()

    module = PolicyStep(policy)
    exported = onnx_step(to_onnx(trace(module), module, {}), module)
    state: list[Any] = [each.numpy() for each in module.initial_state()]
    actions = {}
    for name, step in ("torch", TorchStep(policy, 1)), ("compiled", fastest_step(policy, 1)):
        actions[name] = np.concatenate([step.step(each, None) for each in obs])
    actions["onnx"] = np.empty_like(actions["torch"])
    for t, each in enumerate(obs):
        actions["onnx"][t : t + 1], *state = exported([each, *state])
    scale = np.maximum(1.0, np.abs(wanted))
    errors = {name: np.abs(action - wanted) / scale for name, action in actions.items()}
    errors["onnx beside torch"] = np.abs(actions["onnx"] - actions["torch"]) / scale
    bounds = {"torch": 1.6e-6, "compiled": 1.6e-6, "onnx": 3e-6, "onnx beside torch": 3e-6}
    worst = {name: float(errors[name].max()) for name in bounds}
    assert all(worst[name] < bound for name, bound in bounds.items()), worst
