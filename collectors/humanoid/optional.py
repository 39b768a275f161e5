"""dm_control and h5py, imported when they are used: they are the extra `mocapact`."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

INSTALL = "pip install 'gaitforge[mocapact]'"


def load_module(name: str) -> Any:
    """A module of the extra.

    Raises:
        ValueError: it is not installed, or not in versions that work together; names the command.
    """
    package = name.partition(".")[0]
    try:
        with warnings.catch_warnings():
            # Without a display dm_control's renderer says so, though nothing is rendered here.
            warnings.simplefilter("ignore")
            return import_module(name)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise ValueError(
            f"the humanoid needs {missing}, which is not installed: {INSTALL}"
        ) from error
    except (ImportError, AttributeError) as error:
        raise ValueError(
            f"the humanoid needs another version of {package}, this one fails with {error}: "
            f"{INSTALL}"
        ) from error


@contextmanager
def quiet_loading() -> Iterator[None]:
    """Without protobuf's warnings that dm_control's clip loader uses what is to go."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield
