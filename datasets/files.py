"""Durable file operations: fsync, atomic replacement, and locks released when a process dies."""

import contextlib
import errno
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from datasets.errors import DatasetError
from datasets.layout import CATALOG, ROOT_FILE

READ_BLOCK_BYTES = 1 << 20


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entry to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Flush every file and folder under ``root``, the root last."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            fsync_path(Path(folder, name))
        fsync_path(Path(folder))


def replace_durably(source: Path, target: Path) -> None:
    """Move ``source`` over ``target`` atomically, so that it survives a power cut."""
    os.replace(source, target)
    fsync_path(target.parent)


def write_bytes_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically: readers see its old or its new content, never a part.

    OSError if something else than a file has the path, e.g. a device.
    """
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    with _flushed_temporary(path, content) as temporary:
        replace_durably(temporary, path)


def create_durably(path: Path, content: bytes) -> bool:
    """Create a file atomically; False, and nothing written, if ``path`` exists."""
    with _flushed_temporary(path, content) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, never replaces
        except FileExistsError:
            return False
        fsync_path(path.parent)
    return True


@contextlib.contextmanager
def _flushed_temporary(path: Path, content: bytes) -> Iterator[Path]:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        yield temporary
    except OSError as error:  # a failed write does not say what was written
        error.filename = error.filename or os.fspath(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_outside_stores(path: Path) -> Path:
    """Return the path of something that is to be written; DatasetError if a store holds it."""
    for folder in (path.absolute(), *path.absolute().parents):
        if (folder / ROOT_FILE).is_file() and (folder / CATALOG).is_dir():
            raise DatasetError(f"{path} is inside the store {folder}; give a path outside of it")
    return path


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(READ_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def files_under(root: Path) -> list[str]:
    """Relative POSIX paths of all files under ``root``, sorted."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file ``path``; yields False if another process holds it and ``wait`` is off.

    The kernel releases the lock when the process dies. The file is removed on release; a waiter
    that got the removed file tries again.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            os.close(descriptor)
            yield False
            return
        if _names_the_same_file(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield True
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _names_the_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
