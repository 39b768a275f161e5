"""Training an expert: tiny, resumed, exported."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from collectors.commands import SKILLS
from collectors.experts import FEATURE_DIM, ExpertPolicy, load_expert
from collectors.ppo import ExpertTask, ExpertTrainingConfig, train_expert
from collectors.terrains import TERRAINS
from tests.collectors.making import ROBOT

PER_UPDATE = 64 * 24
TINY = ExpertTrainingConfig(
    steps=2 * PER_UPDATE,
    robots=64,
    horizon=24,
    epochs=1,
    mini_batches=2,
    hidden=(16, 8),
    threads=1,
    checkpoint_every=1,
)


@dataclass
class Trained:
    """What a first training of two updates and a second that goes on to three have left."""

    folder: Path
    weights: Path
    card: dict[str, Any]
    first: list[dict[str, Any]] = field(default_factory=list)
    second: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("expert")
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    train_expert(TINY, folder, first.append)
    weights, card = train_expert(replace(TINY, steps=3 * PER_UPDATE), folder, second.append)
    return Trained(folder, weights, card, first, second)


def test_training_reports_every_update(trained: Trained) -> None:
    assert [s["steps"] for s in trained.first] == [PER_UPDATE, 2 * PER_UPDATE]
    for summary in trained.first:
        assert summary["steps_per_s"] > 0
        assert all(np.isfinite(value) for value in summary["losses"].values())


def test_training_goes_on_where_it_stopped(trained: Trained) -> None:
    assert [s["steps"] for s in trained.second] == [3 * PER_UPDATE]
    assert [s["iteration"] for s in trained.second] == [3]
    record = json.loads((trained.folder / "training.json").read_text())
    assert (record["iteration"], record["steps"]) == (3, 3 * PER_UPDATE)
    assert [p.name for p in trained.folder.glob("training-*")] == [record["tensors"]]


def test_a_finished_training_returns_at_once(trained: Trained) -> None:
    again: list[dict[str, Any]] = []
    weights, _ = train_expert(replace(TINY, steps=3 * PER_UPDATE), trained.folder, again.append)
    assert again == []
    assert weights == trained.weights


def test_the_card_says_what_was_trained(trained: Trained) -> None:
    assert trained.card["steps"] == 3 * PER_UPDATE
    assert trained.card["robot"] == "aliengo"
    assert set(trained.card["skills"]) == set(SKILLS)
    assert set(trained.card["terrains"]) == set(TERRAINS)
    assert trained.card["wall_s"] > 0
    assert trained.card["training"]["hidden"] == (16, 8)


class Actor(torch.nn.Module):
    """The actor of a checkpoint, built from its tensors alone."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        super().__init__()
        actor = {k.removeprefix("actor."): torch.from_numpy(v) for k, v in tensors.items()}
        self.mean, self.std = actor["obs_normalizer._mean"], actor["obs_normalizer._std"]
        numbers = sorted({int(k.split(".")[1]) for k in actor if k.startswith("mlp.")})
        self.layers = [(actor[f"mlp.{i}.weight"], actor[f"mlp.{i}.bias"]) for i in numbers]

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        # rsl-rl adds 0.01 to the standard deviation it divides by.
        x = (features - self.mean) / (self.std + 1e-2)
        for number, (weight, bias) in enumerate(self.layers):
            x = torch.nn.functional.linear(x, weight, bias)
            x = torch.nn.functional.elu(x) if number < len(self.layers) - 1 else x
        return x


def test_the_exported_expert_is_the_trained_actor(trained: Trained) -> None:
    record = json.loads((trained.folder / "training.json").read_text())
    actor = Actor(load_file(trained.folder / record["tensors"]))
    policy = ExpertPolicy("expert", ROBOT, load_file(trained.weights))
    features = np.random.default_rng(0).normal(0, 2, (50, FEATURE_DIM)).astype(np.float32)
    with torch.no_grad():
        expected = actor(torch.from_numpy(features)).numpy()
    np.testing.assert_allclose(policy._residual(features), expected, atol=1e-5)
    assert np.abs(expected).max() > 1e-4


def test_the_exported_expert_loads_with_its_card(trained: Trained) -> None:
    trained.weights.with_suffix(".json").write_text(json.dumps(trained.card))
    expert = load_expert(str(trained.weights))
    assert expert.card["steps"] == 3 * PER_UPDATE


@pytest.mark.parametrize(
    "changes", [{"hidden": (16, 16)}, {"robots": 32}, {"horizon": 12}], ids=lambda c: next(iter(c))
)
def test_another_configuration_in_the_folder_is_refused(
    trained: Trained, changes: dict[str, Any]
) -> None:
    before = sorted(path.name for path in trained.folder.iterdir())
    name = next(iter(changes))
    with pytest.raises(ValueError, match=f"holds a training with {name}=") as refusal:
        train_expert(replace(TINY, **changes), trained.folder, lambda summary: None)
    assert "\n" not in str(refusal.value)
    assert sorted(path.name for path in trained.folder.iterdir()) == before


def test_the_task_gives_rsl_rl_what_it_reads() -> None:
    task = ExpertTask(replace(TINY, robots=40))
    try:
        observations = task.get_observations()
        assert observations["features"].shape == (40, FEATURE_DIM)
        observations, reward, done, extras = task.step(torch.zeros(40, 12))
        assert reward.shape == done.shape == extras["time_outs"].shape == (40,)
        assert torch.isfinite(observations["features"]).all()
        assert ((task.levels >= 0) & (task.levels <= 9)).all()
    finally:
        task.close()
