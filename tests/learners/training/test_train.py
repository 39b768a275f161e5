"""The trainer on a real store: learning, what it leaves behind, and what it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gaitforge.common.history import read_history
from gaitforge.datasets import Field, Schema, Selection, Store, open_store
from gaitforge.learners.checkpoint import load_policy, read_checkpoint
from gaitforge.learners.training.batches import kind_columns, open_stream
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.distributed import Ranks
from gaitforge.learners.training.train import NonFiniteError, split_episodes, split_note, train
from gaitforge.learners.training.trainer import HistoryRow
from gaitforge.learners.training.update import learning_rate
from tests.datasets.making import part_input
from tests.learners.making import OBS_SLICES, SHORT, SMALL, SpoiledSelection, make_selection

EXPERTS = Schema(
    (
        Field("obs", (70,), slices=OBS_SLICES),
        Field("action", (12,)),
        Field("reward"),
        Field("final_obs", (70,), slices=OBS_SLICES, per="episode"),
    ),
    control_dt_s=0.02,
    robot="aliengo",
)


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    return make_selection(tmp_path_factory.mktemp("store") / "walks.zarr")


def test_training_lowers_the_loss_on_both_sides(selection: Selection, tmp_path: Path) -> None:
    config = replace(SHORT, steps=150, validation_every=10, history_every=10)
    result = train(config, selection, tmp_path)
    rows = read_history(tmp_path)
    assert result.loss < 0.5 * rows[0]["loss"]
    assert result.validation_loss is not None
    assert result.validation_loss < 0.7 * rows[0]["validation_loss"]
    assert [row["step"] for row in rows] == list(range(10, 151, 10))
    assert result.control_steps > 0
    assert result.train_s > 0


def test_progress_reports_the_last_step(selection: Selection, tmp_path: Path) -> None:
    seen: list[tuple[int, int, HistoryRow]] = []
    train(SHORT, selection, tmp_path, progress=lambda *call: seen.append(call))
    done, total, row = seen[-1]
    assert (done, total) == (24, 24)
    assert row.step == 24
    assert row.validation_loss == read_history(tmp_path)[-1]["validation_loss"]
    assert min(row.loss, row.lr, row.steps_per_s, row.elapsed_s) > 0.0


def test_a_loaded_policy_has_the_datas_statistics(selection: Selection, tmp_path: Path) -> None:
    train(replace(SHORT, objective="return"), selection, tmp_path)
    policy = load_policy(tmp_path, obs_slices=OBS_SLICES)
    rest, _ = selection.split(SHORT.held_out_fraction, SHORT.seed)
    np.testing.assert_allclose(
        policy.action_normaliser.mean.numpy(), rest.statistics("action").mean, rtol=1e-5
    )
    returns = rest.episodes().column("return").to_numpy()
    assert float(policy.return_scale) == pytest.approx(returns.mean(), rel=1e-6)
    assert not policy.training


def test_a_large_selection_is_measured_by_a_spread_of_it(
    selection: Selection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gaitforge.learners.training.building.LARGE_STEPS", 100)
    monkeypatch.setattr("gaitforge.learners.training.building.STATISTICS_STEPS", 1)
    monkeypatch.setattr("gaitforge.datasets.selection.SHARD_STEPS", 64)
    train(replace(SHORT, steps=1), selection, tmp_path)
    policy = load_policy(tmp_path, obs_slices=OBS_SLICES)
    rest, _ = selection.split(SHORT.held_out_fraction, SHORT.seed)
    part = rest.spread(1, kind_columns(SHORT, rest.schema))
    assert 0 < part.steps < rest.steps
    mean = policy.action_normaliser.mean.numpy()
    np.testing.assert_allclose(mean, part.statistics("action").mean, rtol=1e-5)
    assert not np.allclose(mean, rest.statistics("action").mean, rtol=1e-5)


@pytest.mark.parametrize("objective", ["bc", "td3-bc"])
def test_a_large_selection_is_measured_by_all_its_experts(
    objective: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two experts, dealt to the parts in turns, whose actions are far apart."""
    store = Store.create(tmp_path / "s", EXPERTS)
    rng = np.random.default_rng(0)
    for part in range(20):
        given = part_input((20, 30), 2 * part)
        action = rng.normal(4.0 * (-1) ** part, 0.1, (50, 12)).astype(np.float32)
        steps = {**given["steps"], "obs": rng.normal(size=(50, 70)).astype(np.float32)}
        columns = {**given["episodes"], "expert": [f"expert-{part % 2}"] * 2}
        finals = {"final_obs": np.zeros((2, 70), np.float32)}
        store.write_part(f"p{part:02d}", {**steps, "action": action}, columns, finals)
    monkeypatch.setattr("gaitforge.learners.training.building.LARGE_STEPS", 100)
    monkeypatch.setattr("gaitforge.learners.training.building.STATISTICS_STEPS", 300)
    config = replace(SHORT, steps=1, objective=objective, held_out_fraction=0.0)
    train(config, store.select(), tmp_path / "run")
    normaliser = load_policy(tmp_path / "run", obs_slices=OBS_SLICES).action_normaliser
    np.testing.assert_allclose(normaliser.mean.numpy(), 0.0, atol=1.5)
    assert (normaliser.std.numpy() > 3.0).all()
    if objective == "td3-bc":
        actions = store.select().read("action")
        assert np.abs((actions - normaliser.mean.numpy()) / normaliser.std.numpy()).max() <= 1.0001


