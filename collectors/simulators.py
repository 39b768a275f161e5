"""Names of the physics back ends, without importing one."""

BACKENDS = {
    "mujoco": ("gaitforge.collectors.physics.mujoco.backend", "MujocoBackend"),
    "mujoco_warp": ("gaitforge.collectors.physics.mujoco_warp.warp_backend", "MujocoWarpBackend"),
    "isaacgym": ("gaitforge.collectors.physics.isaacgym.backend", "IsaacGymBackend"),
}
"""Module and class by name."""


def processor_of(name: str) -> str:
    """What a back end runs on: "cuda" for a GPU, which `mujoco_warp` can do without, or "cpu"."""
    return "cpu" if name == "mujoco" else "cuda"


def check_backend(name: str) -> str:
    """Return the name; raises ValueError for an unknown one."""
    if name not in BACKENDS:
        raise ValueError(f"unknown simulator '{name}'; allowed: {', '.join(BACKENDS)}")
    return name
