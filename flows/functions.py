"""Functions and classes that a user names as "module:name"."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from gaitforge.datasets.files import sha256_file

Result = TypeVar("Result")


def named_function(name: str, what: str = "function") -> Callable[..., Any]:
    """The function or class "module:name"; its module is importable, as with PYTHONPATH=.

    Args:
        what: its name in errors.

    Raises:
        ValueError: there is no such function.
    """
    module, _, member = name.partition(":")
    try:
        target = getattr(import_module(module), member)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no {what} {name}: {error}; give module:{what}") from None
    if not callable(target):
        raise ValueError(f"{name} is not a {what}; give module:{what}")
    return target


def function_key(name: str) -> str:
    """Hash of the file that holds the function "module:function".

    Raises:
        ValueError: no such function, or one without a file.
    """
    try:
        return sha256_file(Path(inspect.getfile(inspect.unwrap(named_function(name)))))[:16]
    except TypeError:
        raise ValueError(f"{name} is not a function in a Python file") from None


def called(function: Callable[..., Result], name: str, *arguments: object) -> Result:
    """Call a user's function; ValueError, in one line, for whatever it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{name} failed: {reason}") from error
