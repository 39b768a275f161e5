"""The Adroit tasks pay for reaching as D4RL's do, whatever the installed package has it like."""

import numpy as np
import pytest

from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS as D4RL_TASKS
from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.tasks import find_task, make_environment
from gaitforge.plugins.gym.episodes import evaluate, evaluation_seeds
from gaitforge.plugins.gym.experts import RandomPolicy

pytest.importorskip("gymnasium_robotics")


def norm(vector: np.ndarray) -> float:
    return float(np.linalg.norm(vector))


def test_the_doors_reward_is_that_of_its_published_definition() -> None:
    env = make_environment(find_task("AdroitHandDoor-v1"))
    env.reset(seed=3)
    data, rng = env.unwrapped.data, np.random.default_rng(3)
    for _ in range(20):
        obs, reward, *_ = env.step(rng.uniform(-1.0, 1.0, env.action_space.shape))
        hinge = obs[28]
        assert hinge < 0.2, "no bonus yet"
        expected = -0.1 * norm(obs[35:38]) - 0.1 * (hinge - 1.57) ** 2 - 1e-5 * norm(data.qvel) ** 2
        assert reward == pytest.approx(expected, rel=1e-9)
    env.close()


def test_the_balls_reward_is_the_palms_distance_while_it_lies() -> None:
    env = make_environment(find_task("AdroitHandRelocate-v1"))
    env.reset(seed=3)
    rng = np.random.default_rng(3)
    for _ in range(20):
        obs, reward, *_ = env.step(rng.uniform(-1.0, 1.0, env.action_space.shape))
        assert reward == pytest.approx(-0.1 * norm(obs[30:33]), rel=1e-9)
    env.close()


@pytest.mark.parametrize("name", ["AdroitHandDoor-v1", "AdroitHandHammer-v1"])
def test_a_random_policy_returns_what_d4rls_table_says(name: str) -> None:
    task = find_task(name)
    batch = TaskBatch(task, 2)
    policy = RandomPolicy(batch.act_dim, 0)
    returns = [run.episode_return for run in evaluate(policy, batch, evaluation_seeds(4, 1))]
    batch.close()
    assert np.mean(returns) == pytest.approx(D4RL_TASKS[task.name].random_score, rel=0.05)
