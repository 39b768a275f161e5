"""Demonstrations: what counts, what a stop leaves, and what a training makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("gymnasium_robotics")

from collectors.gym.demonstrations import Demonstrations, demonstrate
from collectors.gym.planner import Planner, PlannerConfig
from collectors.gym.replay import ReplayReader
from collectors.gym.sac import SAC, SACConfig
from collectors.gym.tasks import find_task
from collectors.gym.training import GymTrainingConfig, open_demonstrations, train_gym
from tests.collectors.gym.making import make_training

RELOCATE = find_task("AdroitHandRelocate-v1")
HAMMER = find_task("AdroitHandHammer-v1")
POOR = PlannerConfig(horizon=4, knots=2, samples=2, rounds=1)


@contextmanager
def opened(out: Path, env_id: str = RELOCATE.env_id, seed: int = 0) -> Iterator[Demonstrations]:
    with closing(Demonstrations(find_task(env_id), out, 10, seed, POOR)) as demonstrations:
        yield demonstrations


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A training's folder with the demonstrations of a random policy, said to have succeeded."""
    made = make_training(tmp_path / "made", RELOCATE.env_id, rows=370)
    out = tmp_path / "training"
    out.mkdir()
    (made / "replay.f32").rename(out / "demonstrations.f32")
    attempts = [
        {"seed": k, "led": 0, "return": -5.0, "success": k != 1, "rows": 200 * (k != 1)}
        for k in range(3)
    ]
    settings = {"env": RELOCATE.env_id, "seed": 0, "planner": asdict(POOR)}
    (out / "demonstrations.json").write_text(json.dumps({**settings, "attempts": attempts}))
    return out


def config(**changes: object) -> GymTrainingConfig:
    sac = SACConfig(hidden=8, batch_size=8, layer_norm=True, entropy_in_values=False, imitation=1)
    plain = GymTrainingConfig(
        env=RELOCATE.env_id, steps=230, random_steps=20, demonstrations=2, planner=POOR,
        evaluate_every=230, evaluation_episodes=1, checkpoint_every=230, sac=sac,
    )  # fmt: skip
    return replace(plain, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_a_planned_episode_drives_the_nail_in(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    with closing(Demonstrations(HAMMER, tmp_path, 3)) as demonstrations:
        demonstrate(demonstrations, 1, lambda n, note: told.append((n, note)))
        assert sum(n for n, _ in told) == demonstrations.successes == 1
        drawn = demonstrations.buffer.draw(500, np.random.default_rng(0))
    # 100 a step once the nail is in; D4RL's expert returns 12,794.
    assert drawn["reward"].mean() * 200 > 5000
    assert np.abs(drawn["action"]).max() <= 1.0
    reader = ReplayReader(tmp_path, 200, 46, 26, "demonstrations.f32")
    [length] = reader.episodes(200).lengths
    assert length == 200, "each observation is the one that the step before led to"


def test_what_fails_does_not_count_and_a_stop_costs_one_episode(tmp_path: Path) -> None:
    def stop(n: int, note: str) -> None:
        raise KeyboardInterrupt

    complaint = "only 0 of 3 planned episodes succeeded"
    with opened(tmp_path / "whole", seed=5) as whole, pytest.raises(ValueError, match=complaint):
        demonstrate(whole, 1)
    with opened(tmp_path / "cut", seed=5) as cut, pytest.raises(KeyboardInterrupt):
        demonstrate(cut, 1, stop)
    with opened(tmp_path / "cut", seed=5) as again:
        assert (again.attempts, again.successes, again.buffer.rows) == (1, 0, 0)
        with pytest.raises(ValueError, match=complaint):
            demonstrate(again, 1)
    whole_record, cut_record = (
        (tmp_path / name / "demonstrations.json").read_text() for name in ("whole", "cut")
    )
    assert cut_record == whole_record


def test_only_the_planners_steps_of_a_success_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    led: list[np.ndarray] = []

    def lead(obs: np.ndarray) -> np.ndarray:
        led.append(obs)
        return np.full(30, 0.25, np.float32)

    def act(self: Planner) -> np.ndarray:
        # It goes on from where the policy had the hand.
        assert np.all(self._plan == 0.25)
        return self._plan[0].astype(np.float32)

    monkeypatch.setattr(Planner, "act", act)
    with opened(tmp_path, seed=1) as demonstrations:
        inner = demonstrations._planner.env
        step = inner.step

        def succeeding(action: np.ndarray) -> tuple:
            obs, reward, terminated, truncated, info = step(action)
            return obs, reward, terminated, truncated, {**info, "success": True}

        monkeypatch.setattr(inner, "step", succeeding)
        attempt = demonstrations.plan(lead)
        assert 0 < len(led) == attempt["led"] < 100
        assert attempt["rows"] == demonstrations.buffer.rows == 200 - len(led)
        kept = demonstrations.buffer.draw(2000, np.random.default_rng(0))["obs"]
    assert not {row.tobytes() for row in kept} & {row.tobytes() for row in led}


def test_what_is_there_is_not_planned_again_nor_taken_for_another(shown: Path) -> None:
    record = (shown / "demonstrations.json").read_bytes()
    with opened(shown) as demonstrations:
        demonstrate(demonstrations, 2)
        assert (demonstrations.attempts, demonstrations.successes) == (3, 2)
    assert (shown / "demonstrations.json").read_bytes() == record
    for env_id, seed in [(HAMMER.env_id, 0), (RELOCATE.env_id, 1)]:
        with (
            pytest.raises(ValueError, match="has demonstrations of other settings"),
            opened(shown, env_id, seed),
        ):
            pass
    with pytest.raises(ValueError, match="has demonstrations of other settings"):
        Demonstrations(RELOCATE, shown, 10)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"env": "AdroitHandPen-v1"},
            "no demonstrations of AdroitHandPen-v1; a planner knows AdroitHandDoor-v1",
        ),
        ({"demonstrations": 0, "corrections": 1}, "corrections need demonstrations to begin with"),
        ({"correct_every": 0}, "correct_every must be at least 1, got 0"),
    ],
)
def test_demonstrations_that_cannot_be_are_refused(
    changes: dict[str, object], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        config(**changes)


def test_a_training_learns_from_them_and_keeps_them_out_of_its_own_buffer(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(shown) as demonstrations:
        stored = demonstrations.buffer.draw(5000, np.random.default_rng(0))["obs"]
    known = {row.tobytes() for row in stored}
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


def test_the_planner_takes_over_from_the_policy_now_and_then(shown: Path) -> None:
    corrected = config(corrections=2, correct_every=100)
    train_gym(corrected, shown, lambda row: None)
    attempts = json.loads((shown / "demonstrations.json").read_text())["attempts"]
    assert len(attempts) == 3 + 2 * 2
    assert all(attempt["led"] for attempt in attempts[3:])
    with closing(open_demonstrations(corrected, shown)) as demonstrations:
        assert demonstrations.attempts == 7


def test_a_training_without_its_demonstrations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has not all of its 2 demonstrations"):
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
