"""The tasks on stored episodes by the one engine: the checks of every other task."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from gaitforge.common.trust import trusting
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.plugins.what_if.added_fields import DerivePlan, RelabelPlan
from gaitforge.plugins.what_if.counterfactual import CounterfactualPlan
from tests.flows.making import COLLECT, GRID
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


def half_reward(episode: dict[str, np.ndarray]) -> np.ndarray:
    """Half of the reward."""
    return episode["reward"] / 2


@pytest.fixture(autouse=True, scope="module")
def trusted_reward() -> Iterator[None]:
    """The user's trust in this module's reward."""
    with trusting([f"{__name__}:half_reward"]):
        yield


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    store = tmp_path_factory.mktemp("source") / "legged.zarr"
    collect(replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4)), store, Silent())
    return str(store)


@pytest.fixture(scope="module", params=["derive", "relabel", "counterfactual"])
def made(
    source: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Made:
    """A small plan of the task, and its store, collected in this process."""
    plans: dict[str, CollectionPlan] = {
        "derive": DerivePlan(source, of="contact_forces", robots=4),
        "relabel": RelabelPlan(source, reward=f"{__name__}:half_reward"),
        "counterfactual": CounterfactualPlan(source, randomisation={"payload_kg": 1}),
    }
    plan = plans[request.param]
    store = tmp_path_factory.mktemp(request.param) / "data.zarr"
    collect(plan.with_workers(1), store, Silent())
    return plan, store


def test_parts_repeat_another_stores_and_tell_no_simulator(made: Made) -> None:
    plan, _ = made
    assert plan.simulator() is None
