"""The stores and the run that the tests of this folder look at."""

from pathlib import Path

import pytest

from gaitforge.collectors.legged.data import CollectionGrid, StoredForm
from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.pipeline.command_line import SMALL_MODEL, TINY_GRID, call

GRID = CollectionGrid(
    terrains=("stairs", "rough"), skills=("tilt", "rush"), levels=(8,), parts=1, episodes_per_part=6
)


@pytest.fixture(scope="session")
def walked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six episodes with their states, with action noise, on hard ground."""
    path = tmp_path_factory.mktemp("view") / "walked.zarr"
    collect(LeggedPlan(grid=GRID, form=StoredForm(state=True), robots=6), path, Silent())
    return path


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four episodes, made by the command line; tests that change it copy it."""
    path = tmp_path_factory.mktemp("cli") / "legged.zarr"
    assert call("collect", path, *TINY_GRID) == 0
    return path


@pytest.fixture(scope="session")
def trained(store: Path) -> Path:
    """A run of two training steps, made by the command line."""
    out = store.parent / "run"
    settings = ["batch_size=2", "window_len=8", "held_out_fraction=0"]
    settings += [f"model_overrides={SMALL_MODEL}"]
    overrides = [word for setting in settings for word in ("--set", f"config.{setting}")]
    assert call("train", store, "--out", out, "--steps", "2", *overrides) == 0
    return out
