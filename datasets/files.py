"""Durable file operations: fsync, atomic replacement, and locks that die with their process."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

READ_BLOCK_BYTES = 1 << 20


def fsync_path(path: Path) -> None:
    """Flush a file's or a folder's own entry to the disk."""
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
    """Move ``source`` over ``target`` in one step that survives a power cut."""
    os.replace(source, target)
    fsync_path(target.parent)


def write_bytes_durably(path: Path, content: bytes) -> None:
    """Write a file so that readers see its old content, or all of the new one, and never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        replace_durably(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def create_durably(path: Path, content: bytes) -> bool:
    """Write a new file in one step; False, and nothing written, when ``path`` already exists."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.link(temporary, path)  # unlike a rename, never replaces
        fsync_path(path.parent)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(READ_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def files_under(root: Path) -> list[str]:
    """Relative POSIX paths of all the files under ``root``, sorted."""
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file ``path``; yields False when ``wait`` is off and another process holds it.

    The kernel releases the lock when the process dies, so a killed writer never blocks the next
    one. The file is removed on release; a waiter that then holds a removed file tries again.
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
