"""What several tests of this plug-in use."""

from tests.pipeline.conftest import store

__all__ = ["store"]  # a fixture
