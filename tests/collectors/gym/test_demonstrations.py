"""Demonstrations: what counts, what they follow, and what a stop leaves."""

import signal
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from gaitforge.collectors.gym.algorithms.replay import ReplayReader
from gaitforge.collectors.gym.planning.mppi import Planner, PlannerConfig, Reference
from gaitforge.collectors.gym.tasks import find_task
from gaitforge.collectors.gym.training.demonstrations import Demonstrations, demonstrate
from gaitforge.collectors.gym.training.recommended import recommended_training
from gaitforge.datasets.interrupts import STOPPED, Notices, Stopped
from tests.collectors.gym.making import make_demonstrations

RELOCATE = find_task("AdroitHandRelocate-v1")
DOOR = find_task("AdroitHandDoor-v1")
HAMMER = find_task("AdroitHandHammer-v1")
POOR = PlannerConfig(horizon=4, knots=2, samples=2, rounds=1)


@pytest.fixture
def shown(tmp_path: Path) -> Path:
    return make_demonstrations(tmp_path, RELOCATE.env_id, POOR)


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

    def playing(seed: int, reference: Reference, notices: Notices) -> tuple:
        if rewards:
            given.append(rewards.pop(0))
        return play(seed, reference, notices)

    monkeypatch.setattr(env, "step", succeeding)
    monkeypatch.setattr(demonstrations, "_play", playing)


@pytest.mark.long
def test_planned_episodes_open_the_door_and_are_alike(tmp_path: Path) -> None:
    told: list[tuple[int, str]] = []
    # Fewer rounds and samples than recommended open the door too.
    config = replace(recommended_training(DOOR.env_id).planner, rounds=3, samples=8)
    with closing(Demonstrations(DOOR, tmp_path, 2, 1, config=config)) as demonstrations:
        demonstrate(demonstrations, lambda n, note: told.append((n, note)))
        assert demonstrations.counted == 2
        assert sum(n for n, _ in told) == 3, "two that look for a reference, one that follows it"
        rewards = demonstrations.buffer.all("reward").reshape(2, 200)
        first, second = demonstrations.buffer.all("action").reshape(2, 200, 28)
    # 20 a step once the door is open; D4RL's expert returns 2,881.
    assert rewards.sum(axis=1).min() > 1500
    assert np.abs(first).max() <= 1.0
    # Of two that were planned freely it is -0.11; of two that follow a good reference, over 0.9.
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.55
    reader = ReplayReader(tmp_path, 400, 39, 28, "demonstrations.f32")
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


def test_a_signal_ends_planning_within_an_episode_and_keeps_the_finished_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[int] = []
    act = Planner.act

    def acting(self: Planner) -> np.ndarray:
        steps.append(len(steps))
        if len(steps) == 205:
            signal.raise_signal(signal.SIGTERM)
        return act(self)

    monkeypatch.setattr(Planner, "act", acting)
    with opened(tmp_path) as stopped, pytest.raises(Stopped) as caught:
        demonstrate(stopped)
    assert str(caught.value) == "stopped by SIGTERM after 1 planned episode"
    assert caught.value.exit_code == STOPPED
    assert len(steps) == 205
    with opened(tmp_path) as again:
        assert again.attempts == 1


@pytest.mark.parametrize("killed_at", ["write_bytes_durably", "replace_durably"])
def test_a_kill_leaves_the_reference_that_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    class Killed(Exception):
        """Stands for kill -9."""

    def kill(*_: object) -> None:
        raise Killed

    with opened(tmp_path, free=2) as demonstrations:
        succeed_always(demonstrations, monkeypatch, [3.0, 5.0])
        demonstrations.plan()
        with monkeypatch.context() as patched:
            patched.setattr(f"gaitforge.collectors.gym.training.demonstrations.{killed_at}", kill)
            with pytest.raises(Killed):
                demonstrations.plan()
    recorded = 1 if killed_at == "write_bytes_durably" else 2
    with opened(tmp_path, free=2) as again:
        assert again.attempts == recorded
        rewards = again.buffer.all("reward")[:, 0].tolist()
    assert rewards == [3.0 if recorded == 1 else 5.0] * 200
    assert {path.name for path in tmp_path.iterdir()} == {
        "demonstrations.f32",
        "demonstrations.json",
    }


def test_the_best_episode_so_far_is_what_the_others_follow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    followed: list[bytes] = []
    noises: list[int] = []

    def follows(self: Planner, seed: int, reference: Reference) -> np.ndarray:
        actions = reference.actions[:30]
        followed.append(actions.tobytes() if len(actions) > 1 else b"")
        noises.append(reference.noise)
        return reset(self, seed, reference)

    reset = Planner.reset
    rewards = [3.0, 5.0, 8.0, 7.0, 8.5, 3.9, 7.5]
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
    assert noises[0] != noises[1], "each free attempt has its own"
    assert noises[2:] == [noises[1]] * 2, "and those that follow it have the best one's"
    with opened(tmp_path, count=3, free=2, seed=1) as demonstrations:
        monkeypatch.setattr(Planner, "reset", reset)
        succeed_always(demonstrations, monkeypatch, rewards)
        monkeypatch.setattr(Planner, "reset", follows)
        demonstrate(demonstrations)
        kept = demonstrations.buffer.all("reward")[:, 0]
    assert followed[4:] == [best[3]] * 3
    assert noises[4:] == [noises[1]] * 3
    assert kept.tolist() == [8.0] * 200 + [8.5] * 200 + [7.5] * 200, "3.9 is less than half of 8"


def test_demonstrations_begin_all_over_where_the_task_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, count=9) as demonstrations:
        succeed_always(demonstrations, monkeypatch)
        demonstrate(demonstrations)
        spread = demonstrations.buffer.all("obs")[200::200, -9:].copy()
        env = demonstrations._planner.env
        drawn = np.stack([[env.reset(seed=9 * k + i)[0][-9:] for i in range(8)] for k in range(9)])

    def nearest_two(starts: np.ndarray) -> float:
        between = np.linalg.norm(starts[:, None] - starts[None], axis=-1)
        return float(between[~np.eye(len(starts), dtype=bool)].min())

    assert nearest_two(spread) > 1.2 * np.median([nearest_two(starts) for starts in drawn])
    assert len({attempt["seed"] for attempt in demonstrations._attempts}) == 10


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
    with opened(shown, count=3) as demonstrations:
        monkeypatch.setattr(Planner, "act", lambda self: np.zeros(30, np.float32))
        with pytest.raises(ValueError, match="only 2 of 12 planned episodes count"):
            demonstrate(demonstrations)
