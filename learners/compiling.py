"""Machine code for inner loops that NumPy and PyTorch have no call for, by numba."""

from collections.abc import Callable
from typing import Any

from numba import njit


def compiled(**options: Any) -> Callable[[Any], Any]:
    """njit, the machine code kept on disk, or in memory where no folder can be written.

    Sums may be reordered ("reassoc") and products fused ("contract"); the other liberties of fast
    arithmetic are not taken, so that a NaN stays a NaN.
    """
    options = {"fastmath": {"reassoc", "contract", "nsz"}, **options}

    def compile_lazily(function: Any) -> Any:
        try:
            return njit(cache=True, **options)(function)
        except RuntimeError:  # numba found no place for its cache
            return njit(**options)(function)

    return compile_lazily
