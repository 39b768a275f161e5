"""Signs of life: who wrote a file, and how old it is by the file system's own clock.

Clocks of several hosts differ, and one may jump. A file's age is therefore its modification time
against that of a file written now in the same place: a shared file system stamps both alike.
"""

import contextlib
import errno
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

Result = TypeVar("Result")

SILENT_S = 60.0
"""Age of the last sign of life of a process that is taken for dead or hanging."""

_READS = 5

_GONE = (errno.ENOENT, errno.ESTALE)
"""ESTALE is what a client of NFS gets for a file that another host has removed."""


@dataclass(frozen=True)
class ProcessIdentity:
    """A process, as it is known to others: also on other hosts and in other containers.

    Attributes:
        host: its name, for people; pid: its number in its space.
        space: the running kernel and its table of process numbers; hosts may share a name.
        born: its start in ticks since the kernel's; 0 if unknown. Numbers are used again.
    """

    host: str
    pid: int
    space: str
    born: int

    @classmethod
    def of_this(cls) -> "ProcessIdentity":
        """The process that calls."""
        pid = os.getpid()
        return cls(socket.gethostname(), pid, _space(), _birth(pid))

    def has_ended(self) -> bool:
        """Whether it is known to have ended; False for one that cannot be seen from here."""
        if self.space != _space():
            return False
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return True
        except (OSError, OverflowError):  # PermissionError: another user's process
            return False
        born = _birth(self.pid)
        return bool(self.born and born and self.born != born)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def is_gone(error: OSError) -> bool:
    """Whether an error says that a file is not there any more."""
    return error.errno in _GONE


def file_system_time(folder: Path) -> float:
    """The time now by the clock that stamps the files of a folder, in seconds since the epoch.

    It is this host's time where the folder cannot be written.
    """
    probe = folder / f".now.{secrets.token_hex(8)}.tmp"
    try:
        descriptor = os.open(probe, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError:
        return time.time()
    try:
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(probe)


def read_current(path: Path) -> tuple[bytes, float]:
    """A file's content and modification time; FileNotFoundError if it is gone.

    It is opened for that: a client of NFS asks the server then, and else may answer from memory.
    """

    def read() -> tuple[bytes, float]:
        with open(path, "rb") as stream:
            return stream.read(), os.fstat(stream.fileno()).st_mtime

    return again_if_stale(path, read)


def again_if_stale(path: Path | str, read: Callable[[], Result]) -> Result:
    """The result of `read`, which opens a file; again where another host replaced it meanwhile.

    FileNotFoundError if it is gone.
    """
    for _ in range(_READS):
        try:
            return read()
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.fspath(path))


@cache
def _space() -> str:
    """The kernel's id and that of its table of processes; the host's name on other systems."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return socket.gethostname()


def _birth(pid: int) -> int:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    # The name, in parentheses, may hold spaces; the start is field 22, the state after it field 3.
    return int(status.rpartition(")")[2].split()[19])
