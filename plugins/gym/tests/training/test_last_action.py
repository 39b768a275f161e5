"""Return-conditioned policies on data whose observation has no last action: they keep it."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.formats.transfer.importing import import_source
from gaitforge.learners.checkpoint import load_policy, policy_card
from gaitforge.learners.control.control import LearnedPolicy
from gaitforge.learners.export.export import PolicyExportOptions, export_policy
from gaitforge.learners.export.onnx_policy import OnnxPolicy
from gaitforge.learners.models.registry import build_network, preset
from gaitforge.learners.policy_network import GaussianSpread, Normaliser, PolicyNetwork
from gaitforge.learners.tokens import TokenLayout
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import held_out_error, train
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS
from tests.learners.control.exporting import FACTS
from tests.learners.making import OBS_SLICES, SHORT, SMALL, Seen, make_policy

KINDS = ("fcnet", "dt")
SIZES: dict[str, dict[str, Any]] = {
    "fcnet": SMALL["fcnet"],
    "dt": {"hidden_dim": 16, "n_heads": 2, "n_layers": 2, "context_len": 8},
}
OBS, ACTION = 11, 3
NAMES = TASKS["hopper"].obs_slices
CONTROL_STEPS = 27


def write_hopper(path: Path, dtype: str) -> Path:
    """A file of D4RL's layout, in which each action follows from the one before."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(3, 30, 24)
    actions = []
    for length in lengths:
        last = np.zeros(ACTION)
        for _ in range(length):
            last = -0.95 * last + rng.choice([-0.2, 0.2], ACTION)
            actions.append(last)
    rows = int(lengths.sum())
    ended = np.zeros(rows, bool)
    ended[np.cumsum(lengths) - 1] = True
    with h5py.File(path, "w") as file:
        file["observations"] = rng.normal(size=(rows, OBS)).astype(dtype)
        file["actions"] = np.array(actions, dtype)
        file["rewards"] = rng.uniform(0.5, 1.5, rows).astype(dtype)
        file["terminals"] = ended
        file["timeouts"] = np.zeros(rows, bool)
    return path


def hopper(folder: Path, dtype: str = "float32") -> Selection:
    source = write_hopper(folder / "hopper-medium-v2.hdf5", dtype)
    import_source("d4rl", source, folder / "hopper.zarr", {})
    return open_store(folder / "hopper.zarr").select()


def config_for(kind: str, **changes: Any) -> TrainConfig:
    own = {"model": kind, "model_overrides": SIZES[kind], "objective": "return", "steps": 12}
    return replace(SHORT, **(own | changes))


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return hopper(tmp_path_factory.mktemp("d4rl"))


