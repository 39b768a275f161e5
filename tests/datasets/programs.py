"""Programs in processes of their own, which may be killed, limited or looked into.

They are forked from a server process that has the imports behind it: a tenth of the time of a new
interpreter (https://docs.python.org/3.11/library/multiprocessing.html, "forkserver").
"""

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
    """Python code that runs in a process and finds the arguments in `sys.argv[1:]`."""

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
        """Wait for the process; a signal's number is negative, as in `subprocess`."""
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


def run_killed(
    places: str, call: int, code: str, *arguments: object, after: bool = False
) -> CompletedProcess[str]:
    """As `run_program`; a call of some functions kills the process.

    Args:
        places: such as "os:replace,gaitforge.common.files:fsync_path", counted together.
        call: the number of the call; `after`: once it has done its work, else before.
    """
    return run_program(_KILLS + code, places, call, int(after), *arguments)


def run_on_full_disk(limit: int, code: str, *arguments: object) -> CompletedProcess[str]:
    """As `run_program`, where no file takes more bytes than the limit; prints a refusal."""
    return run_program(_FULL_DISK.format(limit=limit, code=code), *arguments)


_KILLS = """
import importlib, os, signal, sys
places, left, after = sys.argv.pop(1), [int(sys.argv.pop(1))], int(sys.argv.pop(1))

def killing(original):
    def called(*args, **kwargs):
        left[0] -= 1
        if left[0] == 0 and not after:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    return called

for place in places.split(","):
    module, _, path = place.partition(":")
    owner = importlib.import_module(module)
    *within, name = path.split(".")
    for each in within:
        owner = getattr(owner, each)
    setattr(owner, name, killing(getattr(owner, name)))
"""
_FULL_DISK = """
import resource, signal, sys
from gaitforge.datasets import DatasetError, open_store
from tests.datasets.making import small_schema, write_small_part

def limited():
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))

try:
    {code}
except DatasetError as error:
    print(error)
"""


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
