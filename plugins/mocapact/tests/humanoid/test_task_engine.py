"""The humanoid's task by the one engine: the checks of every other task."""

from pathlib import Path

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.plugins.mocapact.humanoid.snippet_grid import SnippetGrid
from gaitforge.plugins.mocapact.task import HumanoidPlan
from tests.flows.test_tasks import (
    Made,
    test_a_store_replays_bit_for_bit_also_when_it_was_compacted,
    test_local_workers_make_the_same_dataset,
    test_the_plan_beside_the_store_names_its_task_and_gives_the_status,
)

__all__ = [
    "test_a_store_replays_bit_for_bit_also_when_it_was_compacted",
    "test_local_workers_make_the_same_dataset",
    "test_the_plan_beside_the_store_names_its_task_and_gives_the_status",
]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def made(humanoid_reference: Path, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A small plan of the task, and its store, collected in this process."""
    pytest.importorskip("dm_control")
    grid = SnippetGrid(("squat_00-0-12", "step_00-5-17"), start_rollouts=1, random_rollouts=1)
    plan = HumanoidPlan(grid, str(humanoid_reference))
    store = tmp_path_factory.mktemp("humanoid") / "data.zarr"
    collect(plan.with_workers(1), store, Silent())
    return plan, store
