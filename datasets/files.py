"""Durable file operations: fsync, atomic replacement, and locks released when a process dies."""

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from gaitforge.datasets.errors import DatasetError
from gaitforge.datasets.layout import CATALOG, ROOT_FILE

_TEMPORARY = ".tmp"


def fsync_path(path: Path) -> None:
    """Flush a file or a folder's entry to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_tree(root: Path) -> None:
    """Flush every file and folder under `root`, the root last."""
    for folder, _, names in os.walk(root, topdown=False):
        for name in names:
            fsync_path(Path(folder, name))
        fsync_path(Path(folder))


def replace_durably(source: Path, target: Path) -> None:
    """Move `source` over `target` atomically, so that it survives a power cut."""
    os.replace(source, target)
    fsync_path(target.parent)


def write_bytes_durably(path: Path, content: bytes) -> None:
    """Replace a file atomically; OSError if something else has the path, e.g. a device."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a file", os.fspath(path))
    with _flushed_temporary(path, content) as temporary:
        replace_durably(temporary, path)


def create_durably(path: Path, content: bytes) -> bool:
    """Create a file atomically; False, and nothing written, if `path` exists."""
    with _flushed_temporary(path, content) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, never replaces
        except FileExistsError:
            return False
        fsync_path(path.parent)
    return True


@contextlib.contextmanager
def _flushed_temporary(path: Path, content: bytes) -> Iterator[Path]:
    try:
        with temporary_file(path) as temporary:
            temporary.write_bytes(content)
            fsync_path(temporary)
            yield temporary
    except OSError as error:  # a failed write does not say what was written
        error.filename = error.filename or os.fspath(path)
        raise


def temporary_name(path: Path) -> Path:
    """A hidden name beside `path` that no other thread, process or host has."""
    return path.with_name(f".{path.name}.{secrets.token_hex(8)}{_TEMPORARY}")


@contextlib.contextmanager
def temporary_file(path: Path) -> Iterator[Path]:
    """A new file beside `path`, to be renamed to it; removed if it was not.

    It is locked while in use, so that `remove_leftover` knows it from a dead writer's.
    """
    while True:
        temporary = temporary_name(path)
        with open(temporary, "xb") as stream:
            try:
                with contextlib.suppress(OSError):  # without locks, nothing is taken for a leftover
                    fcntl.flock(stream, fcntl.LOCK_EX)
                if not _names_the_same_file(stream.fileno(), temporary):
                    continue  # taken for a leftover before it was locked
                yield temporary
                return
            finally:
                temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder to fill, of the name of `path`, which becomes `path` if nothing is raised.

    `path` may be an empty folder.
    """
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as beside:
        folder = Path(beside) / path.name
        folder.mkdir()
        yield folder
        fsync_tree(folder)
        replace_durably(folder, path)


def remove_leftover(path: Path) -> bool:
    """Remove a dead writer's temporary file, or what macOS left; False for any other file."""
    if path.name.startswith("._") or path.name == ".DS_Store":
        path.unlink(missing_ok=True)
        return True
    if not (is_hidden(path.name) and path.suffix == _TEMPORARY):
        return False
    try:
        with open(path, "r+b") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
    except OSError:  # a living writer has or had it, or the file system has no locks
        return False
    return True


def is_hidden(name: str) -> bool:
    """Whether a path below a folder has a part that begins with a dot.

    Such files are no data: temporary and cached ones, and what file managers and tools leave.
    """
    return any(part.startswith(".") for part in name.split("/"))


def visible(folder: Path) -> list[Path]:
    """Paths in a folder that are not hidden, sorted; none if it is absent."""
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(names) if not is_hidden(name)]


def check_outside_stores(path: Path) -> Path:
    """Return the path of something that is to be written; DatasetError if a store holds it."""
    for folder in (path.absolute(), *path.absolute().parents):
        if (folder / ROOT_FILE).is_file() and (folder / CATALOG).is_dir():
            raise DatasetError(f"{path} is inside the store {folder}; give a path outside of it")
    return path


def check_inside(root: Path, paths: Iterable[Path]) -> None:
    """DatasetError if a symbolic link leads one of the paths below `root` out of it.

    Otherwise an untrusted folder could put other files of this machine into a copy or an import.
    The root itself may be a link. The cache of the Hugging Face Hub keeps a snapshot's files as
    links into `blobs` beside `snapshots`; these are followed.
    """
    real = root.resolve()
    blobs = [each.parent / "blobs" for each in real.parents if each.name == "snapshots"]
    paths = list(paths)
    links = {path for path in paths if path.is_symlink()}
    for path in sorted(links.union(path.parent for path in paths)):
        target = path.resolve()
        if not any(target.is_relative_to(each) for each in (real, *blobs)):
            raise DatasetError(f"{path} leads out of {root} to {target}; put a copy in its place")


def join_inside(folder: Path, relative: object) -> Path:
    """The path of a name below `folder` that a file holds; DatasetError if it would lead out.

    Allowed are names joined by "/": on any system no absolute path, "..", empty part, backslash,
    drive or NUL, and no symbolic link out of the folder (see `check_inside`). It need not exist.
    """
    shown = f"{relative!a:.100}"
    parts = relative.split("/") if isinstance(relative, str) else []
    if not parts or any(part in ("", ".", "..") for part in parts):
        raise DatasetError(f"{shown} is no path inside {folder}; allowed are names joined by '/'")
    if any(each in str(relative) for each in "\\\0") or re.match("[A-Za-z]:", str(relative)):
        raise DatasetError(f"{shown} is no path inside {folder}; it has a drive, backslash or NUL")
    path = folder.joinpath(*parts)
    check_inside(folder, [path])
    return path


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_under(root: Path) -> list[str]:
    """Relative POSIX paths of all files under `root` that are not hidden, sorted."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in names if not is_hidden(name))


@contextlib.contextmanager
def exclusive_lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock file `path`; yields False if another process holds it and `wait` is off.

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


@contextlib.contextmanager
def shared_lock(path: Path) -> Iterator[None]:
    """Hold the lock file `path` beside others who do so; waits while `exclusive_lock` has it.

    The last holder removes the file.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if _names_the_same_file(descriptor, path):
            break
        os.close(descriptor)
    try:
        yield
    finally:
        with contextlib.suppress(BlockingIOError):  # somebody else holds it
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _names_the_same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    except FileNotFoundError:
        return False