@pytest.fixture(scope="module")
def runs(selection: Selection, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A trained run of each kind."""
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        train(config_for(kind), selection, folder / kind)
    return {kind: folder / kind for kind in KINDS}


def observations(robots: int, width: int = OBS, steps: int = CONTROL_STEPS) -> list[Seen]:
    rng = np.random.default_rng(1)
    return [
        Seen(
            rng.standard_normal((robots, width), dtype=np.float32),
            rng.uniform(0, 1, robots).astype(np.float32),
        )
        for _ in range(steps)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_loaded_policy_keeps_it(kind: str, runs: dict[str, Path], selection: Selection) -> None:
    stored = selection.store.schema.field("obs").slices
    assert stored == NAMES
    policy = load_policy(runs[kind], obs_slices=stored)
    for name in ("mean", "std"):
        both = getattr(policy.obs_normaliser, name)
        assert torch.equal(both[OBS:], getattr(policy.action_normaliser, name))
    layout = policy.layout
    assert layout.keeps_last_action
    assert (layout.stored_slices, layout.stored_dim) == (NAMES, OBS)
    assert layout.obs_slices["last_action"] == (OBS, OBS + ACTION)
    card = json.loads((runs[kind] / "checkpoint.json").read_text())
    assert card["tokens"]["keeps_last_action"] is True
    offered = {**NAMES, "last_action": (OBS, OBS + ACTION)}
    with pytest.raises(ValueError, match="another observation layout: last_action at no place"):
        load_policy(runs[kind], obs_slices=offered)


@pytest.mark.parametrize("kind", KINDS)
def test_control_equals_the_network_fed_its_actions(kind: str, runs: dict[str, Path]) -> None:
    network = load_policy(runs[kind])
    policy = LearnedPolicy(network, num_robots=3, return_target=0.7)
    seen = observations(3)
    actions = np.stack([policy.act(each) for each in seen], axis=1)
    assert actions.dtype == np.float32
    before = np.concatenate([np.zeros_like(actions[:, :1]), actions[:, :-1]], axis=1)
    rewards = np.stack([each.reward for each in seen], axis=1)
    received = np.cumsum(rewards, axis=1) - rewards[:, :1]
    remaining = 0.7 * float(network.return_scale) - received
    with torch.no_grad():
        obs = torch.from_numpy(np.stack([each.policy for each in seen], axis=1))
        expected = network(
            network.observation(obs, torch.from_numpy(before)),
            network.share(torch.from_numpy(remaining.astype(np.float32)))[..., None],
        )
    np.testing.assert_allclose(actions, expected.numpy(), atol=5e-5)


def test_a_drawn_action_is_the_last_one() -> None:
    layout = TokenLayout.of_data("return", NAMES, ACTION)
    network = PolicyNetwork(
        build_network(preset("fcnet", SIZES["fcnet"]), layout, ACTION),
        layout,
        Normaliser.identity(layout.obs_dim),
        Normaliser.identity(ACTION),
        gaussian=GaussianSpread(ACTION, fixed_std=0.5),
    )
    first, second = observations(1, steps=2)
    policy = LearnedPolicy(network, num_robots=1, sample_seed=0)
    drawn, following = policy.act(first), policy.act(second)
    noise = torch.Generator().manual_seed(0)
    std = network.action_std().detach()
    with torch.no_grad():
        obs = torch.from_numpy(np.stack([first.policy, second.policy], axis=1))
        before = torch.from_numpy(np.stack([np.zeros_like(drawn), drawn], axis=1))
        remaining = torch.tensor([[1.0, 1.0 - float(second.reward[0])]])
        mean = network(network.observation(obs, before), network.share(remaining)[..., None])[0]
    for action, expected in zip((drawn, following), mean, strict=True):
        noisy = expected + std * torch.randn(1, ACTION, generator=noise)
        np.testing.assert_allclose(action, noisy.numpy(), atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_held_out_error(kind: str, runs: dict[str, Path], selection: Selection) -> None:
    policy = load_policy(runs[kind])
    total = 0.0
    for index in range(len(selection)):
        episode = selection.episode(index)
        action = torch.from_numpy(episode["action"])
        before = torch.cat([torch.zeros(1, ACTION), action[:-1]])
        remaining = torch.from_numpy(np.cumsum(episode["reward"][::-1])[::-1].copy())
        with torch.no_grad():
            obs = policy.observation(torch.from_numpy(episode["obs"]), before)
            condition = policy.share(remaining)[None, :, None]
            predicted = policy.predict_normalised(obs[None], condition)[0]
        error = predicted - policy.action_normaliser.normalise(action)
        total += float(error.square().mean(-1).sum())
    found = held_out_error(policy, selection)
    assert found.mse == pytest.approx(total / found.steps, rel=1e-4)


@pytest.mark.slow
def test_the_last_action_is_learned_from(selection: Selection, tmp_path: Path) -> None:
    """Only it explains the actions: without it the error stays near 1."""
    config = config_for("fcnet", steps=100, peak_lr=1e-2, window_len=16, validation_every=50)
    with_it = train(config, selection, tmp_path / "return")
    # FCNet without return tokens sees the observation alone, which is noise here.
    without = train(replace(config, objective="bc"), selection, tmp_path / "bc")
    assert with_it.best_validation_loss is not None
    assert without.best_validation_loss is not None
    assert with_it.best_validation_loss < 0.5 < 0.9 < without.best_validation_loss


def test_double_precision_data_train_too(tmp_path: Path) -> None:
    selection = hopper(tmp_path, "float64")
    result = train(config_for("fcnet", steps=3), selection, tmp_path / "run")
    policy = load_policy(result.run_dir)
    assert next(policy.parameters()).dtype == torch.float32
    assert held_out_error(policy, selection).steps == selection.steps


def legged_policy() -> tuple[PolicyNetwork, dict[str, Any], Any]:
    """A policy for the robot that is fed no last action, its card, and facts of that robot."""
    start, stop = OBS_SLICES["last_action"]
    fields = {}
    for name, each in FACTS.observation.items():
        back = stop - start if each.start >= stop else 0
        if name != "last_action":
            fields[name] = replace(each, start=each.start - back, stop=each.stop - back)
    facts = replace(FACTS, observation=fields)
    layout = TokenLayout.of_data("return", facts.obs_slices, 12)
    spec = preset("fcnet", SIZES["fcnet"])
    policy = make_policy("fcnet", return_scale=7.0, layout=layout).eval()
    return policy, policy_card(policy, spec) | {"parameters": 1}, facts


@pytest.mark.slow
def test_an_exported_policy_keeps_it_as_a_part_of_its_state(tmp_path: Path) -> None:
    policy, card, facts = legged_policy()
    result = export_policy(policy, card, facts, tmp_path / "out", PolicyExportOptions(batch_size=2))
    assert max(result.errors.values()) <= 1e-5
    exported = OnnxPolicy(tmp_path / "out", num_robots=3, return_target=0.8)
    assert exported.description["observation"]["dim"] == 58
    [kept] = [
        each for each in exported.description["state"] if each["input"] == "state_last_action"
    ]
    assert (kept["shape"], kept["fill"], kept["output"]) == ([2, 12], 0.0, "next_state_last_action")
    assert exported.check_known_answers() <= 1e-5
    learned = LearnedPolicy(policy, num_robots=3, return_target=0.8)
    for t, each in enumerate(observations(3, width=58)):
        if t in (5, 14):
            exported.reset(np.array([0, 2]))
            learned.reset(np.array([0, 2]))
        np.testing.assert_allclose(exported.act(each), learned.act(each), atol=5e-5)


def test_a_policy_in_control_keeps_what_it_returned_within_its_limit() -> None:
    policy, _, _ = legged_policy()
    learned = LearnedPolicy(policy, num_robots=1, action_limit=0.2)
    for _ in range(2):
        state, action, remaining = policy.init_state(1), torch.zeros(1, 12), torch.tensor([7.0])
        for t, each in enumerate(observations(1, width=58)):
            remaining = remaining - (float(each.reward[0]) if t else 0.0)
            obs = policy.observation(torch.from_numpy(each.policy), action)
            action, state = policy.step(obs, state, policy.share(remaining)[:, None])
            action = action.clamp(-0.2, 0.2)
            np.testing.assert_allclose(learned.act(each), action.detach(), atol=5e-5)
        learned.reset(np.arange(1))


def test_wrong_layouts_and_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="keeps the last action needs return tokens"):
        TokenLayout("obs", {"state": (0, 3), "last_action": (3, 5)}, keeps_last_action=True)
    with pytest.raises(ValueError, match="as the last field of the observation"):
        TokenLayout("return", {"last_action": (0, 2), "state": (2, 5)}, keeps_last_action=True)
    policy, _, _ = legged_policy()
    with pytest.raises(ValueError, match="action_limit must be above 0"):
        LearnedPolicy(policy, 2, action_limit=0.0)
    with pytest.raises(ValueError, match="give last_action"):
        policy.predict_batch({"obs": torch.zeros(1, 4, 58), "condition": torch.zeros(1, 4, 1)})
