"""Functions and classes that a user names as "module:name"."""

import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from gaitforge.datasets.files import sha256_file


def named_function(name: str, what: str = "function") -> Callable[..., Any]:
    """The function or class "module:name"; its module is importable, as with PYTHONPATH=.

    Args:
        what: it is called in errors.

    Raises:
        ValueError: there is none.
    """
    module, _, member = name.partition(":")
    try:
        found = getattr(import_module(module), member)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no {what} {name}: {error}; give module:{what}") from None
    if not callable(found):
        raise ValueError(f"{name} is not a {what}; give module:{what}")
    return found


def function_key(name: str) -> str:
    """Changes whenever the file that holds the function "module:function" does.

    Raises:
        ValueError: no such function, or one without a file.
    """
    try:
        return sha256_file(Path(inspect.getfile(inspect.unwrap(named_function(name)))))[:16]
    except TypeError:
        raise ValueError(f"{name} is not a function in a Python file") from None


def called(function: Callable[..., Any], name: str, *arguments: Any) -> Any:
    """What a user's function returns. Raises ValueError, in one line, for whatever it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise ValueError(f"{name} failed: {reason}") from error
