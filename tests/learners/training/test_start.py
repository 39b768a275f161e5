"""A run that begins with the weights of another."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from gaitforge.common.files import sha256_file
from gaitforge.datasets import Selection
from gaitforge.learners.checkpoint import (
    CHECKPOINT,
    load_policy,
    policy_card,
    read_checkpoint,
    save_checkpoint,
)
from gaitforge.learners.models.registry import preset
from gaitforge.learners.policy_network import GaussianSpread
from gaitforge.learners.training.building import policy_settings
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import train
from tests.learners.making import OF_VALUES, SHORT, SMALL, make_policy, make_selection
from tests.learners.training.test_resume import Killed, after, assert_same_run, crash

SOURCE = replace(
    SHORT, steps=6, objective="return", condition=("share",), ema_decay=0.9, checkpoint_every=100
)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    return train(SOURCE, make_selection(folder / "walks.zarr"), folder / "run").run_dir


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return make_selection(tmp_path_factory.mktemp("store") / "others.zarr", seed=8)


def test_a_run_has_the_anothers_weights_and_needs_it_no_more_once_it_began(
    source: Path, selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.learners.training.trainer.PROGRESS_PERIOD_S", 0.0)
    run = Path(shutil.copytree(source, tmp_path / "source"))
    begun = load_policy(run)
    config = replace(SOURCE, steps=9, seed=4, start_from=str(run))
    whole = train(config, selection, tmp_path / "whole").run_dir
    with pytest.raises(Killed):
        train(config, selection, tmp_path / "killed", progress=after(3, crash))
    at_start = load_policy(tmp_path / "killed")
    for name, value in begun.state_dict().items():
        assert torch.equal(at_start.state_dict()[name], value), name
    card = read_checkpoint(tmp_path / "killed").card
    assert card["progress"]["step"] == 0
    digest = sha256_file(run / CHECKPOINT)
    assert card["start"] == {"run": str(run), "checkpoint": "last", "sha256": digest}
    shutil.rmtree(run)
    assert train(config, selection, tmp_path / "killed").resumed_from == 0
    assert_same_run(tmp_path / "killed", whole)
    assert read_checkpoint(whole).card["start"] == card["start"]
    trained = load_policy(whole)
    changed = [name for name, value in begun.named_parameters()
               if not torch.equal(value, trained.get_parameter(name))]  # fmt: skip
    assert changed
    for name in ("obs_normaliser.mean", "obs_normaliser.std", "action_normaliser.std"):
        assert torch.equal(trained.state_dict()[name], begun.state_dict()[name])
    assert trained.return_at(1.0) == begun.return_at(1.0)
    assert trained.label_scale is not None
    assert begun.label_scale is not None
    assert begun.label_scale.cells.items() <= trained.label_scale.cells.items()


def test_a_return_that_is_asked_for_replaces_the_others(
    source: Path, selection: Selection, tmp_path: Path
) -> None:
    asked = replace(SOURCE, steps=1, start_from=str(source), return_scale=50.0, return_zero=10.0)
    policy = load_policy(train(asked, selection, tmp_path).run_dir)
    assert (policy.return_at(0.0), policy.return_at(1.0)) == (10.0, 50.0)


def test_the_return_that_counts_as_0_stays_or_is_given_with_the_other(
    selection: Selection, tmp_path: Path
) -> None:
    first = replace(SOURCE, steps=1, return_zero=-20.0, return_scale=30.0)
    start = train(first, selection, tmp_path / "first").run_dir
    config = replace(SOURCE, steps=1, start_from=str(start))
    for number, (change, expected) in enumerate(
        [({}, (-20.0, 30.0)), ({"return_scale": 40.0}, (-20.0, 40.0))]
    ):
        policy = load_policy(
            train(replace(config, **change), selection, tmp_path / f"{number}").run_dir
        )
        assert (policy.return_at(0.0), policy.return_at(1.0)) == expected
    with pytest.raises(ValueError, match=r"return_zero 5 needs return_scale: .* has -20"):
        train(replace(config, return_zero=5.0), selection, tmp_path / "refused")


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model_overrides": SMALL["fcnet"] | {"n_modes": 2}}, "model.config.n_modes is 3 there, 2"),
    ({"objective": "bc"}, "objective return there, bc here"),
    ({"condition": ("rate",)}, r'condition.labels is \["share"\] there, \["rate"\] here'),
    ({"start_from": "nowhere"}, "start_from: no checkpoint in nowhere.*ship: bot-aliengo, fcnet"),
    ({"start_checkpoint": "step-3"}, "no step-3 checkpoint in"),
    *([({"objective": OF_VALUES[0]}, f"return there, {OF_VALUES[0]} here")] if OF_VALUES else []),
]


@pytest.mark.parametrize(("change", "complaint"), REFUSED)
def test_another_policys_run_is_refused(
    change: dict[str, Any], complaint: str, source: Path, selection: Selection, tmp_path: Path
) -> None:
    config = replace(SOURCE, **{"start_from": str(source), **change})
    with pytest.raises(ValueError, match=complaint) as refused:
        train(config, selection, tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_refused_folder_says_how_to_go_on(
    source: Path, selection: Selection, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    config = replace(SOURCE, objective="bc", steps=2)
    train(config, selection, run)
    with pytest.raises(ValueError, match=f"planned with 2 steps; .* --start-from {run} --out NEW"):
        train(replace(config, steps=3), selection, run)
    other = replace(config, batch_size=4, steps=3, start_from=str(source))
    words = rf"another batch_size \(8, here 4\), start_from \(none, here {source}\), steps \(2, "
    with pytest.raises(ValueError, match=words):
        train(other, selection, run)


def of_ppo(folder: Path, action_filter: float = 1.0) -> Path:
    """The folder of a policy as a training by PPO leaves it: its card tells of no `TrainConfig`."""
    sizes = {"hidden_dim": 8, "n_layers": 1}
    policy = make_policy("mlp", settings=sizes, gaussian=GaussianSpread(12)).filtered(action_filter)
    folder.mkdir()
    card = policy_card(policy, preset("mlp", sizes)) | {"reinforcement_learning": {}}
    save_checkpoint(folder, policy, None, card)
    return folder


def test_a_policy_of_ppo_is_trained_further(selection: Selection, tmp_path: Path) -> None:
    start = str(of_ppo(tmp_path / "ppo"))
    settings = policy_settings(start, tmp_path / "run")
    assert settings["objective"] == "gaussian-bc"
    config = TrainConfig.recommended(**settings, start_from=start, steps=2, batch_size=8)
    assert train(config, selection, tmp_path / "run").steps == 2


def test_a_policy_with_a_filter_is_not(selection: Selection, tmp_path: Path) -> None:
    start = str(of_ppo(tmp_path / "ppo", action_filter=0.4))
    config = TrainConfig.recommended(**policy_settings(start, tmp_path / "run"), start_from=start)
    with pytest.raises(ValueError, match=r"cannot start from .*: a filter of actions follows"):
        train(config, selection, tmp_path / "run")
