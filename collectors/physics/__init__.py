"""Physics back ends by name.

A back end's module holds its class and `installed_version()`, which raises BackendUnavailable where
the back end cannot be built; importing it needs no optional package.
"""

from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import cast

from gaitforge.collectors.physics.interface import Availability, BackendUnavailable, PhysicsBackend
from gaitforge.collectors.robots.robot import RobotCard
from gaitforge.collectors.simulators import backend_path, check_backend


def _backend(name: str) -> tuple[ModuleType, type[PhysicsBackend]]:
    """A back end's module and class; BackendUnavailable, in one line, if it has none of them."""
    path, cls = backend_path(name)
    try:
        module = import_module(path)
        backend = getattr(module, cls)
    except Exception as error:  # another package's module may raise anything
        raise BackendUnavailable(_one_line(error)) from error
    if not isinstance(backend, type) or not callable(getattr(module, "installed_version", None)):
        raise BackendUnavailable(f"{path} needs a class {cls} and a function installed_version")
    return module, backend


def _one_line(error: Exception) -> str:
    known = isinstance(error, (BackendUnavailable, ImportError))
    return " ".join((str(error) if known else f"{type(error).__name__}: {error}").split())


def is_exact(name: str) -> bool:
    """Whether a back end, available or not, replays bit for bit; see `PhysicsBackend.exact`."""
    _, backend = _backend(name)
    return backend.exact


def processor_of(name: str) -> str:
    """Device of a back end, available or not: "cuda" or "cpu"; see `PhysicsBackend.processor`."""
    try:
        _, backend = _backend(name)
    except BackendUnavailable:  # `availability` says so
        return PhysicsBackend.processor
    return getattr(backend, "processor", PhysicsBackend.processor)


def released_version(name: str) -> str | None:
    """Version of the simulator's package, see `PhysicsBackend.package`; None where none is told."""
    try:
        _, backend = _backend(name)
        # Not one that the class inherits: its simulator may be of another version.
        package = vars(backend).get("package")
        return version(package) if package else None
    except (BackendUnavailable, PackageNotFoundError):  # `availability` says so
        return None


def availability(name: str) -> Availability:
    """Whether a back end can be built here; raises ValueError for an unknown one."""
    check_backend(name)
    try:
        module, _ = _backend(name)
        return Availability(name, True, version=module.installed_version())
    except Exception as error:  # another package's function may raise anything
        return Availability(name, False, _one_line(error))


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
    _, backend = _backend(name)
    build = cast("Callable[..., PhysicsBackend]", backend)
    robots = [robot] if isinstance(robot, RobotCard) else list(robot)
    if len(robots) == 1:
        return build(robots[0], num_robots, threads)
    if not backend.several_robots:
        raise ValueError(f"simulator '{name}' holds one robot, not {len(robots)}; allowed: mujoco")
    return build(robots, num_robots, threads)
