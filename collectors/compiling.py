"""Machine code for the inner loops of the control step, by numba."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(function: Callable[..., Any]) -> Any:
    """numba.njit with a cache on disk, or in memory where no folder can be written.

    Arithmetic keeps the order of the code, without fused products, so that a robot gets the same
    bits alone and among others. The GIL is released.
    """
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # numba found no place for its cache
        return njit(**options)(function)
