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

from collectors.gym.batch import TaskBatch
from collectors.gym.demonstrations import Demonstrations, demonstrate
from collectors.gym.evaluation import evaluate
from collectors.gym.experts import load_actor
from collectors.gym.networks import Actor
from collectors.gym.observation_scale import ObservationScale
from collectors.gym.planner import Planner, PlannerConfig, Reference
from collectors.gym.recommended import recommended_training
from collectors.gym.replay import ReplayReader
from collectors.gym.sac import SAC, SACConfig
from collectors.gym.tasks import find_task
from collectors.gym.training import _EVALUATION_SEED, GymTrainingConfig, train_gym
from tests.collectors.gym.making import make_training

RELOCATE = find_task("AdroitHandRelocate-v1")
HAMMER = find_task("AdroitHandHammer-v1")
POOR = PlannerConfig(horizon=4, knots=2, samples=2, rounds=1)


@contextmanager
def opened(
    out: Path, env_id: str = RELOCATE.env_id, count: int = 2, free: int = 1, seed: int = 0
) -> Iterator[Demonstrations]:
    task = find_task(env_id)
    with closing(Demonstrations(task, out, count, free, seed, POOR)) as demonstrations:
        yield demonstrations


def succeed_always(
    demonstrations: Demonstrations,
    monkeypatch: pytest.MonkeyPatch,
    rewards: list[float] | None = None,
) -> None:
    """Every step is a success; of each episode that is planned, with the next of these rewards."""
    env = demonstrations._planner.env
    step, play = env.step, demonstrations._play
    given: list[float] = []

    def succeeding(action: np.ndarray) -> tuple:
        obs, reward, terminated, truncated, info = step(action)
        reward = given[-1] if given else reward + 1.0
        return obs, reward, terminated, truncated, {**info, "success": True}

    def playing(seed: int, reference: Reference | None) -> tuple:
        if rewards:
            given.append(rewards.pop(0))
        return play(seed, reference)

    monkeypatch.setattr(env, "step", succeeding)
    monkeypatch.setattr(demonstrations, "_play", playing)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    """A training's folder with the demonstrations of a random policy, said to have succeeded."""
    made = make_training(tmp_path / "made", RELOCATE.env_id, rows=370)
    out = tmp_path / "training"
    out.mkdir()
    (made / "replay.f32").rename(out / "demonstrations.f32")
    attempts = [
        {"seed": k, "return": 5.0, "first_success": 150, "counts": k != 1} for k in range(3)
    ]
    settings = {"env": RELOCATE.env_id, "seed": 0, "free": 1, "planner": asdict(POOR)}
    (out / "demonstrations.json").write_text(json.dumps({**settings, "attempts": attempts}))
    return out


def config(**changes: object) -> GymTrainingConfig:
    sac = SACConfig(hidden=8, batch_size=8, layer_norm=True, entropy_in_values=False, imitation=1)
    plain = GymTrainingConfig(
        env=RELOCATE.env_id, steps=230, random_steps=20, demonstrations=2, free_demonstrations=1,
        planner=POOR, evaluate_every=230, evaluation_episodes=1, checkpoint_every=230, sac=sac,
    )  # fmt: skip
    return replace(plain, **changes)  # pyright: ignore[reportArgumentType]


