"""What several tests of this plug-in use."""

from collections.abc import Iterator

import pytest

from gaitforge.common.trust import trusting
from tests.flows.experiments.still import STILL
from tests.pipeline.conftest import store

__all__ = ["store"]  # a fixture


@pytest.fixture(autouse=True, scope="module")
def trusted_policy() -> Iterator[None]:
    """Trust the policy that never moves, as a user does who names it."""
    with trusting([STILL]):
        yield
