"""Physics back ends by name."""

from __future__ import annotations

from importlib import import_module

from collectors.physics.interface import InitialState, PhysicsBackend, PhysicsState
from collectors.robots import RobotCard

BACKENDS = {"mujoco": ("collectors.physics.mujoco_cpu", "MujocoBackend")}


def make_backend(name: str, robot: RobotCard, num_robots: int, threads: int) -> PhysicsBackend:
    """Build a back end.

    Raises:
        ValueError: an unknown back end, or fewer than one robot or thread.
    """
    if name not in BACKENDS:
        raise ValueError(f"unknown simulator '{name}'; simulators: {', '.join(BACKENDS)}")
    if num_robots < 1 or threads < 1:
        raise ValueError(f"{num_robots} robots on {threads} threads: both must be at least 1")
    module, cls = BACKENDS[name]
    return getattr(import_module(module), cls)(robot, num_robots, threads)


__all__ = [
    "BACKENDS",
    "InitialState",
    "PhysicsBackend",
    "PhysicsState",
    "make_backend",
]
