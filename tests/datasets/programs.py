"""Programs in processes of their own, which may be killed, limited or looked into.

They are forked from a server process that has the imports behind it: a tenth of the time of a new
interpreter (https://docs.python.org/3.11/library/multiprocessing.html, "forkserver").
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import CompletedProcess

ROOT = Path(__file__).resolve().parents[2]
IMPORTED = [
    "tests.datasets.making",
    "gaitforge.datasets.formats.transfer.importing",
    "zarr",
    "pandas",
    "pytest",
]


class Program:
    """Python code that runs in a process and finds the arguments in ``sys.argv[1:]``."""

    def __init__(self, code: str, *arguments: object) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(IMPORTED)
        (self._out, out), (self._err, err) = context.Pipe(False), context.Pipe(False)
        words = list(map(str, arguments))
        self._process = context.Process(target=_run, args=(code, words, dict(os.environ), out, err))
        self._process.start()
        out.close()
        err.close()
        self.stdout = open(self._out.fileno(), closefd=False)  # noqa: SIM115

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait(self) -> int:
        """Wait for the process; a signal's number is negative, as in ``subprocess``."""
        self._process.join(120)
        assert self._process.exitcode is not None, "the program does not end"
        return self._process.exitcode

    def finish(self) -> CompletedProcess[str]:
        """Read what it prints to the end, and wait."""
        out = self.stdout.read()
        with open(self._err.fileno(), closefd=False) as stderr:
            return CompletedProcess([], self.wait(), out, stderr.read())


def run_program(code: str, *arguments: object) -> CompletedProcess[str]:
    """Run a program to its end; what it printed is captured, errors too."""
    return Program(code, *arguments).finish()


def run_afresh(code: str, *arguments: object) -> CompletedProcess[str]:
    """As `run_program`, in a new interpreter: nothing is imported yet."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)


def _run(
    code: str, words: list[str], environment: dict[str, str], out: Connection, err: Connection
) -> None:
    os.chdir(ROOT)
    os.dup2(out.fileno(), 1)
    os.dup2(err.fileno(), 2)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *words]
    exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
