"""The command line, and what it made, for the tests of all commands."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.pipeline.command_line import SMALL_MODEL, TINY_GRID, call


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


@pytest.fixture
def no_charts() -> Iterator[None]:
    """Charts are not drawn, where a test is about what stands beside them."""
    from tests.flows.making import unplotted

    with unplotted():
        yield
