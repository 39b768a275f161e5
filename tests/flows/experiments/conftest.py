"""A policy's class that these tests name, as a user does on the command line."""

from collections.abc import Iterator

import pytest

from gaitforge.common.trust import trusting
from tests.flows.experiments.still import STILL


@pytest.fixture(autouse=True, scope="module")
def trusted_policy() -> Iterator[None]:
    """Trust it, and nothing in other folders' tests."""
    with trusting([STILL]):
        yield
