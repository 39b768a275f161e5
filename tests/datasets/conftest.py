"""A store that most tests of streams read."""

import pytest

from gaitforge.datasets import Selection
from tests.datasets.making import STREAMED_PARTS, small_store


@pytest.fixture(scope="module")
def selection(tmp_path_factory: pytest.TempPathFactory) -> Selection:
    """All of a small store; tests that change a store make their own."""
    return small_store(tmp_path_factory.mktemp("stream") / "s", STREAMED_PARTS).select()
