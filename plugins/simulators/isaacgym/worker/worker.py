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
    from simulation import WorkerSimulation

PARENT_CHECK_S = 1.0


def main(settings_path: str) -> int:
    """Greet, then run commands until told to quit; returns the exit status."""
    with open(settings_path, encoding="utf-8") as file:
        settings = json.load(file)
    try:
        # Imported here so that a failure is answered with its reason.
        from simulation import WorkerSimulation, isaacgym_version

        memory = mmap.mmap(settings["memory_fd"], protocol.memory_bytes(settings["robots"]))
        simulation = WorkerSimulation(settings, memory)
        hello = {"isaacgym": isaacgym_version(), "device": str(simulation.device)}
    except BaseException as error:
        return fail(settings, error)
    answer(settings, json_line(hello))
    return serve(simulation, settings)


def serve(simulation: "WorkerSimulation", settings: "dict[str, Any]") -> int:
    """Run commands; 0 after QUIT, 1 after a failure or the parent's end."""
    poll = select.poll()
    poll.register(settings["command_fd"], select.POLLIN)
    while True:
        command = read_command(poll, settings)
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
            return fail(settings, error)
        answer(settings, protocol.DONE)


def read_command(poll: select.poll, settings: "dict[str, Any]") -> bytes:
    """One byte, or none when the parent is gone; forks of it may hold the pipe open."""
    while not poll.poll(1000 * PARENT_CHECK_S):
        if os.getppid() != settings["parent"]:
            return b""
    return os.read(settings["command_fd"], 1)


def answer(settings: "dict[str, Any]", line: bytes) -> None:
    """Send a message; a closed pipe shows at the next read."""
    with contextlib.suppress(BrokenPipeError):
        os.write(settings["answer_fd"], line)


def json_line(message: "dict[str, Any]") -> bytes:
    """A message as one line."""
    return json.dumps(message).encode("utf-8") + b"\n"


def fail(settings: "dict[str, Any]", error: BaseException) -> int:
    """Answer with an exception's traceback in the log, and with its reason; returns the status."""
    traceback.print_exc()
    text = " ".join(str(error).split())
    reason = f"{type(error).__name__}: {text}" if text else type(error).__name__
    answer(settings, json_line({"error": reason}))
    return 1


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    sys.stderr.flush()
    # Exit without the simulator's teardown.
    os._exit(status)
