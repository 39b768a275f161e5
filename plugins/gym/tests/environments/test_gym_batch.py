"""The environments of a batch: D4RL's horizons, and nothing of one in another."""

import sys

import numpy as np
import pytest

from gaitforge.plugins.gym.environments.batch import TaskBatch
from gaitforge.plugins.gym.environments.spaces import load_gymnasium
from gaitforge.plugins.gym.environments.tasks import TASKS, find_task, package_version

pytest.importorskip("gymnasium_robotics")
pytest.importorskip("dm_control")


@pytest.mark.parametrize("env_id", ["Hopper-v5", "AdroitHandPen-v1", "Humanoid-Board-v0"])
def test_environments_of_a_batch_are_independent(env_id: str) -> None:
    task = find_task(env_id)
    together, alone = TaskBatch(task, 3, threads=2), TaskBatch(task, 1)
    rng = np.random.default_rng(0)
    actions = rng.uniform(-1, 1, (6, together.act_dim)).astype(np.float32)
    together.reset([0, 1, 2], [5, 6, 7])
    alone.reset([0], [6])
    for action in actions:
        noise = rng.uniform(-1, 1, (2, together.act_dim))
        beside = together.step([2, 1], np.stack([noise[0], action]))
        single = alone.step([0], action[None])
        assert beside.reward[1] == single.reward[0]
        np.testing.assert_array_equal(
            together.observation.policy[1], alone.observation.policy[0], strict=True
        )
    for ours, theirs in zip(together.physics(1), alone.physics(0), strict=True):
        assert ours.dtype == np.float64
        np.testing.assert_array_equal(ours, theirs)
    together.close()
    alone.close()


def test_what_cannot_be_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"no task 'Bee-v5' .*allowed: HalfCheetah-v5, Hopper-v5"):
        find_task("Bee-v5")
    with pytest.raises(ValueError, match="count and threads must be at least 1, got 0 and 1"):
        TaskBatch(find_task("Hopper-v5"), 0)
    monkeypatch.setitem(sys.modules, "gymnasium_robotics", None)
    with pytest.raises(ValueError, match=r"gymnasium_robotics, which is not installed: run "):
        load_gymnasium("gymnasium_robotics")


def test_versions_name_package_and_simulator() -> None:
    for task in TASKS.values():
        assert package_version(task).startswith(f"{task.package} ")
        assert ", mujoco 3." in package_version(task)
