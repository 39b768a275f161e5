"""Datasets of legged motion from simulators and experts, and policies learned from them.

`__version__` is the installed package's.
"""

__version__: str


def __getattr__(name: str) -> str:
    """The version, which is looked up when it is asked for: that takes as long as the import.

    Raises:
        AttributeError: of any other name.
    """
    if name != "__version__":
        raise AttributeError(f"module 'gaitforge' has no attribute '{name}'")
    from importlib.metadata import version

    return version("gaitforge")
