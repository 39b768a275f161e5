"""Names of the physics back ends, without importing one."""

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import extension, extension_names

BACKENDS = {"mujoco": ("gaitforge.collectors.physics.mujoco.backend", "MujocoBackend")}
"""Module and class by name: the default."""

ISAACGYM_PYTHON_VARIABLE = "GAITFORGE_ISAACGYM_PYTHON"
"""Environment variable that names the Python that has Isaac Gym."""


def backend_names() -> list[str]:
    """The default, then the back ends of plug-ins and other packages."""
    return list(dict.fromkeys([*BACKENDS, *extension_names("simulator")]))


def check_backend(name: str) -> str:
    """Return the name; raises ValueError for an unknown one."""
    if name not in backend_names():
        raise ValueError(f"unknown simulator '{name}'; {names_allowed(name, backend_names())}")
    return name


def backend_path(name: str) -> tuple[str, str]:
    """A back end's module and class; ValueError for an unknown one, or one of two packages."""
    packaged = None if name in BACKENDS else extension("simulator", check_backend(name))
    if packaged is None:
        return BACKENDS[name]
    module, _, cls = packaged.path.partition(":")
    return module, cls
