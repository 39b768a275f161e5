"""Isaac Gym's stand-in: the double in tests/isaacgym_double, run by this interpreter."""

import os
import sys
from pathlib import Path

import pytest

from gaitforge.collectors.physics.isaacgym.process import (
    DEVICE_VARIABLE,
    PYTHON_VARIABLE,
    TIMEOUT_VARIABLE,
    IsaacGymConfig,
)

DOUBLE = Path(__file__).resolve().parents[2] / "isaacgym_double"
TIMEOUT_S = 120.0
CONFIG = IsaacGymConfig(sys.executable, "cpu", TIMEOUT_S)


def double_variables(package: Path = DOUBLE) -> dict[str, str]:
    """Environment variables with which the `isaacgym` back end finds a package of that name."""
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    return {
        PYTHON_VARIABLE: sys.executable,
        DEVICE_VARIABLE: "cpu",
        TIMEOUT_VARIABLE: str(TIMEOUT_S),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def use_the_double(monkeypatch: pytest.MonkeyPatch, package: Path = DOUBLE) -> None:
    """Let the `isaacgym` back end run on a double in this test."""
    for name, value in double_variables(package).items():
        monkeypatch.setenv(name, value)
