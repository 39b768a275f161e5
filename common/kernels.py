"""Machine code for inner loops by numba: its compilers, fast arithmetic and exact arithmetic."""

import multiprocessing
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, cached_property
from hashlib import sha256
from pathlib import Path
from types import CellType, FunctionType, ModuleType
from typing import Any

_COVERAGE_NAMES = (
    "Tracer",
    "TTraceData",
    "TShouldTraceFn",
    "TFileDisposition",
    "TShouldStartContextFn",
    "TWarnFn",
    "TTraceFn",
)
"""What numba takes from `coverage.types` as it is imported."""


compile_listeners: list[Callable[[], object]] = []
"""Called when a function is about to be compiled, which takes seconds, once on a machine."""


@cache
def numba() -> ModuleType:
    """The package; every import of it in this project is this one."""
    with _coverage_hidden_if_too_old():
        import numba
    return numba


def jit(function: Any, **options: Any) -> Any:
    """`numba.njit` of a function; its machine code is kept in memory if no disk takes it."""
    njit = numba().njit
    try:
        dispatcher = njit(cache=True, **options)(function)
    except RuntimeError as error:  # numba found no folder for its cache
        _say_in_memory(error)
        return njit(**options)(function)
    _keep_on_without_disk(dispatcher)
    return dispatcher


def ufunc(function: Any, signatures: list[str], **options: Any) -> Any:
    """`numba.vectorize` of a function; its machine code is kept in memory as that of `jit`."""
    vectorize = numba().vectorize
    try:
        return vectorize(signatures, cache=True, **options)(function)
    except (RuntimeError, OSError) as error:  # OSError: it is compiled, and saved, at once
        _say_in_memory(error)
        return vectorize(signatures, **options)(function)


def _keep_on_without_disk(dispatcher: Any) -> None:
    """Let a compiled function work whose cache cannot be read or written, as on a full disk."""
    disk = dispatcher._cache
    load = _on_disk_or_in_memory(disk.load_overload)

    def loaded_or_told(*arguments: Any) -> Any:
        machine_code = load(*arguments)
        if machine_code is None:  # numba compiles it next
            for tell in compile_listeners:
                tell()
        return machine_code

    disk.load_overload = loaded_or_told
    disk.save_overload = _on_disk_or_in_memory(disk.save_overload)


def _on_disk_or_in_memory(operation: Callable[..., Any]) -> Callable[..., Any]:
    def attempt(*arguments: Any) -> Any:
        try:
            return operation(*arguments)
        except (OSError, EOFError) as error:  # EOFError: a file that a full disk cut off
            _say_in_memory(error)
            return None

    return attempt


_said: set[str] = set()


def _say_in_memory(error: Exception) -> None:
    reason = getattr(error, "strerror", None) or str(error)
    # The processes that one command starts would all say it.
    if _said or multiprocessing.parent_process() is not None:
        return
    _said.add(reason)
    where = getattr(error, "filename", None)
    words = f" in {where}" if where else ""
    print(
        f"gaitforge: machine code is compiled in memory, as numba cannot keep it{words}: {reason}; "
        "set NUMBA_CACHE_DIR to a folder with room to start faster",
        file=sys.stderr,
        flush=True,
    )


@contextmanager
def _coverage_hidden_if_too_old() -> Iterator[None]:
    """Let numba's import see no coverage if that lacks what numba takes from it."""
    if _fits_numba():
        yield
        return
    hidden = {name: module for name, module in sys.modules.items() if _is_coverage(name)}
    for name in hidden:
        del sys.modules[name]
    sys.modules["coverage"] = None  # pyright: ignore[reportArgumentType] (an import then fails)
    try:
        yield
    finally:
        del sys.modules["coverage"]
        sys.modules.update(hidden)


def _is_coverage(name: str) -> bool:
    return name.partition(".")[0] == "coverage"


def _fits_numba() -> bool:
    try:
        import coverage.types as types  # pyright: ignore[reportMissingImports] (may be absent)
    except ImportError:
        return "coverage" not in sys.modules  # numba imports the package alone
    return all(hasattr(types, name) for name in _COVERAGE_NAMES)


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


def compiled_fast(**options: Any) -> Callable[[Any], Any]:
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
