"""The C compiler of this machine: builds an export's C files, and runs their checks."""

import ctypes
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_COMPILER = "cc"
_FAST = ("-std=c99", "-O3", "-march=native")
_PLAIN = ("-std=c99", "-O2")
_SECONDS = 600.0
_ERROR = re.compile(r"^largest error: (\S+)", re.MULTILINE)


def compiler() -> str | None:
    """The C compiler on PATH; None for none."""
    return shutil.which(_COMPILER)


def run_main(contents: Mapping[str, bytes]) -> float:
    """Compile policy_main and run it; the largest error that it prints.

    Raises:
        ValueError: no compiler, files that cannot be compiled, or wrong answers.
    """
    with tempfile.TemporaryDirectory(prefix="gaitforge-c-") as folder:
        main = Path(folder, "policy_main")
        sources = ("policy.c", "policy_weights.c", "main.c")
        compile_c(contents, sources, Path(folder), main, _PLAIN)
        run = subprocess.run([main], capture_output=True, text=True, timeout=_SECONDS, check=False)
    printed = _ERROR.search(run.stdout)
    if run.returncode or printed is None:
        said = " ".join(run.stdout.split()) or f"it ended with {run.returncode}"
        raise ValueError(f"the C code differs from the policy ({said}); it is not written")
    return float(printed[1])


def library(
    contents: Mapping[str, bytes], sources: Sequence[str], macros: Sequence[str] = ()
) -> ctypes.CDLL:
    """C files as a library of this process, which stays loaded; no file stays.

    macros: further words for the compiler.

    Raises:
        ValueError: no compiler, or files that cannot be compiled.
    """
    with tempfile.TemporaryDirectory(prefix="gaitforge-c-") as folder:
        built = Path(folder, "policy.so")
        shared = ("-shared", "-fPIC", *macros)
        try:
            compile_c(contents, sources, Path(folder), built, (*_FAST, *shared))
        except ValueError:  # a compiler that does not know -march=native
            compile_c(contents, sources, Path(folder), built, (*_PLAIN, *shared))
        return ctypes.CDLL(str(built))


def compile_c(
    contents: Mapping[str, bytes],
    sources: Sequence[str],
    folder: Path,
    output: Path,
    flags: Sequence[str],
    command: str = _COMPILER,
) -> None:
    """Write files into a folder and compile `sources` to `output`.

    Raises:
        ValueError: no such compiler, or what it says first.
    """
    found = shutil.which(command)
    if found is None:
        raise ValueError(f"no C compiler {command} is here; install one, such as gcc")
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    words = [found, *flags, *(str(folder / name) for name in sources), "-lm", "-o", str(output)]
    run = subprocess.run(words, capture_output=True, text=True, timeout=_SECONDS, check=False)
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if "error" in line] or ["no message"]
        raise ValueError(f"the C code cannot be compiled: {lines[0].strip()}")
