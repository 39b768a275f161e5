"""What checks measure on back ends, and how they fail."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np

from gaitforge.collectors.physics.interface import PhysicsBackend, PhysicsState, RobotStart
from gaitforge.collectors.physics.scene import ROBOT, hold

Make = Callable[[int, int], PhysicsBackend]
"""make(robots, threads): a new back end of the kind under test."""

WEIGHT_N = ROBOT.weight_n
STATE_NAMES = tuple(field.name for field in fields(PhysicsState))


class CheckFailed(ValueError):
    """A back end breaks the contract; the message says what was measured and allowed."""


def require(condition: bool | np.bool_, complaint: str) -> None:
    """Raise CheckFailed unless the condition holds."""
    if not condition:
        raise CheckFailed(complaint)


def require_close(what: str, actual: Any, expected: Any, tolerance: float) -> float:
    """The largest difference; CheckFailed if it exceeds the tolerance or is not finite."""
    difference = np.abs(np.asarray(actual, dtype=float) - np.asarray(expected, dtype=float))
    largest = float(difference.max())
    # The comparison is false for NaN.
    require(largest <= tolerance, f"{what}: off by {largest:.3g}, allowed is {tolerance:.3g}")
    return largest


def tolerance(backend: PhysicsBackend, exact: float, float32: float) -> float:
    """The allowed error of an exact back end, or of a float32 one."""
    return exact if backend.exact else float32


def placed(make: Make, *starts: RobotStart) -> PhysicsBackend:
    """A new back end, on one thread, with a robot at each start."""
    backend = make(len(starts), 1)
    for index, start in enumerate(starts):
        backend.reset(index, start)
    return backend


def mean_over(
    backend: PhysicsBackend,
    steps: int,
    targets: np.ndarray,
    read: Callable[[PhysicsState], np.ndarray],
) -> np.ndarray:
    """The mean of a quantity over steps towards constant targets."""
    total = np.zeros(1)
    for _ in range(steps):
        hold(backend, 1, targets)
        total = total + read(backend.state)
    return total / steps


def snapshot(backend: PhysicsBackend) -> dict[str, np.ndarray]:
    """A copy of the state."""
    return {name: getattr(backend.state, name).copy() for name in STATE_NAMES}
