"""Physics back ends by name.

A back end is a module with the class and a function `availability()` that says, without starting
anything, whether the class could be built here. Importing the module needs no optional package.
"""

from __future__ import annotations

from importlib import import_module

from collectors.physics.interface import (
    Availability,
    BackendUnavailable,
    InitialState,
    PhysicsBackend,
    PhysicsState,
)
from collectors.robots.robot import RobotCard
from collectors.simulators import BACKENDS, check_backend


def is_exact(name: str) -> bool:
    """Whether episodes of a back end can be simulated again bit for bit (`PhysicsBackend.exact`).

    The class says it, so that the back end need not be available.

    Raises:
        ValueError: an unknown back end.
    """
    module, cls = BACKENDS[check_backend(name)]
    return getattr(import_module(module), cls).exact


def availability(name: str) -> Availability:
    """Whether a back end could be built here, and if not, why and what to do about it.

    Raises:
        ValueError: an unknown back end.
    """
    return import_module(BACKENDS[check_backend(name)][0]).availability()


def make_backend(name: str, robot: RobotCard, num_robots: int, threads: int) -> PhysicsBackend:
    """Build a back end.

    Raises:
        BackendUnavailable: a back end that cannot be built here, with what it lacks.
        ValueError: an unknown back end, or fewer than one robot or thread.
    """
    check_backend(name)
    if num_robots < 1 or threads < 1:
        raise ValueError(f"{num_robots} robots on {threads} threads: both must be at least 1")
    found = availability(name)
    if not found.available:
        raise BackendUnavailable(f"simulator '{name}' is not available: {found.why_not}")
    module, cls = BACKENDS[name]
    return getattr(import_module(module), cls)(robot, num_robots, threads)


__all__ = [
    "BACKENDS",
    "Availability",
    "BackendUnavailable",
    "InitialState",
    "PhysicsBackend",
    "PhysicsState",
    "availability",
    "check_backend",
    "is_exact",
    "make_backend",
]
