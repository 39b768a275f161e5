"""Settings that every test needs before the packages under test are imported."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# Two workers share two cores, so each computes on one thread.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

os.environ["MPLBACKEND"] = "Agg"
os.environ["DO_NOT_TRACK"] = "1"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"

# No deadline, since machines differ in speed; fixed examples, so that a red run can be repeated.
settings.register_profile(
    "gaitforge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gaitforge")

_prefect_home = tempfile.TemporaryDirectory(prefix="gaitforge-prefect-")
os.environ["PREFECT_HOME"] = _prefect_home.name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's own Prefect database."""
    _prefect_home.cleanup()
