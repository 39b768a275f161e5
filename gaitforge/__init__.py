"""Datasets of legged motion from simulators and experts, and policies learned from them.

`__version__` is the installed package's. Installed plug-ins add functions and classes, as
`gaitforge.record`, by entry points of the group gaitforge.functions.
"""

from typing import Any

__version__: str


def __getattr__(name: str) -> Any:
    """The version, or what a plug-in adds; either is looked up when it is asked for.

    Raises:
        AttributeError: of any other name.
    """
    if name == "__version__":
        from importlib.metadata import version

        return version("gaitforge")
    if not name.startswith("_"):
        from gaitforge.common.extensions import extension

        added = extension("function", name)
        if added is not None:
            return added.load()
    raise AttributeError(f"module 'gaitforge' has no attribute '{name}'")
