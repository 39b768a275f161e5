"""What several tests of this plug-in use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.common.trust import trusting
from tests.flows.experiments.still import STILL
from tests.pipeline.command_line import TINY_GRID, call


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four episodes, made by the command line; tests that change it copy it."""
    path = tmp_path_factory.mktemp("cli") / "legged.zarr"
    assert call("collect", path, *TINY_GRID) == 0
    return path


@pytest.fixture(autouse=True, scope="module")
def trusted_policy() -> Iterator[None]:
    """Trust the policy that never moves, as a user does who names it."""
    with trusting([STILL]):
        yield
