"""What several tests of this plug-in use."""

from pathlib import Path

import pytest

from tests.pipeline.command_line import TINY_GRID, call


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of four episodes, made by the command line; tests that change it copy it."""
    path = tmp_path_factory.mktemp("cli") / "legged.zarr"
    assert call("collect", path, *TINY_GRID) == 0
    return path
