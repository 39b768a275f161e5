"""Compilation of inner loops with numba."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Any], Any]:
    """The njit of numba with its cache on disk, or in memory if no folder can be written.

    fastmath may reorder sums and fuse products, but keeps NaN.
    """
    options = {"fastmath": {"reassoc", "contract", "nsz"}, "cache": True, **options}

    def compile_lazily(function: Any) -> Any:
        try:
            return njit(**options)(function)
        except RuntimeError:  # no folder for the cache
            return njit(**{**options, "cache": False})(function)

    return compile_lazily
