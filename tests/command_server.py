"""The command line and Python scripts in forks of one process that has imported all they need.

Importing torch, MuJoCo and numba takes seconds of CPU; tests of pages run a hundred commands. A
fork does what a new process does after its imports.
"""

import atexit
import os
import runpy
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

_CLIENT = """#!{python} -IS
import os, socket, sys
server = socket.socket(socket.AF_UNIX)
server.connect({address!r})
words = [os.getcwd(), {kind!r}, *sys.argv[1:]]
words += [name + "=" + value for name, value in os.environ.items()]
message = "\\0".join([str(len(sys.argv) + 1), *words]).encode()
socket.send_fds(server, [len(message).to_bytes(4, "little")], [0, 1, 2])
server.sendall(message)
code = server.recv(1)
sys.exit(code[0] if code else 1)
"""


@contextmanager
def command_server(folder: Path) -> Iterator[Path]:
    """A folder for PATH with `gaitforge` and `python`, which a server in `folder` answers."""
    address = str(folder / "socket")
    programs = folder / "bin"
    programs.mkdir()
    for kind in ("gaitforge", "python"):
        program = programs / kind
        program.write_text(_CLIENT.format(python=sys.executable, address=address, kind=kind))
        program.chmod(0o755)
    reading, writing = os.pipe()
    server = Popen([sys.executable, __file__, address, str(writing)], pass_fds=[writing])
    os.close(writing)
    with os.fdopen(reading, "rb") as ready:
        assert ready.read(), "the server did not start"
    try:
        yield programs
    finally:
        server.terminate()
        server.wait()


def _serve(address: str, ready: int) -> None:
    """Answer every client in a fork; `ready` is a pipe that hears when the first may come."""
    import gaitforge.flows.stages.evaluate
    import gaitforge.flows.stages.train
    import gaitforge.flows.tasks.legged_evaluation
    import gaitforge.pipeline.cli.main  # noqa: F401

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen()
    os.write(ready, b"1")
    os.close(ready)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps the forks
    while True:
        client, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            _answer(client)
        client.close()


def _answer(client: socket.socket) -> None:
    """Run a client's command as its process would, tell it the exit code, and end."""
    size, descriptors, _, _ = socket.recv_fds(client, 4, 3)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    message = b""
    while len(message) < int.from_bytes(size, "little"):
        message += client.recv(1 << 16)
    count, *words = message.decode().split("\0")
    folder, kind, *arguments = words[: int(count)]
    os.chdir(folder)
    os.environ.clear()
    for word in words[int(count) :]:
        name, _, value = word.partition("=")
        os.environ[name] = value
    sys.path[:0] = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    code = _run(kind, arguments)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    client.sendall(bytes([code]))
    os._exit(code)


def _run(kind: str, arguments: list[str]) -> int:
    """The exit code of `gaitforge ARGUMENTS` or `python SCRIPT ARGUMENTS`."""
    try:
        if kind == "python":
            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
            return 0
        from gaitforge.pipeline.cli.main import main

        sys.argv = [kind, *arguments]
        return main()
    except SystemExit as end:
        code: Any = end.code
        return code if isinstance(code, int) else int(code is not None)
    except BaseException:
        traceback.print_exc()
        return 1


if __name__ == "__main__":
    del sys.path[0]  # the folder of this file
    _serve(sys.argv[1], int(sys.argv[2]))
