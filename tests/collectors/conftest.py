"""Fixtures of the simulators' tests."""

import pytest

from tests.collectors.physics.isaacgym import use_the_double


@pytest.fixture
def isaacgym_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """The `isaacgym` back end runs on the double."""
    use_the_double(monkeypatch)
