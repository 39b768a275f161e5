"""The bodies of D4RL's tasks have the names of their observations."""

import pytest

from gaitforge.learners.models.bodies import BODIES
from gaitforge.learners.tokens import TokenLayout
from gaitforge.plugins.gym.d4rl.d4rl_tasks import TASKS


@pytest.mark.parametrize("task", ["door", "hammer", "relocate"])
def test_names_of_the_adroit_tasks_are_those_of_the_bodies(task: str) -> None:
    body = BODIES[f"adroit-{task}"]
    assert TASKS[task].obs_slices == body.slices
    layout = TokenLayout.of_data("return", TASKS[task].obs_slices, body.act_dim)
    assert body.graph(layout.slices, body.act_dim).obs_dim == layout.dim
