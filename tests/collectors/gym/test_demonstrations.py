"""Demonstrations: what counts, what a stop leaves, and what a training makes of them."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium_robotics")

from collectors.gym.demonstrations import (
    demonstrate,
    demonstrations_done,
    open_demonstrations,
)
from collectors.gym.planner import PlannerConfig
from collectors.gym.replay import ReplayReader
from collectors.gym.sac import SAC, SACConfig
from collectors.gym.tasks import find_task
from collectors.gym.training import GymTrainingConfig, train_gym
from tests.collectors.gym.making import make_training

RELOCATE = find_task("AdroitHandRelocate-v1")
HAMMER = find_task("AdroitHandHammer-v1")
POOR = PlannerConfig(horizon=4, knots=2, samples=2, rounds=1)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A training's folder with the demonstrations of a random policy, said to have succeeded."""
    made = make_training(tmp_path / "made", RELOCATE.env_id, rows=370)
    out = tmp_path / "training"
    out.mkdir()
    (made / "replay.f32").rename(out / "demonstrations.f32")
    attempts = [{"seed": k, "return": -5.0, "success": k != 1} for k in range(3)]
    config = {"env": RELOCATE.env_id, "seed": 0, "planner": asdict(PlannerConfig())}
    (out / "demonstrations.json").write_text(json.dumps({**config, "attempts": attempts}))
    return out


def config(**changes: object) -> GymTrainingConfig:
    sac = SACConfig(hidden=8, batch_size=8, layer_norm=True, entropy_in_values=False, imitation=1)
    plain = GymTrainingConfig(
        env=RELOCATE.env_id, steps=230, random_steps=20, demonstrations=2, evaluate_every=230,
        evaluation_episodes=1, checkpoint_every=230, sac=sac,
    )  # fmt: skip
    return replace(plain, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_planned_episode_drives_the_nail_in(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    demonstrate(HAMMER, 1, tmp_path, progress=lambda n, note: told.append((n, note)))
    assert sum(n for n, _ in told) == demonstrations_done(tmp_path) == 1
    rows = open_demonstrations(HAMMER, tmp_path, 46, 26)
    assert rows.rows == 200
    drawn = rows.draw(500, np.random.default_rng(0))
    # 100 a step once the nail is in; D4RL's expert returns 12,794.
    assert drawn["reward"].mean() * 200 > 5000
    assert np.abs(drawn["action"]).max() <= 1.0
    reader = ReplayReader(tmp_path, 200, 46, 26, "demonstrations.f32")
    [length] = reader.episodes(200).lengths
    assert length == 200, "each observation is the one that the step before led to"


def test_what_fails_does_not_count_and_a_stop_costs_one_episode(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="only 0 of 3 planned episodes of AdroitHandRelocate-v1"):
        demonstrate(RELOCATE, 1, tmp_path / "whole", seed=5, config=POOR)
    whole = json.loads((tmp_path / "whole" / "demonstrations.json").read_text())

    def stop(n: int, note: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        demonstrate(RELOCATE, 1, tmp_path / "cut", seed=5, config=POOR, progress=stop)
    assert demonstrations_done(tmp_path / "cut") == 0
    with pytest.raises(ValueError, match="only 0 of 3"):
        demonstrate(RELOCATE, 1, tmp_path / "cut", seed=5, config=POOR)
    assert json.loads((tmp_path / "cut" / "demonstrations.json").read_text()) == whole
    with pytest.raises(ValueError, match="no demonstrations in"):
        open_demonstrations(RELOCATE, tmp_path / "cut", 39, 30)


def test_what_is_there_is_not_planned_again_nor_taken_for_another(shown: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in shown.iterdir()}
    demonstrate(RELOCATE, 2, shown)
    assert {path: path.stat().st_mtime_ns for path in shown.iterdir()} == before
    for task, seed, planner in [(HAMMER, 0, None), (RELOCATE, 1, None), (RELOCATE, 0, POOR)]:
        with pytest.raises(ValueError, match="has demonstrations of other settings"):
            demonstrate(task, 2, shown, seed, planner)


def test_only_tasks_that_a_planner_knows_have_demonstrations(tmp_path: Path) -> None:
    complaint = "no demonstrations of AdroitHandPen-v1; a planner knows AdroitHandDoor-v1"
    with pytest.raises(ValueError, match=complaint):
        demonstrate(find_task("AdroitHandPen-v1"), 1, tmp_path)
    with pytest.raises(ValueError, match=complaint):
        GymTrainingConfig(env="AdroitHandPen-v1", demonstrations=1)


def test_a_training_learns_from_them_and_keeps_them_out_of_its_own_buffer(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = open_demonstrations(RELOCATE, shown, 39, 30)
    known = {row.tobytes() for row in stored.draw(5000, np.random.default_rng(0))["obs"]}
    assert len(known) == 400
    batches: list[tuple[np.ndarray, int]] = []
    update = SAC.update

    def listening(
        self: SAC, batch: dict[str, torch.Tensor], generator: torch.Generator, imitated: int = 0
    ) -> None:
        batches.append((batch["obs"].numpy(), imitated))
        update(self, batch, generator, imitated)

    monkeypatch.setattr(SAC, "update", listening)
    train_gym(config(), shown, lambda row: None)
    for obs, imitated in batches:
        assert (len(obs), imitated) == (8, 4)
        assert [row.tobytes() in known for row in obs] == [False] * 4 + [True] * 4
    own = ReplayReader(shown, 230, 39, 30).read(0, 230)
    assert not {row.tobytes() for row in own["obs"]} & known


def test_a_training_without_its_demonstrations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no demonstrations in"):
        train_gym(config(), tmp_path, lambda row: None)


def test_the_actor_comes_to_imitate_those_rows_and_no_others() -> None:
    generator = torch.Generator().manual_seed(0)
    sac = SAC(
        SACConfig(hidden=32, batch_size=64, imitation=3.0, learning_rate=3e-3, temperature=0.01),
        obs_dim=2, act_dim=1, seed=0,
    )  # fmt: skip
    obs = torch.rand((64, 2), generator=generator)
    action = torch.where(torch.arange(64) < 32, -0.8, 0.6)[:, None]
    zeros = torch.zeros(64)
    batch = {"obs": obs, "next_obs": obs, "action": action, "reward": zeros, "terminated": zeros}
    for _ in range(300):
        sac.update(batch, generator, imitated=32)
    with torch.no_grad():
        mean, _ = sac.actor(obs)
    assert mean.tanh().mean().item() == pytest.approx(0.6, abs=0.1)
