"""Physics back ends by name.

A back end's module holds its class and `installed_version()`, which raises BackendUnavailable where
the back end cannot be built; importing it needs no optional package.
"""

from collections.abc import Sequence
from importlib import import_module

from gaitforge.collectors.physics.interface import Availability, BackendUnavailable, PhysicsBackend
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.simulators import backend_path, check_backend


def is_exact(name: str) -> bool:
    """Whether a back end, available or not, replays bit for bit; see `PhysicsBackend.exact`."""
    module, cls = backend_path(name)
    return getattr(import_module(module), cls).exact


def availability(name: str) -> Availability:
    """Whether a back end can be built here; raises ValueError for an unknown one."""
    path, _ = backend_path(name)
    try:
        module = import_module(path)
        return Availability(name, True, version=module.installed_version())
    except (BackendUnavailable, ImportError) as error:
        return Availability(name, False, str(error))


def make_backend(
    name: str, robot: RobotCard | Sequence[RobotCard], num_robots: int, threads: int
) -> PhysicsBackend:
    """Build a back end; BackendUnavailable if that cannot be done here.

    Args:
        robot: one robot for all rows, or one for each row, of one structure, if the back end has
            `several_robots`.

    Raises:
        ValueError: an unknown back end, fewer than one robot or thread, or several robots where
            the back end takes one.
    """
    check_backend(name)
    if num_robots < 1 or threads < 1:
        raise ValueError(f"{num_robots} robots on {threads} threads: both must be at least 1")
    status = availability(name)
    if not status.available:
        raise BackendUnavailable(f"simulator '{name}' is not available: {status.why_not}")
    module, cls = backend_path(name)
    backend = getattr(import_module(module), cls)
    robots = [robot] if isinstance(robot, RobotCard) else list(robot)
    if len(robots) == 1:
        return backend(robots[0], num_robots, threads)
    if not backend.several_robots:
        raise ValueError(f"simulator '{name}' holds one robot, not {len(robots)}; allowed: mujoco")
    return backend(robots, num_robots, threads)
