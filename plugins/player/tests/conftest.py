"""The stores and the run that the tests of this folder look at."""

from pathlib import Path

import pytest

from gaitforge.collectors.legged.data import CollectionGrid, StoredForm
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.pipeline.conftest import store, trained

__all__ = ["store", "trained"]  # fixtures

GRID = CollectionGrid(
    terrains=("stairs", "rough"), skills=("tilt", "rush"), levels=(8,), parts=1, episodes_per_part=6
)


@pytest.fixture(scope="session")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes with their states, with action noise, on hard ground."""
    path = tmp_path_factory.mktemp("view") / "walked.zarr"
    collect(LeggedPlan(grid=GRID, form=StoredForm(state=True), robots=6), path, Silent())
    return path
