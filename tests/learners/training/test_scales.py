"""Channels that hardly ever change: inputs stay bounded, everywhere alike, and are named."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from gaitforge.datasets import Field, Schema, Selection, Store
from gaitforge.learners.checkpoint import CHECKPOINT, load_policy
from gaitforge.learners.control.control import compiled_step
from gaitforge.learners.control.step_modules import PolicyStep
from gaitforge.learners.export.export import onnx_step, pt2_step, to_onnx, to_pt2, trace
from gaitforge.learners.policy_network import LEAST, MOST, PolicyNetwork
from gaitforge.learners.training import building
from gaitforge.learners.training.train import train
from tests.datasets.making import part_input
from tests.learners.making import OF_VALUES, SHORT, SMALL, make_selection

EPISODES, STEPS = 40, 250
RARE, ROUNDING = 1, 2
"""Channels: 0 but in three steps of all; 3.14 with a deviation of rounding."""
AWKWARD = {
    "usual": (0.5, 0.0, 3.14, 0.0),
    "pressed": (0.5, 1.0, 3.14, 0.0),
    "unplugged": (0.5, 0.0, 0.0, 0.0),
    "constant no more": (0.5, 0.0, 3.14, -1e6),
    "far": (1e30, -1e30, 1e30, 1e30),
}


@pytest.fixture(scope="module")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    rng, rows = np.random.default_rng(0), EPISODES * STEPS
    waves = np.sin(0.05 * np.arange(rows))
    obs = np.stack([waves, 0 * waves, 3.14 + rng.normal(0, 3e-5, rows), 0 * waves], 1)
    obs[rng.choice(rows, 3, replace=False), RARE] = 1.0
    obs = obs.astype(np.float32)
    slices = {"wave": (0, 1), "bumper": (1, 2), "mast": (2, 3), "spare": (3, 4)}
    action = np.repeat(0.8 * obs[:, :1], 2, axis=1)
    action[:, 1] = 0.1
    fields = (Field("obs", (4,), slices=slices), Field("action", (2,)), Field("reward"))
    store = Store.create(tmp_path_factory.mktemp("scales") / "s.zarr", Schema(fields, 0.02, "box"))
    steps = {"obs": obs, "action": action, "reward": np.ones(rows, np.float32)}
    store.write_part("p", steps, part_input([STEPS] * EPISODES)["episodes"], {})
    return store.select()


SETTINGS: dict[str, dict[str, Any]] = {
    "mlp": {"hidden_dim": 8},
    "fcnet": SMALL["fcnet"],
    "transformer": {"hidden_dim": 8, "n_layers": 1, "n_heads": 2, "context_len": 4},
}


def config(model: str, **more: Any) -> Any:
    own = {"model": model, "model_overrides": SETTINGS[model], "steps": 6}
    return replace(SHORT, **own, checkpoint_every=3, **more)


@pytest.mark.slow
@pytest.mark.parametrize("model", list(SETTINGS))
def test_inputs_are_bounded_alike_in_every_way_to_act(
    model: str, awkward: Selection, tmp_path: Path
) -> None:
    said: list[str] = []
    train(config(model), awkward, tmp_path / "run", say=said.append)
    [line] = said
    assert line.startswith(
        "channels bumper, mast hardly ever change: normalised inputs are bounded"
    )
    policy = load_policy(tmp_path / "run")
    bounds = policy.obs_normaliser.limits()
    assert bounds.tolist() == [LEAST, MOST, LEAST, LEAST]
    module, step = PolicyStep(policy, 1), compiled_step(policy, 1)
    assert step is not None
    program = trace(module)
    exported = [
        read(write(program, module, {}), module)
        for write, read in ((to_onnx, onnx_step), (to_pt2, pt2_step))
    ]
    states = [[each.numpy() for each in module.initial_state()] for _ in exported]
    state, sequence = policy.init_state(1), []
    for values in [*AWKWARD.values()] * 2:
        obs = np.array([values], np.float32)
        sequence.append(obs)
        tokens = policy.tokens(torch.from_numpy(obs))
        assert (tokens.abs() <= bounds).all()
        with torch.inference_mode():
            action, state = policy.step(torch.from_numpy(obs), state)
            window = torch.from_numpy(np.stack(sequence, axis=1))
            forward = policy(window)[:, -1]
        assert action.abs().max() < 1e3
        kwargs: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3}
        np.testing.assert_allclose(forward, action, **kwargs)
        np.testing.assert_allclose(step.step(obs, None), action, **kwargs)
        for number, run in enumerate(exported):
            given, *states[number] = run([obs, *states[number]])
            np.testing.assert_allclose(given, action, **kwargs)


def test_a_value_that_is_not_a_number_stays_one(awkward: Selection, tmp_path: Path) -> None:
    train(config("mlp"), awkward, tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    obs = np.array([[0.5, np.nan, 3.14, 0.0]], np.float32)
    step = compiled_step(policy, 1)
    assert step is not None
    assert np.isnan(step.step(obs, None)).all()
    assert policy.tokens(torch.from_numpy(obs)).isnan()[0].tolist() == [False, True, False, False]


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    with safe_open(run / CHECKPOINT, framework="pt") as stored:
        return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118


@pytest.mark.parametrize("objective", ["bc", "return", *OF_VALUES[:1]])
def test_ordinary_data_give_the_same_bits_as_without_bounds(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    selection = make_selection(tmp_path / "s.zarr", final_obs=True, failing=True)
    said: list[str] = []
    plan = config("mlp", objective=objective)
    train(plan, selection, tmp_path / "bounded", say=said.append)
    assert said == []
    monkeypatch.setattr(building, "input_bounds", lambda largest: np.full(len(largest), 1e30))
    train(plan, selection, tmp_path / "free")
    bounded, free = weights_of(tmp_path / "bounded"), weights_of(tmp_path / "free")
    assert bounded.keys() == free.keys()
    for name, weight in bounded.items():
        assert torch.equal(weight, free[name]), name
    policy = load_policy(tmp_path / "bounded")
    steps = [compiled_step(each, 1) for each in (policy, load_policy(tmp_path / "free"))]
    for obs in selection.read("obs")[:40, None]:
        condition = np.ones((1, 1), np.float32) if policy.conditioned else None
        one, other = (step.step(obs, condition) for step in steps if step is not None)
        np.testing.assert_array_equal(one, other)


def test_a_checkpoint_without_bounds_acts_and_goes_on_without(
    awkward: Selection, tmp_path: Path
) -> None:
    """Those of before have none: they act as they did, and their runs are not bounded later."""
    run = tmp_path / "run"
    train(config("mlp", keep_every=3), awkward, run)
    older = _without_bounds(run)
    assert older.obs_normaliser.bound is None
    obs = torch.tensor([AWKWARD["unplugged"]])
    assert older.tokens(obs).abs().max() > 1e4
    said: list[str] = []
    train(config("mlp", keep_every=3), awkward, run, say=said.append)
    assert load_policy(run).obs_normaliser.bound is None
    assert said == []


def _without_bounds(run: Path) -> PolicyNetwork:
    """The policy of a run whose last checkpoint is made one of before, in the middle of it."""
    with safe_open(run / CHECKPOINT, framework="pt") as stored:
        card = json.loads((stored.metadata() or {})["card"])
    del card["input_bounds"]
    card["finished"] = False
    save_file(weights_of(run), run / CHECKPOINT, {"card": json.dumps(card)})
    return load_policy(run)


@pytest.mark.parametrize("objective", OF_VALUES[:1])
def test_an_action_that_never_changes_is_kept_by_policies_of_values(
    objective: str, awkward: Selection, tmp_path: Path
) -> None:
    train(config("mlp", objective=objective), awkward, tmp_path / "run")
    policy = load_policy(tmp_path / "run")
    for values in AWKWARD.values():
        action, _ = policy.step(torch.tensor([values]), policy.init_state(1))
        assert float(action[0, 1]) == pytest.approx(0.1, abs=1e-4)


def test_returns_of_awkward_scale_are_named(awkward: Selection, tmp_path: Path) -> None:
    said: list[str] = []
    plan = config("mlp", objective="return", return_scale=0.001)
    train(plan, awkward, tmp_path / "run", say=said.append)
    assert any("set config.return_scale" in line for line in said)
