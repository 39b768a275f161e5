"""Machine code for the inner loops of the control step, by numba."""

from collections.abc import Callable
from functools import cached_property
from typing import Any

from gaitforge.common.numba_compilers import jit, ufunc


class compiled:
    """Compiles a function with numba at its first call: importing numba takes 0.2 s.

    The machine code is cached on disk, or in memory where no folder can be written. Arithmetic
    keeps the order of the code, without fused products, so that a robot gets the same bits alone
    and among others. The GIL is released.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        """The function's result."""
        return self._machine_code(*arguments)

    @cached_property
    def _machine_code(self) -> Callable[..., Any]:
        names = self._function.__globals__
        for name in self._function.__code__.co_names:  # numba needs its own objects to call
            if isinstance(names.get(name), compiled):
                names[name] = names[name]._machine_code
        return self._compile()

    def _compile(self) -> Callable[..., Any]:
        return jit(self._function, nogil=True, error_model="numpy")


class elementwise(compiled):
    """Compiles a function of numbers to one of float64 arrays, which broadcast.

    Sines and exponentials of `math` then come from the C library. NumPy has its own for processors
    with AVX-512, which differ in the last bit.
    """

    def _compile(self) -> Callable[..., Any]:
        numbers = ", ".join(["f8"] * self._function.__code__.co_argcount)
        return ufunc(self._function, [f"f8({numbers})"])
