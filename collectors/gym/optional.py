"""Gymnasium and Gymnasium-Robotics, imported when they are used: they are the extra `gym`."""

from __future__ import annotations

import contextlib
import io
import warnings
from importlib import import_module
from typing import Any

INSTALL = "pip install 'gaitforge[gym]'"


def load_package(name: str) -> Any:
    """A package of the extra: "gymnasium" or "gymnasium_robotics".

    Raises:
        ValueError: it is not installed; names the command that installs it.
    """
    try:
        # Gymnasium-Robotics prints a note on its versions 1.2.0 and 1.2.1 when it is imported.
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or name).partition(".")[0]
        raise ValueError(
            f"the Gymnasium tasks need {missing}, which is not installed: {INSTALL}"
        ) from error
