"""Checkpoints: nothing is lost, and nothing wrong is accepted."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from gaitforge.learners.checkpoint import (
    CHECKPOINT,
    load_policy,
    policy_card,
    read_checkpoint,
    save_checkpoint,
)
from gaitforge.learners.models.registry import preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.update import Updater
from tests.learners.making import OBS_SLICES, SMALL, make_policy


def save(run_dir: Path, model: str = "fcnet", tokens: str = "obs") -> None:
    policy = make_policy(model, tokens, return_scale=7.0, return_zero=-3.0)
    spec = preset(model, SMALL[model])
    save_checkpoint(run_dir, policy, None, policy_card(policy, spec))


def test_a_loaded_policy_acts_like_the_saved_one(tmp_path: Path) -> None:
    save(tmp_path, "fcnet", "return")
    original = make_policy("fcnet", "return", return_scale=7.0, return_zero=-3.0)
    loaded = load_policy(tmp_path)
    obs, remaining = torch.randn(2, 9, 70), torch.rand(2, 9, 1)
    with torch.no_grad():
        assert torch.equal(original(obs, remaining), loaded(obs, remaining))
    assert loaded.layout == original.layout
    assert json.loads((tmp_path / "checkpoint.json").read_text()) == read_checkpoint(tmp_path)[1]


def test_saving_leaves_only_the_checkpoint_and_its_card(tmp_path: Path) -> None:
    save(tmp_path)
    save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {CHECKPOINT, "checkpoint.json"}


def test_a_moving_average_is_what_acts(tmp_path: Path) -> None:
    policy, averaged = make_policy(), make_policy()
    with torch.no_grad():
        for parameter in averaged.parameters():
            parameter.mul_(0.5)
    card = policy_card(policy, preset("fcnet", SMALL["fcnet"]))
    averages = dict(averaged.named_parameters())
    save_checkpoint(tmp_path, policy, None, card, averages)
    obs = torch.randn(2, 9, 70)
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path)(obs), averaged(obs))


def test_a_weight_that_a_network_uses_twice_is_saved_as_it_acts(tmp_path: Path) -> None:
    policy = make_policy()
    first, second = policy.network.layers
    second.ffn = first.ffn
    updater = Updater(policy, TrainConfig(ema_decay=0.5), Ranks())
    assert updater.average is not None
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(2.0)
    updater.average.update_parameters(policy)
    card = policy_card(policy, preset("fcnet", SMALL["fcnet"]))
    save_checkpoint(tmp_path, policy, updater.optimiser, card, updater.averages())
    obs = torch.randn(2, 9, 70)
    with torch.no_grad():
        assert torch.equal(load_policy(tmp_path)(obs), updater.acting_policy()(obs))
        assert not torch.equal(load_policy(tmp_path)(obs), policy(obs))


@pytest.mark.parametrize("version", [3, 4, None])
def test_other_formats_are_refused(version: int | None, tmp_path: Path) -> None:
    policy = make_policy()
    card = policy_card(policy, preset("fcnet", SMALL["fcnet"])) | {"format_version": version}
    save_checkpoint(tmp_path, policy, None, card)
    with pytest.raises(ValueError, match=r"not a checkpoint .* \(format version 5\)"):
        load_policy(tmp_path)


@pytest.mark.parametrize("kept", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(kept: int, tmp_path: Path) -> None:
    save(tmp_path)
    path = tmp_path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match="truncated or damaged") as caught:
        load_policy(tmp_path)
    assert "\n" not in str(caught.value)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint in"):
        load_policy(tmp_path)


def test_another_programs_file_is_refused(tmp_path: Path) -> None:
    save_file({"weight": torch.zeros(3)}, tmp_path / CHECKPOINT)
    with pytest.raises(ValueError, match="not a checkpoint of this program"):
        load_policy(tmp_path)


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    policy = make_policy("fcnet")
    other = preset("fcnet", SMALL["fcnet"] | {"hidden_dim": 24})
    save_checkpoint(tmp_path, policy, None, policy_card(policy, other))
    with pytest.raises(ValueError, match="another model"):
        load_policy(tmp_path)


def test_another_observation_layout_is_refused(tmp_path: Path) -> None:
    save(tmp_path)
    moved = OBS_SLICES | {"projected_gravity": (3, 6)}
    with pytest.raises(ValueError, match=r"another observation layout: projected_gravity"):
        load_policy(tmp_path, obs_slices=moved)
    fewer = {name: bounds for name, bounds in OBS_SLICES.items() if name != "command"}
    with pytest.raises(ValueError, match=r"command at .* at no place here"):
        load_policy(tmp_path, obs_slices=fewer)
