"""Gymnasium's task by the one engine: the checks of every other task."""

from pathlib import Path

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.plugins.gym.task import GymPlan
from gaitforge.plugins.gym.tests.making import make_training
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A small plan of the task, and its store, collected in this process."""
    policies = make_training(tmp_path_factory.mktemp("policies") / "hopper")
    plan = GymPlan("Hopper-v5", str(policies), ("medium", "medium-replay"), 60, 40)
    store = tmp_path_factory.mktemp("gym") / "data.zarr"
    collect(plan.with_workers(1), store, Silent())
    return plan, Path(store)
