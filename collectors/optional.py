"""Packages of optional extras, imported when they are used."""

import contextlib
import io
import warnings
from importlib import import_module
from typing import Any

from gaitforge.common.errors import install_extra, missing_package


def load_gymnasium(module: str) -> Any:
    """A module of the extra `gym`; raises as `load_mocapact`."""
    return _load(module, "the Gymnasium environment", "gym")


def load_mocapact(module: str) -> Any:
    """A module of the extra `mocapact`: of dm_control or h5py.

    ValueError, with the command to install it, if it is missing or of an unfit version.
    """
    return _load(module, "the humanoid", "mocapact")


def load_onnx(module: str) -> Any:
    """A module of the extra `onnx`; raises as `load_mocapact`."""
    return _load(module, "a policy in an ONNX file", "onnx")


def _load(module: str, user: str, extra: str) -> Any:
    """Import a module and silence its prints and warnings (versions, a missing display)."""
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise ValueError(missing_package(user, missing, extra)) from error
    except (ImportError, AttributeError) as error:
        package = module.partition(".")[0]
        raise ValueError(
            f"{user} needs another version of {package}, this one fails with {error}: "
            f"{install_extra(extra)}"
        ) from error
