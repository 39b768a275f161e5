"""Names of the physics back ends, without importing one."""

from gaitforge.common.errors import names_allowed
from gaitforge.common.extensions import extension, extension_names

BACKENDS = {
    "mujoco": ("gaitforge.collectors.physics.mujoco.backend", "MujocoBackend"),
    "isaacgym": ("gaitforge.collectors.physics.isaacgym.backend", "IsaacGymBackend"),
}
"""Module and class by name: the default, and last what needs a Python of its own."""


def backend_names() -> list[str]:
    """The back ends here and, after the default, those of plug-ins and other packages."""
    default, *others = BACKENDS
    return list(dict.fromkeys([default, *extension_names("simulator"), *others]))


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
