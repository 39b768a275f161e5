"""Locks that processes hold on files, also where the file system has none, and signs of life."""

import contextlib
import errno
import fcntl
import json
import multiprocessing
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
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


ANSWER_S = 10.0
"""Seconds that a file system has to answer whether a lock is free."""

SAY_S = 10.0
"""Seconds of waiting for a lock until it is said, and its multiple of six between further lines."""

SIGN_S = 5.0
"""Seconds between two signs of life of a holder."""

_FIRST_POLL_S = 0.01
_LAST_POLL_S = 0.25

_NO_LOCKS = frozenset(
    (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)
)
_HELD = frozenset((errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES))
"""flock of NFS is one of POSIX on the server, which may say EACCES."""

_MODE = 0o666
"""Rights of a lock file, less the umask: with 002 a group shares its locks."""
_MOST_BYTES = 4096
"""Read of a lock file."""

_RECORD_BYTES = 1024
"""Of each record; more than the longest host name and process space need."""

_LOOKS = 2
"""At a name: a stale handle may be of another file that had it before."""

_TRIES = 100
"""Of opening a lock file that others remove again and again."""

_without_locks: set[int] = set()
"""Devices whose file system has no locks, as far as this process knows."""


class _Removed(Exception):
    """The lock file was removed by its holder while it was being taken."""


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path`; yields False if another process holds it and `wait` is off.

    It is released when the process dies. A wait says after ten seconds what it waits for. The file
    is removed on release.
    """
    started = time.monotonic()
    said = started + SAY_S
    pause = _FIRST_POLL_S
    while (lock := _take(path)) is None:
        if not wait:
            yield False
            return
        if time.monotonic() > said:
            said = time.monotonic() + 6 * SAY_S
            waited = f"{time.monotonic() - started:.0f} s"
            _say(f"waits for the lock {path}, which {_holder_text(path)} holds ({waited})")
        time.sleep(pause)
        pause = min(2 * pause, _LAST_POLL_S)
    try:
        yield True
    finally:
        lock.release()


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` beside others who do so; waits while `exclusive_lock` has it.

    Each holder has a file of its own beside `path`; see `is_shared`.
    """
    holder_path = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    with contextlib.ExitStack() as held:
        with exclusive_lock(path):
            held.enter_context(exclusive_lock(holder_path))
        yield


def is_shared(path: Path) -> bool:
    """Whether a process holds `path` by `shared_lock`; for who has the exclusive lock on it."""
    for holder_path in path.parent.glob(f"{path.name}.*"):
        with exclusive_lock(holder_path, wait=False) as is_free:
            if not is_free:
                return True
    return False


def has_locks(path: Path) -> bool:
    """Whether the file system of an existing file has locks; where not, it is said once."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return try_flock(descriptor, path, fcntl.LOCK_SH) is not None
    finally:
        os.close(descriptor)


def try_flock(descriptor: int, shown: Path, kind: int = fcntl.LOCK_EX) -> bool | None:
    """Take the kernel's lock on an open file without waiting: whether it was free.

    None, said once, where the file system has no locks or does not answer in ten seconds.
    """
    device = os.fstat(descriptor).st_dev
    if device in _without_locks:
        return None
    answers: list[int] = []
    # Its own descriptor: the thread may still be in the call when ours is closed.
    copied = os.dup(descriptor)
    asking = threading.Thread(target=_ask, args=(copied, kind, answers), daemon=True)
    asking.start()
    asking.join(ANSWER_S)
    if not answers:
        _without_locks.add(device)
        _say_without(shown, f"does not answer in {ANSWER_S:.0f} s whether a lock is free")
        return None
    [code] = answers
    if code == 0:
        return True
    if code in _HELD:
        return False
    if code in _NO_LOCKS:
        _without_locks.add(device)
        _say_without(shown, f"has no locks (flock: {os.strerror(code)})")
        return None
    raise OSError(code, os.strerror(code), os.fspath(shown))


def _ask(descriptor: int, kind: int, answers: list[int]) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        answers.append(0)
    except OSError as error:
        answers.append(error.errno or errno.EIO)
    finally:
        os.close(descriptor)  # the lock stays with the descriptor that this is a copy of


