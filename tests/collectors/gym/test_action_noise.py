"""How strong noise is on the actions of a task."""

from contextlib import closing

import numpy as np
import pytest

pytest.importorskip("gymnasium_robotics")

from gaitforge.collectors.gym.algorithms.action_noise import action_noise
from gaitforge.collectors.gym.batch import TaskBatch
from gaitforge.collectors.gym.tasks import TASKS


@pytest.mark.parametrize("env_id", [env_id for env_id in TASKS if env_id.startswith("Adroit")])
def test_an_arm_shakes_less_than_the_hand(env_id: str) -> None:
    task = TASKS[env_id]
    with closing(TaskBatch(task, 1)) as batch:
        model = batch._envs[0].unwrapped.model
        noise = action_noise(task, batch.act_dim, 0.1)
    moves_the_hand = [model.actuator(k).name.startswith("A_AR") for k in range(model.nu)]
    assert noise.dtype == np.float32
    assert (noise[moves_the_hand] < 0.05).all()
    np.testing.assert_allclose(noise[~np.array(moves_the_hand)], 0.1, rtol=1e-6)
