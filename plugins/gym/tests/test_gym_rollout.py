"""Episodes: the same whatever ran before them, and what their records say of each other."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

from gaitforge.plugins.gym.data import gym_schema, open_replay, replayed_episodes
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task
from gaitforge.plugins.gym.episodes import Episode, run_episode
from gaitforge.plugins.gym.experts import (
    GymExpert,
    RandomPolicy,
    load_gym_expert,
    read_recipe,
)
from gaitforge.plugins.gym.tests.making import make_training

pytest.importorskip("gymnasium_robotics")

TASKS = ("Hopper-v5", "AdroitHandDoor-v1")


@pytest.fixture(scope="module", params=TASKS)
def training(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_training(tmp_path_factory.mktemp("training") / request.param, request.param)


def open_task(training: Path) -> tuple[TaskBatch, GymExpert]:
    expert = load_gym_expert(training, "expert")
    return TaskBatch(expert.task, 1), expert


def assert_same(a: Episode, b: Episode) -> None:
    for name, value in asdict(a).items():
        np.testing.assert_array_equal(value, getattr(b, name), strict=True)


def test_an_episode_is_the_same_alone_and_after_others(training: Path) -> None:
    first, actor = open_task(training)
    alone = run_episode(first, actor, 11, physics=True)
    other, actor_too = open_task(training)
    uniform = RandomPolicy(other.act_dim)
    for before, seed in ((actor_too, 3), (uniform, 11)):
        assert run_episode(other, before, seed).length > 0
    assert_same(run_episode(other, actor_too, 11, physics=True), alone)
    assert_same(run_episode(first, actor, 11, physics=True), alone)
    assert not np.array_equal(run_episode(first, actor, 12).obs[0], alone.obs[0])
    first.close()
    other.close()


def test_an_episode_can_be_stepped_again_from_what_is_kept(training: Path) -> None:
    batch, actor = open_task(training)
    episode = run_episode(batch, actor, 4, physics=True)
    assert episode.terminated or episode.length == batch.task.facts.horizon
    batch.reset([0], [episode.seed])
    for step in range(episode.length):
        np.testing.assert_array_equal(batch.observation.policy[0], episode.obs[step])
        assert episode.qpos is not None
        np.testing.assert_array_equal(batch.physics(0)[0], episode.qpos[step])
        again = batch.step([0], episode.action[step : step + 1])
        assert again.reward[0] == episode.reward[step]
    np.testing.assert_array_equal(batch.observation.policy[0], episode.final_obs)
    batch.close()


def test_actions_have_the_density_that_is_kept_of_them(training: Path) -> None:
    batch, actor = open_task(training)
    episode, expert = run_episode(batch, actor, 5), load_gym_expert(training, "expert")
    assert np.abs(episode.action).max() <= 1.0
    unsaturated = np.abs(episode.action).max(axis=1) < 0.99
    assert unsaturated.any()
    obs, action = episode.obs[unsaturated], episode.action[unsaturated].astype(np.float64)
    # The policy's own density, which is torch's, at the noise that leads to the action.
    mean = np.arctanh(expert.mean(obs).astype(np.float64))
    one, _ = expert.sample(obs, np.ones_like(action, dtype=np.float32))
    std = np.arctanh(np.clip(one, -1 + 1e-7, 1 - 1e-7).astype(np.float64)) - mean
    again, density = expert.sample(obs, ((np.arctanh(action) - mean) / std).astype(np.float32))
    np.testing.assert_allclose(again, action, atol=1e-3)
    np.testing.assert_allclose(episode.log_prob[unsaturated], density, atol=2e-2)
    uniform = run_episode(batch, RandomPolicy(batch.act_dim), 5)
    np.testing.assert_allclose(uniform.log_prob, batch.act_dim * np.log(0.5), rtol=1e-6)
    batch.close()


def test_the_replay_buffer_comes_back_in_episodes(training: Path) -> None:
    recipe, task = read_recipe(training), find_task(training.name)
    reader = open_replay(training, recipe.env)
    count = len(reader.episodes(reader.rows).lengths)
    episodes = replayed_episodes(reader, 0, count)
    assert sum(episode.length for episode in episodes) == recipe.replay_rows
    rows = reader.read(0, recipe.replay_rows)
    for name in ("obs", "action", "log_prob", "reward"):
        together = np.concatenate([getattr(episode, name) for episode in episodes])
        np.testing.assert_array_equal(together, rows[name])
    batch = TaskBatch(task, 1)
    uniform = RandomPolicy(batch.act_dim)
    for number, episode in enumerate(episodes):
        drawn = run_episode(batch, uniform, number)
        np.testing.assert_array_equal(drawn.obs[: episode.length], episode.obs)
        if number < count - 1:
            assert (episode.terminated, episode.truncated) == (drawn.terminated, drawn.truncated)
            np.testing.assert_array_equal(drawn.final_obs, episode.final_obs)
    assert not episodes[-1].terminated
    assert not episodes[-1].truncated
    np.testing.assert_array_equal(episodes[-1].final_obs, rows["next_obs"][-1])
    if count > 2:
        (second,) = replayed_episodes(reader, 1, 2)
        assert_same(second, episodes[1])
    batch.close()


def test_names_of_the_observation_cover_it(training: Path) -> None:
    batch, _ = open_task(training)
    bounds = sorted(gym_schema(batch, read_recipe(training), False).field("obs").slices.values())
    assert bounds[0][0] == 0
    assert bounds[-1][1] == batch.obs_dim
    batch.close()
