"""Compilation of inner loops with numba."""

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

from gaitforge.common.kernels import jit


def compiled(**options: Any) -> Callable[[Any], Any]:
    """The njit of numba with its cache on disk, or in memory if no folder can be written.

    fastmath may reorder sums and fuse products, but keeps NaN. The cache depends on the files of
    the function, of those that it calls, and on this one.
    """
    options = {"fastmath": {"reassoc", "contract", "nsz"}, **options}

    def compile_lazily(function: Any) -> Any:
        return jit(_with_sources(function), **options)

    return compile_lazily


def _with_sources(function: Any) -> Any:
    """The function with the hashes of all files of its machine code as an unused free variable.

    Numba's cache sees changes of the function's own file and of the values of free variables, but
    not of the functions that it calls.
    """
    code = function.__code__
    names = function.__globals__
    called = [getattr(names.get(name), "py_func", None) for name in code.co_names]
    sources = {_file_hash(__file__), _file_hash(code.co_filename)}
    sources |= {source for called_one in called if called_one for source in _sources(called_one)}
    closure = *(function.__closure__ or ()), CellType(tuple(sorted(sources)))
    code = code.replace(co_freevars=(*code.co_freevars, "_sources"))
    return FunctionType(code, names, function.__name__, function.__defaults__, closure)


def _sources(function: Any) -> tuple[str, ...]:
    return function.__closure__[-1].cell_contents


def _file_hash(path: str) -> str:
    return sha256(Path(path).read_bytes()).hexdigest()