@dataclass(frozen=True)
class _Holder:
    """What a lock file says: whose it is, and by what.

    `by` is "flock", "file" for a file system without, "asking" until it has answered, and "nobody"
    where its creator did not take it. An empty file is one whose creator has not written yet.
    """

    process: ProcessIdentity
    by: str

    @classmethod
    def of_this(cls, by: str) -> "_Holder":
        return cls(ProcessIdentity.of_this(), by)

    def to_bytes(self) -> bytes:
        return json.dumps({"by": self.by, **asdict(self.process)}).encode()

    @classmethod
    def from_bytes(cls, content: bytes) -> "_Holder | None":
        """None for an empty or damaged file: its holder died before it wrote."""
        try:
            tree = json.loads(content)
            by = tree.pop("by")
            process = ProcessIdentity(**tree)
            numbers = isinstance(process.pid, int), isinstance(process.born, int)
            texts = isinstance(process.host, str), isinstance(process.space, str)
        except (ValueError, TypeError, KeyError, AttributeError):
            return None
        return cls(process, by) if all(numbers + texts) else None


class _Lock:
    """A held lock; its thread shows that the holder lives."""

    def __init__(self, path: Path, descriptor: int, by: str) -> None:
        self._path = path
        self._descriptor = descriptor
        self._by = by
        self._content = _Holder.of_this(by).to_bytes()
        self._closed = threading.Event()
        self._writing = threading.Lock()
        self._show_life()
        threading.Thread(target=self._keep_alive, daemon=True).start()

    def _show_life(self) -> None:
        """Write the file anew, so that the server of the file system stamps it."""
        _write(self._descriptor, self._content)
        if self._by == "file":
            with contextlib.suppress(OSError):
                os.fsync(self._descriptor)

    def _keep_alive(self) -> None:
        while not self._closed.wait(SIGN_S):
            with self._writing:
                if not self._closed.is_set():
                    self._show_life()

    def release(self) -> None:
        """Remove the file, unless another process took it over, and close it."""
        self._closed.set()
        # The number of a closed descriptor is used again: nothing may be written to it.
        with self._writing:
            try:
                if names_the_same_file(self._descriptor, self._path):
                    _unlink(self._path)
            finally:
                os.close(self._descriptor)


def _take(path: Path) -> _Lock | None:
    """Take a lock; None while another process holds it."""
    for attempt in range(_TRIES):
        try:
            return _try(path)
        except _Removed:
            time.sleep(_FIRST_POLL_S * min(attempt, 10))
    raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), os.fspath(path))


def _try(path: Path) -> _Lock | None:
    descriptor, created = _open(path)
    kept = False
    try:
        free = _ask_as_creator(descriptor, path) if created else try_flock(descriptor, path)
        if free is None and not created:
            return _take_over(path)
        if free and not names_the_same_file(descriptor, path):
            raise _Removed
        if free is False:
            return None
        if free and not created:
            lock = _take_left(descriptor, path)
        else:
            lock = _Lock(path, descriptor, "flock" if free else "file")
        kept = lock is not None
        return lock
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise _Removed from error
        raise
    finally:
        if not kept:
            if created:
                _stop_asking(descriptor)
            os.close(descriptor)


def _stop_asking(descriptor: int) -> None:
    """Say that a created lock file is nobody's, if it says that this process asks.

    Others would wait until it looks dead; meanwhile none of them writes to the file.
    """
    with contextlib.suppress(OSError):
        if _read(descriptor) in (_Holder.of_this("asking"), None):
            _write(descriptor, _Holder.of_this("nobody").to_bytes())


def _ask_as_creator(descriptor: int, path: Path) -> bool | None:
    """As `try_flock` of a file that this process created, and that is its lock without flock.

    The file says so meanwhile: a process that gets flock waits for how this ends.
    """
    asking = _Holder.of_this("asking")
    _write(descriptor, asking.to_bytes())
    free = try_flock(descriptor, path)
    untouched = _read(descriptor) in (asking, None)
    if free is None and not untouched:
        return False  # taken over: this process looked dead
    return free


def _take_left(descriptor: int, path: Path) -> _Lock | None:
    """Take a lock file of another process whose flock was free, if that process has no claim."""
    if _belongs_to_one_without(descriptor, path):
        return None
    with _taking(path) as alone:
        # A process without flock may have put a file of its own there.
        if not alone or not names_the_same_file(descriptor, path):
            return None
        return _Lock(path, descriptor, "flock")