def test_actions_may_stay_in_their_units(selection: Selection, tmp_path: Path) -> None:
    config = replace(SHORT, normalise_actions=False, objective="gaussian-bc", model="bot")
    config = replace(config, model_overrides=SMALL["bot"] | {"fixed_std": 0.1}, steps=2)
    config = replace(config, prefix_len=0)
    train(config, selection, tmp_path)
    policy = load_policy(tmp_path)
    torch.testing.assert_close(policy.action_std(), torch.full((12,), 0.1))
    obs = torch.randn(2, 5, 70)
    with torch.no_grad():
        assert torch.equal(policy(obs), policy.predict_normalised(obs))
    recorded = read_checkpoint(tmp_path)[1]["train_config"]
    assert config.differences(recorded) == []
    assert replace(config, normalise_actions=True).differences(recorded) == ["normalise_actions"]


def test_settings_are_saved_beside_the_run(selection: Selection, tmp_path: Path) -> None:
    train(replace(SHORT, steps=2), selection, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["train_config"]["batch_size"] == 8
    assert config["train_config"]["prefix_len"] == 0
    assert config["model"]["config"]["hidden_dim"] == 16
    assert config["dataset_hash"] == selection.hash
    assert config["git_revision"]


@pytest.mark.parametrize(
    ("change", "named"), [({"seed": 1}, "seed"), ({"model_overrides": {}}, "model_overrides")]
)
def test_a_folder_with_another_run_is_refused(
    change: dict[str, Any], named: str, selection: Selection, tmp_path: Path
) -> None:
    train(replace(SHORT, steps=2), selection, tmp_path)
    with pytest.raises(ValueError, match=f"run with another {named}"):
        train(replace(SHORT, steps=2, **change), selection, tmp_path)


def test_a_folder_with_a_run_on_other_data_is_refused(selection: Selection, tmp_path: Path) -> None:
    train(replace(SHORT, steps=2), selection, tmp_path / "run")
    other = make_selection(tmp_path / "other.zarr", seed=8)
    with pytest.raises(ValueError, match="another dataset"):
        train(replace(SHORT, steps=2), other, tmp_path / "run")


def test_annotations_that_a_training_reads_are_its_data_and_others_are_not(tmp_path: Path) -> None:
    selection = make_selection(tmp_path / "own.zarr")
    store = open_store(selection.store.path)
    store.select().annotate({"group": "a"})
    config = replace(SHORT, steps=2, equal_shares="group")
    train(config, store.select(), tmp_path / "run")
    before = store.select().hash
    store.select().annotate({"note": "seen"})
    assert store.select().hash != before
    resumed = train(config, store.select(), tmp_path / "run")
    assert resumed.resumed_from == 2
    for column in ("group", "quality", "action_noise"):
        place = tmp_path / column
        shutil.copytree(store.path, place / "s.zarr")
        copied = open_store(place / "s.zarr")
        value = 0.5 if column == "action_noise" else "b"
        copied.select().where("episode % 2 = 0").annotate({column: value})
        with pytest.raises(ValueError, match="another dataset"):
            train(config, copied.select(), tmp_path / "run")


@pytest.mark.parametrize("field", ["obs", "action"])
def test_nan_in_the_data_is_named(field: str, tmp_path: Path) -> None:
    spoiled = make_selection(tmp_path / "spoiled.zarr", spoil=field)
    with pytest.raises(NonFiniteError, match=field):
        train(replace(SHORT, held_out_fraction=0.0), spoiled, tmp_path / "run")


def test_nan_in_the_rewards_is_named(tmp_path: Path) -> None:
    spoiled = make_selection(tmp_path / "spoiled.zarr", spoil="reward")
    config = replace(SHORT, objective="return", held_out_fraction=0.0, return_scale=10.0)
    with pytest.raises(
        NonFiniteError,
        match=r"^step 0 \(epoch 0, batch 0\): field return_to_go of the data holds numbers that "
        r"are not finite, in episodes? [\d, ]+ of part walks( and \d more)?$",
    ):
        train(config, spoiled, tmp_path / "run")


def test_nan_in_the_held_out_data_is_named(selection: Selection, tmp_path: Path) -> None:
    class SpoiltWhereHeldOut(Selection):
        def split(self, fraction: float, seed: int) -> tuple[Selection, Selection]:
            rest, held_out = super().split(fraction, seed)
            spoiled = SpoiledSelection(held_out.store, held_out.catalog, held_out.rows)
            spoiled.spoiled_field = "action"
            return rest, spoiled

    spoilt = SpoiltWhereHeldOut(selection.store, selection.catalog, selection.rows)
    with pytest.raises(NonFiniteError, match=r"step 9, validation: field action .* of part walks"):
        train(SHORT, spoilt, tmp_path)
    assert read_checkpoint(tmp_path)[1]["progress"]["step"] == 7


def test_a_diverging_run_keeps_its_last_checkpoint(selection: Selection, tmp_path: Path) -> None:
    config = replace(SHORT, peak_lr=1e30, warmup_fraction=0.0, checkpoint_every=1)
    with pytest.raises(
        NonFiniteError,
        match=r"step \d+ \(epoch 0, batch \d+\): the loss .* over episodes [\d, ]+ of part walks "
        r"and \d+ more; lower peak_lr",
    ):
        train(config, selection, tmp_path)
    tensors, card = read_checkpoint(tmp_path)
    assert not card["finished"]
    assert tensors


@pytest.mark.parametrize(
    ("field", "other", "named"),
    [
        (
            "obs",
            Field("obs", (8, 8, 3), "uint8"),
            r"field obs has shape \(8, 8, 3\) and dtype uint8",
        ),
        ("obs", Field("obs", (), "int64"), r"field obs has shape \(\) and dtype int64"),
        ("action", Field("action", (), "int64"), r"field action has shape \(\) and dtype int64"),
        ("action", Field("action", (2, 2)), r"field action has shape \(2, 2\)"),
    ],
)
def test_images_are_refused_by_name(field: str, other: Field, named: str, tmp_path: Path) -> None:
    fields = {"obs": Field("obs", (3,), slices={"state": (0, 3)}), "action": Field("action", (2,))}
    schema = Schema(tuple((fields | {field: other}).values()), 0.02, "aliengo")
    store, part = Store.create(tmp_path / "store", schema), part_input([5, 5])
    steps = {each.name: np.zeros((10, *each.shape), each.dtype) for each in schema.fields}
    store.write_part("p", steps, part["episodes"])
    message = rf"{named}.*; models learn from vectors, of shape \(N,\), not from images"
    with pytest.raises(ValueError, match=message):
        train(TrainConfig(held_out_fraction=0.5), store.select(), tmp_path / "run")


@pytest.mark.parametrize("episodes", [1, 2, 12])
def test_of_few_episodes_one_is_held_out_or_none(episodes: int, tmp_path: Path) -> None:
    few = make_selection(tmp_path / "few.zarr", episodes=episodes)
    config = replace(SHORT, held_out_fraction=0.001)
    split = split_episodes(config, few)
    assert len(split.train) + len(split.held_out or ()) == episodes
    assert (split.held_out is None) == (episodes == 1)
    assert "held_out_fraction 0.001 of" in split_note(config, few)
    assert split_note(replace(config, held_out_fraction=0.0), few) == ""
    trained = train(config, few, tmp_path / "run")
    assert (trained.validation_loss is None) == (episodes == 1)


def test_a_path_that_is_no_folder_is_refused(selection: Selection, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("something else")
    with pytest.raises(ValueError, match="cannot write a run to"):
        train(SHORT, selection, taken)
    assert taken.read_text() == "something else"


def test_learning_rate_warms_up_and_falls_to_nothing() -> None:
    config = TrainConfig(steps=100, warmup_fraction=0.2, peak_lr=1.0)
    rates = [learning_rate(step, config) for step in range(100)]
    assert rates[0] == pytest.approx(0.05)
    assert max(rates) == rates[19] == rates[20] == pytest.approx(1.0)
    assert rates[60] == pytest.approx(0.5)
    assert 0 < rates[99] < 0.001


def test_settings_outside_their_range_are_refused(selection: Selection, tmp_path: Path) -> None:
    changes: list[dict[str, Any]] = [
        *({name: 0} for name in ("steps", "window_len", "accumulate", "threads")),
        *({name: -1} for name in ("batch_size", "seed", "prefix_len")),
        *({"peak_lr": value} for value in (0.0, float("nan"))),
        *({"objective": "ppo"}, {"optimiser": "sgd"}, {"schedule": "step"}, {"device": "tpu"}),
        *({"precision": "fp8"}, {"ema_decay": 1.0}, {"grad_clip": 0.0}, {"betas": (0.9, 1.0)}),
        *({"held_out_fraction": 1.0}, {"warmup_fraction": -0.1}, {"weight_decay": -1.0}),
    ]
    for change in changes:
        with pytest.raises(ValueError, match=next(iter(change))):
            TrainConfig(**change)
    with pytest.raises(ValueError, match="hidden_dim"):
        train(replace(SHORT, model_overrides={"hidden_dim": 0}), selection, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_values_of_a_column_have_equal_shares_of_the_steps(selection: Selection) -> None:
    uneven = selection.where("skill <> 'run' or episode < 6")
    skills = uneven.episodes("skill").column("skill").to_pylist()
    config = replace(SHORT, equal_shares="skill").settled(None)
    stream, steps = open_stream(config, uneven, Ranks(), 0), dict.fromkeys(skills, 0)
    for _ in range(10):
        for batch in stream:
            pairs = zip(batch["episode"].tolist(), batch["mask"].sum(1).tolist(), strict=True)
            for episode, count in pairs:
                steps[skills[episode]] += count
    stream.close()
    assert len(steps) == 3
    assert max(steps.values()) < 1.05 * min(steps.values())
    with pytest.raises(ValueError, match="unknown column 'horse'"):
        open_stream(replace(config, equal_shares="horse"), uneven, Ranks(), 0)
