"""Simulates robots in Isaac Gym for its parent; called with the path of a settings file.

It answers over a pipe, as Isaac Gym prints, and ends when the pipe's other end closes.
"""

import contextlib
import json
import mmap
import os
import select
import shutil
import sys
import traceback
from typing import TYPE_CHECKING, Any

import protocol

if TYPE_CHECKING:
    from simulation import Simulation

PARENT_CHECK_S = 1.0


def main(settings_path: str) -> int:
    """Greet, then run commands until told to quit; returns the exit status."""
    with open(settings_path, encoding="utf-8") as file:
        settings = json.load(file)
    pipe = Pipe(settings)
    try:
        simulation, hello = start(settings)
    except BaseException as error:
        traceback.print_exc()
        pipe.write(protocol.json_line({"error": reason(error)}))
        return 1
    pipe.write(protocol.json_line(hello))
    return serve(pipe, simulation, settings)


def start(settings: "dict[str, Any]") -> "tuple[Simulation, dict[str, Any]]":
    """Import Isaac Gym and make the empty simulation, and the greeting."""
    # Imported here so that a failure is answered with its reason.
    from simulation import Simulation, isaacgym_version

    memory = mmap.mmap(settings["memory_fd"], protocol.memory_bytes(settings["robots"]))
    simulation = Simulation(settings, memory)
    hello = {
        "isaacgym": isaacgym_version(),
        "python": sys.version.split()[0],
        "device": str(simulation.device),
    }
    return simulation, hello


def serve(pipe: "Pipe", simulation: "Simulation", settings: "dict[str, Any]") -> int:
    """Run commands; 0 after QUIT, 1 after a failure or the parent's end."""
    while True:
        command = pipe.read_command()
        if command == b"":
            # The parent cannot clean up.
            shutil.rmtree(settings["folder"], ignore_errors=True)
            return 1
        if command == protocol.QUIT:
            return 0
        try:
            if command == protocol.BUILD:
                simulation.build()
            elif command in (protocol.STEP, protocol.STEP_WITH_EVENTS):
                simulation.step(command == protocol.STEP_WITH_EVENTS)
            else:
                raise RuntimeError(f"unknown command {command!r}")
        except BaseException as error:
            traceback.print_exc()
            pipe.write(protocol.FAILED + protocol.json_line({"error": reason(error)}))
            return 1
        pipe.write(protocol.DONE)


class Pipe:
    """The worker's ends of the two pipes."""

    def __init__(self, settings: "dict[str, Any]"):
        self._commands = settings["command_fd"]
        self._answers = settings["answer_fd"]
        self._parent = settings["parent"]
        self._poll = select.poll()
        self._poll.register(self._commands, select.POLLIN)

    def read_command(self) -> bytes:
        """One byte, or none when the parent is gone; forks of it may hold the pipe open."""
        while True:
            if self._poll.poll(1000 * PARENT_CHECK_S):
                return os.read(self._commands, 1)
            if os.getppid() != self._parent:
                return b""

    def write(self, message: bytes) -> None:
        """Answer; a closed pipe shows at the next read."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self._answers, message)


def reason(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit without the simulator's teardown.
    os._exit(status)
