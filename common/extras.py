"""Extras of the installation: the packages that a kind of work needs, and who asks for them.

The base has what a store, a query and a stream need. A command or function asks by `require`
before it makes anything; what is missing becomes one line with the command that installs it.
"""

from collections.abc import Iterable
from importlib.util import find_spec

from gaitforge.common.errors import install_extra

LEARN = "learn"
SIM = "sim"
EXPERTS = "experts"
FLOWS = "flows"
REPORT = "report"
WORKS = {
    LEARN: ("torch", "numba", "safetensors", "pydantic", "tensorboard", "google.protobuf"),
    SIM: ("mujoco", "numba", "safetensors", "pydantic"),
    EXPERTS: ("rsl_rl", "tensordict"),
    FLOWS: ("prefect", "sqlalchemy", "fastapi", "httpx", "pydantic"),
    REPORT: ("matplotlib", "PIL"),
}
"""Extra -> the modules of its packages; of extras that most commands need."""
_ADDED = {
    "xarray": ("xarray",),
    "s3": ("obstore",),
    "hub": ("huggingface_hub",),
    "dask": ("distributed", "cryptography", "bokeh"),
    "slurm": ("dask_jobqueue",),
    "warp": ("mujoco_warp", "warp"),
    "hdf5": ("h5py",),
    "minari": ("minari",),
    "gym": ("gymnasium", "gymnasium_robotics"),
    "mocapact": ("dm_control",),
    "robots": ("yaml",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "video": ("av",),
    "rerun": ("rerun",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "swanlab": ("swanlab",),
    "trackio": ("trackio",),
}
_PACKAGES = {
    "PIL": "pillow",
    "av": "av",
    "dask_jobqueue": "dask-jobqueue",
    "dm_control": "dm-control",
    "google.protobuf": "protobuf",
    "mlflow": "mlflow-skinny",
    "gymnasium_robotics": "gymnasium-robotics",
    "mujoco_warp": "mujoco-warp",
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


def missing(*extras: str) -> dict[str, list[str]]:
    """Extra -> its packages that are not installed; only extras that lack some."""
    lacking = {
        extra: [package_of(name) for name in WORKS[extra] if not is_installed(name)]
        for extra in extras
    }
    return {extra: packages for extra, packages in lacking.items() if packages}


def require(user: str, *extras: str) -> None:
    """Raise where packages are missing, with the command that installs them.

    Args:
        user: what needs them, e.g. "gaitforge train".
        extras: of `WORKS`.

    Raises:
        ValueError: packages of the extras are not installed; in one line.
    """
    if message := missing_message(user, *extras):
        raise ValueError(message)


def missing_message(user: str, *extras: str) -> str:
    """What `require` would say; empty where nothing is missing."""
    lacking = missing(*extras)
    packages = dict.fromkeys(name for names in lacking.values() for name in names)
    return _message(user, packages, ",".join(lacking)) if lacking else ""


def missing_module(user: str, module: str) -> str | None:
    """The message of `require` for a module that an import did not find; None for unknown ones."""
    for extra, modules in {**WORKS, **_ADDED}.items():
        for name in modules:
            if module == name or module.startswith(f"{name}."):
                return _message(user, [package_of(name)], extra)
    return None


def _message(user: str, packages: Iterable[str], extra: str) -> str:
    names = list(packages)
    listed = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    verb = "is" if len(names) == 1 else "are"
    return f"{user} needs {listed}, which {verb} not installed: {install_extra(extra)}"
