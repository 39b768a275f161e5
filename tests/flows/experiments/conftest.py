"""A policy's class and a task that these tests name, as a user and a package do."""

from collections.abc import Iterator

import pytest

from gaitforge.common.trust import trusting
from tests.flows.experiments.points import known
from tests.flows.experiments.still import STILL


@pytest.fixture(autouse=True, scope="module")
def trusted_policy() -> Iterator[None]:
    """Trust it, and nothing in other folders' tests."""
    with trusting([STILL]):
        yield


@pytest.fixture(autouse=True, scope="package")
def points() -> Iterator[None]:
    """The small stores are of a task of the tests."""
    with known():
        yield