def _belongs_to_one_without(descriptor: int, path: Path) -> bool:
    """Whether a lock file whose flock was free belongs to a living process that has no flock.

    Waits while its creator has not written yet or asks whether it has flock.
    """
    while (holder := _read(descriptor)) is None or holder.by == "asking":
        if not names_the_same_file(descriptor, path):
            raise _Removed
        if _is_dead(path, holder):
            return False
        time.sleep(_FIRST_POLL_S)
    return holder.by == "file" and not _is_dead(path, holder)


def _read(descriptor: int) -> _Holder | None:
    return _Holder.from_bytes(os.pread(descriptor, _MOST_BYTES, 0))


def _write(descriptor: int, content: bytes) -> None:
    """Write a lock file's record; a disk that is full or fails does not keep the lock from us."""
    with contextlib.suppress(OSError):
        # In one piece, so that nobody reads an empty file: spaces cover an older record.
        os.pwrite(descriptor, content.ljust(_RECORD_BYTES), 0)


def _open(path: Path) -> tuple[int, bool]:
    """A descriptor of the lock file, and whether it was created, by this process alone."""
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE), True
    except FileExistsError:
        pass
    except OSError as error:
        if error.errno == errno.ESTALE:
            raise _Removed from error
        raise
    try:
        return os.open(path, os.O_RDWR), False
    except OSError as error:
        if is_gone(error):
            raise _Removed from error
        raise


def _take_over(path: Path) -> _Lock | None:
    """Take a lock without flock from a dead holder; None if it lives."""
    if not _is_dead(path):
        return None
    with _taking(path) as alone:
        if not alone or not _is_dead(path):  # another process was faster
            return None
        _say(f"takes over the lock {path}: {_holder_text(path)} has ended or is silent")
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
        descriptor = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE)
        lock = _Lock(path, descriptor, "file")
        try:
            os.replace(fresh, path)
        except BaseException:
            lock.release()
            _unlink(fresh)
            raise
        return lock


@contextlib.contextmanager
def _taking(path: Path) -> Iterator[bool]:
    """Be the only process that takes the lock file of another; yields whether this one is.

    Without that, one could replace the file that another has just taken.
    """
    guard = path.with_name(f".{path.name}.taking.tmp")
    try:
        os.close(os.open(guard, os.O_RDWR | os.O_CREAT | os.O_EXCL, _MODE))
    except FileExistsError:
        if _is_silent(guard):
            _unlink(guard)
        yield False
        return
    try:
        yield True
    finally:
        _unlink(guard)


def _is_dead(path: Path, holder: _Holder | None = None) -> bool:
    """Whether the holder of a lock file has ended, or has been silent for long."""
    holder = holder or _holder(path)
    if holder is not None and holder.process.has_ended():
        return True
    return _is_silent(path)


def _is_silent(path: Path) -> bool:
    try:
        _, modified = read_current(path)
    except FileNotFoundError:
        return False
    return file_system_time(path.parent) - modified > SILENT_S


def _holder(path: Path) -> _Holder | None:
    try:
        return _Holder.from_bytes(read_current(path)[0])
    except OSError:
        return None


def _holder_text(path: Path) -> str:
    holder = _holder(path)
    return "another process" if holder is None else str(holder.process)


def names_the_same_file(descriptor: int, path: Path) -> bool:
    """Whether an open file still has the name `path`."""
    for _ in range(_LOOKS):
        try:
            return os.path.samestat(os.fstat(descriptor), os.stat(path))
        except OSError as error:
            if not is_gone(error):
                raise
            if error.errno != errno.ESTALE:
                break
    return False


def _unlink(path: Path) -> None:
    try:
        os.unlink(path)
    except OSError as error:
        if not is_gone(error):
            raise


def _say_without(path: Path, problem: str) -> None:
    # The processes that one command starts would all say it.
    if multiprocessing.parent_process() is None:
        folder = path.parent.absolute()
        _say(f"the file system of {folder} {problem}; files that name their process are its locks")


def _say(text: str) -> None:
    print(f"gaitforge: {text}", file=sys.stderr, flush=True)
