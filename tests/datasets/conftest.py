"""A store that most tests of streams read."""

from __future__ import annotations

import pytest

from gaitforge.datasets import Selection
from tests.datasets.making import small_store
from tests.datasets.streaming import PARTS


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """All of a small store; tests that change a store make their own."""
    return small_store(tmp_path_factory.mktemp("stream") / "s", PARTS).select()
