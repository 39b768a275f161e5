"""Closed-loop evaluation on a task: which episodes it runs, and what it says of them."""

from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaitforge.collectors.policy import StoredObservation
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task, make_environment
from gaitforge.plugins.gym.episodes import evaluate, evaluation_seeds

pytest.importorskip("gymnasium")

HOPPER = find_task("Hopper-v5")


class Linear:
    """Actions linear in the observation; counts what is asked of it."""

    def __init__(self, weights: np.ndarray) -> None:
        self.weights = weights
        self.resets: Counter[int] = Counter()
        self.fresh: set[int] = set()

    def reset(self, ids: np.ndarray) -> None:
        self.resets.update(ids.tolist())
        self.fresh |= set(ids.tolist())

    def act(self, observation: StoredObservation) -> np.ndarray:
        for row in self.fresh:
            assert observation.reward[row] == 0.0, "an episode starts without a reward"
        self.fresh.clear()
        return observation.policy @ self.weights


@pytest.fixture
def batches() -> Iterator[list[TaskBatch]]:
    """Batches to close after the test."""
    opened: list[TaskBatch] = []
    yield opened
    for batch in opened:
        batch.close()


def linear(seed: int = 0, scale: float = 0.3) -> Linear:
    weights = scale * np.random.default_rng(seed).normal(size=(11, 3))
    return Linear(weights.astype(np.float32))


def alone(weights: np.ndarray, seed: int) -> tuple[float, int, bool]:
    """Return, length and whether it terminated, of an episode in Gymnasium's own loop."""
    env = make_environment(HOPPER)
    obs, _ = env.reset(seed=seed)
    total, length, terminated, truncated = 0.0, 0, False, False
    while not (terminated or truncated):
        action = np.clip(obs.astype(np.float32) @ weights, -1.0, 1.0)
        obs, reward, terminated, truncated, _ = env.step(action)
        total, length = total + float(reward), length + 1
    env.close()
    return total, length, terminated


def test_episodes_are_those_of_gymnasiums_own_loop(batches: list[TaskBatch]) -> None:
    policy, seeds, heard = linear(), evaluation_seeds(7), []
    batches.append(TaskBatch(HOPPER, 3))
    episodes = evaluate(policy, batches[0], seeds, heard.append)
    assert [episode.seed for episode in episodes] == seeds
    for episode in episodes:
        expected = alone(policy.weights, episode.seed)
        # Rewards pass through float32 on their way to the policy.
        assert episode.episode_return == pytest.approx(expected[0], rel=1e-5)
        assert (episode.length, episode.terminated) == expected[1:]
        assert episode.success is not episode.terminated
    assert sum(policy.resets.values()) == len(seeds), "a reset an episode"
    assert sum(heard) == len(seeds)


def test_actions_beyond_the_actuators_are_cut(batches: list[TaskBatch]) -> None:
    seeds = evaluation_seeds(2)
    returns = []
    for scale in (1e3, 1e6):
        batches.append(TaskBatch(HOPPER, 2))
        returns.append([e.episode_return for e in evaluate(linear(1, scale), batches[-1], seeds)])
    assert returns[0] == returns[1]


@pytest.mark.parametrize(
    ("env_id", "success"),
    [("HalfCheetah-v5", True), ("AdroitHandPen-v1", None), ("AdroitHandDoor-v1", False)],
)
def test_an_episode_at_rest_reaches_d4rls_horizon_and_succeeds_as_its_task_says(
    env_id: str, success: bool | None, batches: list[TaskBatch]
) -> None:
    pytest.importorskip("gymnasium_robotics")
    task = find_task(env_id)
    batches.append(TaskBatch(task, 1))
    still = Linear(np.zeros((batches[0].obs_dim, batches[0].act_dim), np.float32))
    (episode,) = evaluate(still, batches[0], evaluation_seeds(1))
    assert episode.length == task.facts.horizon
    assert not episode.terminated
    assert success in (episode.success, None), "a hand at rest opens no door"


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 2**31))
def test_more_episodes_begin_with_the_same_ones(few: int, more: int, seed: int) -> None:
    few, more = sorted((few, more))
    seeds = evaluation_seeds(more, seed)
    assert seeds[:few] == evaluation_seeds(few, seed)
    assert len(set(seeds)) == more
    assert min(seeds) >= 0


@pytest.mark.parametrize(("episodes", "seed"), [(0, 1), (1, -1)])
def test_impossible_evaluations_are_refused(episodes: int, seed: int) -> None:
    with pytest.raises(ValueError, match="at least 1 episode"):
        evaluation_seeds(episodes, seed)