@pytest.mark.slow
def test_planned_episodes_drive_the_nail_in_and_are_alike(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    config = recommended_training(HAMMER.env_id).planner
    with closing(Demonstrations(HAMMER, tmp_path, 2, 1, config=config)) as demonstrations:
        demonstrate(demonstrations, lambda n, note: told.append((n, note)))
        assert demonstrations.counted == 2
        assert sum(n for n, _ in told) == 3, "two that look for a reference, one that follows it"
        rewards = demonstrations.buffer.all("reward").reshape(2, 200)
        first, second = demonstrations.buffer.all("action").reshape(2, 200, 26)
    # 100 a step once the nail is in; D4RL's expert returns 12,794.
    assert rewards.sum(axis=1).min() > 5000
    assert np.abs(first).max() <= 1.0
    # Of two that were planned freely it is 0.41; of two that follow a good reference, 0.9 and more.
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.55
    reader = ReplayReader(tmp_path, 400, 46, 26, "demonstrations.f32")
    lengths = reader.episodes(400).lengths
    assert lengths.tolist() == [200, 200], "an observation is what the step before led to"


def test_what_fails_does_not_count_and_a_stop_costs_one_episode(tmp_path: Path) -> None:
    def stop(n: int, note: str) -> None:
        raise KeyboardInterrupt

    complaint = "none of 4 planned episodes of AdroitHandRelocate-v1 succeeded"
    with opened(tmp_path / "whole", free=2) as whole, pytest.raises(ValueError, match=complaint):
        demonstrate(whole)
    with opened(tmp_path / "cut", free=2) as cut, pytest.raises(KeyboardInterrupt):
        demonstrate(cut, stop)
    with opened(tmp_path / "cut", free=2) as again:
        assert (again.attempts, again.counted, again.buffer.rows) == (1, 0, 0)
        with pytest.raises(ValueError, match=complaint):
            demonstrate(again)
    whole_record, cut_record = (
        (tmp_path / name / "demonstrations.json").read_text() for name in ("whole", "cut")
    )
    assert cut_record == whole_record


def test_the_best_episode_so_far_is_what_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[bytes] = []

    def follows(self: Planner, seed: int, reference: Reference | None = None) -> np.ndarray:
        followed.append(b"" if reference is None else reference.actions[:30].tobytes())
        return reset(self, seed, reference)

    reset = Planner.reset
    rewards = [3.0, 5.0, 8.0, 7.0, 8.5, 6.0, 7.5]
    monkeypatch.setattr(Demonstrations, "_distances", lambda self, seed, actions: np.zeros(200))
    best = []
    with opened(tmp_path, count=3, free=2, seed=1) as demonstrations:
        succeed_always(demonstrations, monkeypatch, rewards)
        monkeypatch.setattr(Planner, "reset", follows)
        for _ in range(4):
            demonstrations.plan()
            best.append(demonstrations.buffer.all("action")[:30].copy().tobytes())
        assert demonstrations.buffer.all("reward")[:, 0].tolist() == [8.0] * 200
        assert (demonstrations.counted, demonstrations.episodes_left) == (1, 2)
    assert followed == [b"", b"", best[1], best[2]]
    assert best[2] == best[3] != best[1]
    with opened(tmp_path, count=3, free=2, seed=1) as demonstrations:
        monkeypatch.setattr(Planner, "reset", reset)
        succeed_always(demonstrations, monkeypatch, rewards)
        monkeypatch.setattr(Planner, "reset", follows)
        demonstrate(demonstrations)
        kept = demonstrations.buffer.all("reward")[:, 0]
    assert followed[4:] == [best[3]] * 3
    assert kept.tolist() == [8.0] * 200 + [8.5] * 200 + [7.5] * 200, "6 is less than 80 % of 8"


def test_what_is_there_is_not_planned_again_nor_taken_for_another(
    shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = (shown / "demonstrations.json").read_bytes()
    with opened(shown) as demonstrations:
        demonstrate(demonstrations)
        assert (demonstrations.attempts, demonstrations.counted) == (3, 2)
    assert (shown / "demonstrations.json").read_bytes() == record
    for env_id, seed in [(HAMMER.env_id, 0), (RELOCATE.env_id, 1)]:
        with (
            pytest.raises(ValueError, match="has demonstrations of other settings"),
            opened(shown, env_id, seed=seed),
        ):
            pass
    with pytest.raises(ValueError, match="has demonstrations of other settings"):
        Demonstrations(RELOCATE, shown, 2, 1)
    with opened(shown, count=9) as demonstrations:
        monkeypatch.setattr(Planner, "act", lambda self: np.zeros(30, np.float32))
        with pytest.raises(ValueError, match="only 2 of 30 planned episodes count"):
            demonstrate(demonstrations)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        (
            {"env": "AdroitHandPen-v1"},
            "no demonstrations of AdroitHandPen-v1; a planner knows AdroitHandDoor-v1",
        ),
        ({"demonstrations": -1}, "demonstrations must be at least 0, got -1"),
        ({"free_demonstrations": 0}, "free_demonstrations must be at least 1, got 0"),
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
        scale = ObservationScale.of(demonstrations.buffer.all("obs"))
        stored = scale(torch.from_numpy(demonstrations.buffer.all("obs").copy())).numpy()
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
    own = torch.from_numpy(ReplayReader(shown, 230, 39, 30).read(0, 230)["obs"])
    assert not {row.tobytes() for row in scale(own).numpy()} & known


def test_what_is_kept_acts_on_plain_observations_as_it_was_evaluated(shown: Path) -> None:
    rows = []
    train_gym(config(), shown, rows.append)
    actor = load_actor(shown / "snapshots" / "230.safetensors", "kept", RELOCATE)
    with closing(TaskBatch(RELOCATE, 1)) as batch:
        [episode] = evaluate(actor, batch, [_EVALUATION_SEED])
    assert episode.episode_return == pytest.approx(rows[-1]["return"], rel=1e-3)


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


def test_a_scale_goes_into_the_first_layer() -> None:
    generator = torch.Generator().manual_seed(0)
    obs = torch.randn((50, 3), generator=generator) * torch.tensor([2.0, 0.5, 0.0]) + 4.0
    scale = ObservationScale.of(obs.numpy())
    torch.testing.assert_close(scale(obs).mean(0), torch.zeros(3), atol=1e-4, rtol=0)
    assert scale(obs).std(0).tolist() == pytest.approx([1.0, 1.0, 0.0], abs=0.04)
    actor, plain = Actor(3, 2, 8), Actor(3, 2, 8)
    plain.load_state_dict(scale.weights_for_unscaled(actor))
    with torch.no_grad():
        for mine, its in zip(actor(scale(obs)), plain(obs), strict=True):
            torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)
        unchanged = ObservationScale.unchanged(3)
        for name, value in unchanged.weights_for_unscaled(actor).items():
            assert torch.equal(value, actor.state_dict()[name])
        assert torch.equal(unchanged(obs), obs)
