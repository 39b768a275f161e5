"""Training from demonstrations: imitation first, then what the actor's own episodes teach."""

import json
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium_robotics")

from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.episodes import evaluate
from gaitforge.plugins.gym.experts import load_actor, policies_folder
from gaitforge.plugins.gym.training.records import ReplayReader
from gaitforge.plugins.gym.training.settings import check_same
from gaitforge.plugins.gym.training.train import (
    _EVALUATION_SEED,
    train_gym,
    trained_gym_steps,
)
from recipes.adroit import on_policy
from recipes.adroit.__main__ import main
from recipes.adroit.config import AdroitConfig, recommended
from recipes.adroit.demonstrations import Demonstrations
from recipes.adroit.objectives import OBJECTIVES
from recipes.adroit.on_policy import OnPolicy, action_noise
from recipes.adroit.ppo import PPO, PPOConfig

RELOCATE = find_task("AdroitHandRelocate-v1")
SMALL = AdroitConfig(
    env=RELOCATE.env_id,
    steps=1_200,
    ppo=PPOConfig(
        hidden=8, episodes=2, imitations=1, imitation_updates=3, batch_size=200, epochs=2
    ),
    evaluate_every=400,
    evaluation_episodes=1,
    checkpoint_every_s=0.0,
)
train = partial(train_gym, learner=OnPolicy)


@pytest.fixture(autouse=True)
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two episodes of noise stand for demonstrations."""
    rng = np.random.default_rng(0)
    obs, action = (rng.standard_normal((2, 200, n), dtype=np.float32) for n in (39, 30))
    made = Demonstrations(obs, np.tanh(action), rng.random((2, 200), dtype=np.float32))
    monkeypatch.setattr(on_policy, "demonstrate", lambda config, out: made)


def nothing(row: dict[str, Any]) -> None:
    """Report to nobody."""


def test_the_actor_imitates_first_and_then_learns_from_its_own_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[str] = []
    imitate, update = PPO.imitate, PPO.update

    def imitating(self: PPO, *arguments: Any) -> None:
        learned.append("imitation")
        imitate(self, *arguments)

    def updating(self: PPO, rollout: Any, generator: torch.Generator, actor: bool = True) -> None:
        learned.append("actor" if actor else "values")
        assert rollout.reward.shape == (200, 2)
        update(self, rollout, generator, actor)

    monkeypatch.setattr(PPO, "imitate", imitating)
    monkeypatch.setattr(PPO, "update", updating)
    train(SMALL, tmp_path, nothing)
    assert learned == ["imitation"] * 3 + ["values", "actor", "actor"]


@pytest.mark.slow
def test_what_is_kept_has_the_densities_of_its_actions_and_acts_as_evaluated(
    tmp_path: Path,
) -> None:
    told: list[dict[str, Any]] = []
    train(SMALL, tmp_path, told.append)
    reader = ReplayReader(tmp_path, 1_200, 39, 30)
    episodes = reader.episodes(1_200)
    assert episodes.lengths.tolist() == [200] * 6
    assert episodes.truncated.all()
    rows = reader.read(400, 800)
    # Those of the second round are of the actor that the first one left.
    actor = load_actor(tmp_path / "snapshots" / "400.safetensors", "kept", RELOCATE)
    mean = np.arctanh(np.clip(actor.mean(rows["obs"]), -1 + 1e-6, 1 - 1e-6))
    deviations = action_noise(RELOCATE.env_id, 30, SMALL.noise)
    noise = (np.arctanh(rows["action"]) - mean) / deviations
    assert noise.std() == pytest.approx(1.0, abs=0.05)
    _, density = actor.sample(rows["obs"], noise.astype(np.float32))
    np.testing.assert_allclose(rows["log_prob"], density, rtol=1e-2, atol=0.2)
    last = load_actor(tmp_path / "snapshots" / "1200.safetensors", "kept", RELOCATE)
    with closing(TaskBatch(RELOCATE, 1)) as batch:
        [episode] = evaluate(last, batch, [_EVALUATION_SEED])
    assert episode.episode_return == pytest.approx(told[-1]["return"], rel=1e-3)


class Interrupted(Exception):
    """Stands for whatever ends a process."""


@pytest.mark.slow
def test_an_interrupted_training_goes_on_with_the_next_round(tmp_path: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["steps"] == 800:
            raise Interrupted

    with pytest.raises(Interrupted):
        train(SMALL, tmp_path, stop)
    assert trained_gym_steps(tmp_path) == 400
    seen: list[int] = []
    train(replace(SMALL, steps=1_300), tmp_path, lambda row: seen.append(row["steps"]))
    assert seen == [800, 1_200, 1_600], "the last round is a whole one"
    assert ReplayReader(tmp_path, 1_600, 39, 30).episodes(1_600).lengths.tolist() == [200] * 8
    strength = float(action_noise(RELOCATE.env_id, 30, SMALL.noise).mean())
    history = [json.loads(line) for line in (tmp_path / "history.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in history] == [400, 800, 1_200, 1_600]
    assert all(row["noise"] == pytest.approx(strength, rel=0.1) for row in history)


@pytest.mark.parametrize("env_id", OBJECTIVES)
def test_an_arm_shakes_less_than_the_hand(env_id: str) -> None:
    with closing(TaskBatch(find_task(env_id), 1)) as batch:
        model = batch._envs[0].unwrapped.model
        noise = action_noise(env_id, batch.act_dim, 0.1)
    moves_the_hand = np.array([model.actuator(k).name.startswith("A_AR") for k in range(model.nu)])
    assert (noise[moves_the_hand] < 0.05).all()
    np.testing.assert_allclose(noise[~moves_the_hand], 0.1, rtol=1e-6)


@pytest.mark.parametrize("env_id", OBJECTIVES)
def test_the_settings_are_those_of_the_shipped_policies(env_id: str) -> None:
    folder = policies_folder(env_id)
    recorded = json.loads((folder / "recipe.json").read_text())["training"]
    check_same(recommended(env_id), recorded, folder)


def test_a_wrong_setting_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["AdroitHandPen-v1", "--out", str(tmp_path)]) == 2
    assert "no planner for AdroitHandPen-v1; allowed: " in capsys.readouterr().err
