"""Isaac Gym's stand-in: the double in the folder isaacgym_double, run by this interpreter."""

import os
import sys
from pathlib import Path

import pytest

from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE
from gaitforge.plugins.simulators.isaacgym.process import (
    DEVICE_VARIABLE,
    TIMEOUT_VARIABLE,
    IsaacGymConfig,
)

DOUBLE = Path(__file__).resolve().parents[1] / "isaacgym_double"
TIMEOUT_S = 120.0
CONFIG = IsaacGymConfig(sys.executable, "cpu", TIMEOUT_S)


def double_variables(package: Path = DOUBLE) -> dict[str, str]:
    """Environment variables with which the `isaacgym` back end finds a package of that name."""
    paths = [str(package), os.environ.get("PYTHONPATH", "")]
    return {
        ISAACGYM_PYTHON_VARIABLE: sys.executable,
        DEVICE_VARIABLE: "cpu",
        TIMEOUT_VARIABLE: str(TIMEOUT_S),
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
    }


def use_the_double(monkeypatch: pytest.MonkeyPatch, package: Path = DOUBLE) -> None:
    """Let the `isaacgym` back end run on a double in this test."""
    for name, value in double_variables(package).items():
        monkeypatch.setenv(name, value)
