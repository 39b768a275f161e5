"""Demonstrations: what counts, what they follow, and what is planned again."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.registry import evaluation_of
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.evaluation import GymEvaluation
from gaitforge.plugins.gym.task import GymPlan
from recipes.adroit import demonstrations
from recipes.adroit.config import AdroitConfig, recommended
from recipes.adroit.demonstrations import Episode, demonstrate, play
from recipes.adroit.mppi import Planner, PlannerConfig, Reference
from recipes.adroit.objectives import OBJECTIVES
from recipes.adroit.sets import AdroitSets

POOR = PlannerConfig(horizon=4, knots=2, samples=2, rounds=1)
SMALL = AdroitConfig(
    env="AdroitHandRelocate-v1", demonstrations=2, free_demonstrations=1, planner=POOR
)


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, Reference]]:
    """Episodes that succeed, each with the next of `REWARDS` a step: their seeds and references."""
    rewards, asked = iter([3.0, 5.0, 8.0, 7.0, 8.5, 3.9, 7.5]), []

    def succeeding(planner: Planner, seed: int, reference: Reference) -> Episode:
        asked.append((seed, reference))
        steps = np.full(200, next(rewards, 8.0))
        obs = np.tile(planner.env.reset(seed=seed)[0], (200, 1))
        actions = np.full((200, 30), len(asked) / 10, np.float32)
        return Episode(seed, reference.noise, obs, actions, steps, np.ones(200, bool), obs[0])

    monkeypatch.setattr(demonstrations, "play", succeeding)
    return asked


def test_sets_of_people_and_clone_are_stored_as_gym_collect_stores_an_expert(
    tmp_path: Path, played: list[tuple[int, Reference]]
) -> None:
    plan = AdroitSets("AdroitHandRelocate-v1", demonstrations=2, free_demonstrations=1, samples=2)
    human, cloned = plan.part_ids()
    collect(plan, tmp_path / "relocate.zarr", Silent(), [human])
    store = open_store(tmp_path / "relocate.zarr")
    expert = GymPlan(plan.env, qualities=("expert",))
    assert store.schema == expert.schema()
    assert evaluation_of(store) == GymEvaluation.of_store(store.schema)
    rows = store.select(quality="human").episodes().to_pylist()
    assert [row["seed"] for row in rows] == [played[1][0], played[2][0]]
    assert all(row["success"] and row["truncated"] for row in rows)
    with pytest.raises(ValueError, match="no planner for AdroitHandPen-v1"):
        AdroitSets("AdroitHandPen-v1")
    other = replace(plan, seed=1).part_ids()
    assert not {human, cloned} & set(other), "parts are named by what is in them"


@pytest.mark.long
def test_planned_episodes_open_the_door_and_are_alike(tmp_path: Path) -> None:
    told: list[int] = []
    config = recommended("AdroitHandDoor-v1")
    # Fewer rounds and samples than recommended open the door too.
    planner = replace(config.planner, rounds=3, samples=8)
    config = replace(config, demonstrations=2, free_demonstrations=1, planner=planner)
    found = demonstrate(config, tmp_path, lambda n, note: told.append(n))
    assert sum(told) == 3, "two that look for a reference, one that follows it"
    # 20 a step once the door is open; D4RL's expert returns 2,881.
    assert found.reward.sum(axis=1).min() > 1500
    first, second = found.action
    assert np.abs(first).max() <= 1.0
    # Of two that were planned freely it is -0.11; of two that follow a good reference, over 0.9.
    assert np.corrcoef(first.ravel(), second.ravel())[0, 1] > 0.55


def test_the_best_episode_so_far_is_what_the_others_follow(
    tmp_path: Path, played: list[tuple[int, Reference]]
) -> None:
    config = replace(SMALL, demonstrations=3, free_demonstrations=2, seed=1)
    found = demonstrate(config, tmp_path)
    assert found.reward[:, 0].tolist() == [8.0, 8.5, 7.5], "3.9 is less than half of 8"
    followed = [round(float(reference.actions[0, 0]), 1) for _, reference in played]
    assert followed == [0.0, 0.0, 0.2, 0.3, 0.3, 0.3, 0.3]
    noises = [reference.noise for _, reference in played]
    assert noises[0] != noises[1], "each free attempt has its own"
    assert set(noises[2:]) == {noises[1]}, "and those that follow it have the best one's"


def test_demonstrations_begin_all_over_where_the_task_does(
    tmp_path: Path, played: list[tuple[int, Reference]]
) -> None:
    spread = demonstrate(replace(SMALL, demonstrations=9), tmp_path).obs[1:, 0, -9:]
    task = find_task(SMALL.env)
    with closing(Planner(task, OBJECTIVES[SMALL.env], POOR)) as planner:
        reset = planner.env.reset
        drawn = np.stack([[reset(seed=9 * k + i)[0][-9:] for i in range(8)] for k in range(9)])

    def nearest_two(starts: np.ndarray) -> float:
        between = np.linalg.norm(starts[:, None] - starts[None], axis=-1)
        return float(between[~np.eye(len(starts), dtype=bool)].min())

    assert nearest_two(spread) > 1.2 * np.median([nearest_two(starts) for starts in drawn])
    assert len({seed for seed, _ in played}) == len(played)


def test_what_fails_does_not_count(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="none of 2 planned episodes of AdroitHandRelocate-v1 suc"):
        demonstrate(SMALL, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_there_is_not_planned_again_nor_taken_for_another(
    tmp_path: Path, played: list[tuple[int, Reference]]
) -> None:
    found = demonstrate(SMALL, tmp_path)
    planned = len(played)
    again = demonstrate(SMALL, tmp_path)
    assert len(played) == planned
    for name, values in vars(found).items():
        assert np.array_equal(getattr(again, name), values)
        assert values.dtype == np.float32
    for other in (replace(SMALL, seed=1), replace(SMALL, planner=PlannerConfig())):
        with pytest.raises(ValueError, match="has demonstrations of other settings"):
            demonstrate(other, tmp_path)


def test_an_episode_is_what_the_environment_did() -> None:
    task = find_task(SMALL.env)
    with closing(Planner(task, OBJECTIVES[SMALL.env], POOR)) as planner:
        episode = play(planner, 3, planner.no_reference(1))
        obs, _ = planner.env.reset(seed=3)
        for k in range(200):
            assert np.array_equal(episode.obs[k], obs)
            obs, reward, *_ = planner.env.step(episode.action[k])
            assert episode.reward[k] == reward


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"env": "AdroitHandPen-v1"}, "no planner for AdroitHandPen-v1; allowed: AdroitHandDoor"),
        ({"demonstrations": 0}, "demonstrations must be at least 1, got 0"),
        ({"noise": 0.0}, "noise must be above 0, at most 1, got 0.0"),
        ({"planner": replace(POOR, effort=-1.0)}, "planner.effort must be a number from 0"),
    ],
)
def test_settings_that_cannot_be_are_refused(changes: dict[str, object], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        replace(SMALL, **changes)  # pyright: ignore[reportArgumentType]
