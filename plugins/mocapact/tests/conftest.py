"""What several of the humanoid's tests use; dm_control is slow to build."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.plugins.mocapact.humanoid.clips.snippets import Snippet

SNIPPETS = (Snippet("squat_00", 0, 39), Snippet("step_00", 5, 35))


@pytest.fixture(scope="session")
def environment(humanoid_reference: Path) -> Iterator:
    """The real task on SNIPPETS; every test resets it."""
    from gaitforge.plugins.mocapact.humanoid.environment import TrackingEnvironment

    env = TrackingEnvironment(humanoid_reference, SNIPPETS)
    yield env
    env.close()
