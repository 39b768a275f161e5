"""Small stores of the benchmark's three collections."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.plugins.shift.sets import COLLECTIONS, DRAWS, NOMINAL_DRAWS


def small(plan: LeggedPlan) -> LeggedPlan:
    """A plan of three parts of four episodes."""
    cells = {"terrains": ("flat",), "skills": ("stand", "run"), "levels": (2,)}
    grid = replace(plan.grid, parts=3, episodes_per_part=4, **cells)
    return replace(plan, grid=grid, threads=1)


@pytest.fixture(scope="session")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Draws -> a store of the small plan: of "nominal" all parts, of the others the expert's."""
    folder = tmp_path_factory.mktemp("shift")
    paths = {draws: folder / f"{draws}.zarr" for draws in DRAWS}
    for path, plan in zip(paths.values(), map(small, COLLECTIONS.values()), strict=True):
        parts = plan.part_ids()
        collect(plan, path, Silent(), parts if path.stem == NOMINAL_DRAWS else parts[:1])
    return paths
