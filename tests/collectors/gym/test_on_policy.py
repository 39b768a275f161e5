"""Training from demonstrations: imitation first, then what the actor's own episodes teach."""

import json
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium_robotics")

from gaitforge.collectors.gym.algorithms.action_noise import action_noise
from gaitforge.collectors.gym.algorithms.ppo import PPO, PPOConfig
from gaitforge.collectors.gym.algorithms.replay import ReplayReader
from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.evaluation import evaluate
from gaitforge.collectors.gym.experts import load_actor
from gaitforge.collectors.gym.planning.mppi import PlannerConfig
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.config import GymTrainingConfig
from gaitforge.collectors.gym.training.training import (
    _EVALUATION_SEED,
    train_gym,
    trained_gym_steps,
)
from tests.collectors.gym.making import make_demonstrations

RELOCATE = find_task("AdroitHandRelocate-v1")
POOR = PlannerConfig(horizon=4, knots=2, samples=2, rounds=1)
SMALL = GymTrainingConfig(
    env=RELOCATE.env_id,
    steps=1_200,
    demonstrations=2,
    free_demonstrations=1,
    planner=POOR,
    ppo=PPOConfig(
        hidden=8, episodes=2, imitations=1, imitation_updates=3, batch_size=200, epochs=2
    ),
    evaluate_every=400,
    evaluation_episodes=1,
    checkpoint_every_s=0.0,
)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    return make_demonstrations(tmp_path, RELOCATE.env_id, POOR)


def nothing(row: dict[str, Any]) -> None:
    """Report to nobody."""


def test_the_actor_imitates_first_and_then_learns_from_its_own_whole_episodes(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learned: list[str] = []
    history: list[dict[str, Any]] = []
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
    train_gym(SMALL, shown, history.append)
    assert learned == ["imitation"] * 3 + ["values", "actor", "actor"]

    reader = ReplayReader(shown, 1_200, 39, 30)
    episodes = reader.episodes(1_200)
    assert episodes.lengths.tolist() == [200] * 6
    assert episodes.truncated.all()
    rows = reader.read(400, 800)
    # Those of the second round are of the actor that the first one left.
    actor = load_actor(shown / "snapshots" / "400.safetensors", "kept", RELOCATE)
    mean = np.arctanh(np.clip(actor.mean(rows["obs"]), -1 + 1e-6, 1 - 1e-6))
    deviations = action_noise(RELOCATE, 30, SMALL.noise)
    noise = (np.arctanh(rows["action"]) - mean) / deviations
    assert noise.std() == pytest.approx(1.0, abs=0.05)
    _, density = actor.sample(rows["obs"], noise.astype(np.float32))
    np.testing.assert_allclose(rows["log_prob"], density, rtol=1e-2, atol=0.2)

    # What is kept acts on plain observations as it was evaluated.
    kept = load_actor(shown / "snapshots" / "1200.safetensors", "kept", RELOCATE)
    with closing(TaskBatch(RELOCATE, 1)) as batch:
        [episode] = evaluate(kept, batch, [_EVALUATION_SEED])
    assert episode.episode_return == pytest.approx(history[-1]["return"], rel=1e-3)


class Interrupted(Exception):
    """Stands for whatever ends a process."""


def test_an_interrupted_training_goes_on_with_the_next_round(shown: Path) -> None:
    def stop(row: dict[str, Any]) -> None:
        if row["steps"] == 800:
            raise Interrupted

    with pytest.raises(Interrupted):
        train_gym(SMALL, shown, stop)
    assert trained_gym_steps(shown) == 400
    seen: list[int] = []
    train_gym(replace(SMALL, steps=1_300), shown, lambda row: seen.append(row["steps"]))
    assert seen == [800, 1_200, 1_600], "the last round is a whole one"
    assert trained_gym_steps(shown) == 1_600
    assert ReplayReader(shown, 1_600, 39, 30).episodes(1_600).lengths.tolist() == [200] * 8
    history = [json.loads(line) for line in (shown / "history.jsonl").read_text().splitlines()]
    assert [row["steps"] for row in history] == [400, 800, 1_200, 1_600]
    strength = float(action_noise(RELOCATE, 30, SMALL.noise).mean())
    assert all(row["noise"] == pytest.approx(strength, rel=0.1) for row in history)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"env": "AdroitHandPen-v1"},
            "no planner for AdroitHandPen-v1; allowed: AdroitHandDoor-v1",
        ),
        ({"demonstrations": -1}, "demonstrations must be at least 0, got -1"),
        ({"free_demonstrations": 0}, "free_demonstrations must be at least 1, got 0"),
        ({"noise": 0.0}, "noise must lie in"),
    ],
)
def test_demonstrations_that_cannot_be_or_are_not_there_are_refused(
    changes: dict[str, object], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="lacks some of its 2 demonstrations"):
        train_gym(SMALL, tmp_path, nothing)
    with pytest.raises(ValueError, match=complaint):
        replace(SMALL, **changes)  # pyright: ignore[reportArgumentType]
