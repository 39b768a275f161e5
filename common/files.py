"""Durable file operations: fsync, atomic replacement, creation, temporary files; names in files."""

import contextlib
import errno
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gaitforge.common.errors import DatasetError
from gaitforge.common.locks import (
    again_if_stale,
    exclusive_lock,
    file_system_time,
    names_the_same_file,
    try_flock,
)

_TEMPORARY = ".tmp"

_ABANDONED_S = 24 * 3600.0
"""Age of a temporary file whose writer is taken for dead, where there are no locks to tell."""

_NO_LINKS = frozenset(
    (
        errno.EPERM,
        errno.EACCES,
        errno.EOPNOTSUPP,
        errno.ENOTSUP,
        errno.ENOSYS,
        errno.EINVAL,
        errno.ENOTTY,
        errno.EMLINK,
        errno.EXDEV,
    )
)
"""What a file system without hard links says."""


def cache_folder() -> Path:
    """The folder of this program's files that can be made again, in the user's cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gaitforge"


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
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if not _rename_unless_there(temporary, path):
                return False
        fsync_path(path.parent)
    return True


def _rename_unless_there(temporary: Path, path: Path) -> bool:
    """Rename a file to `path` unless that exists; all that create it this way take turns."""
    with exclusive_lock(path.with_name(f".{path.name}.lock")):
        if os.path.lexists(path):
            return False
        os.rename(temporary, path)
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
                with contextlib.suppress(OSError):
                    try_flock(stream.fileno(), temporary)
                if not names_the_same_file(stream.fileno(), temporary):
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
            free = try_flock(stream.fileno(), path)
            if free is None:  # without locks only its age tells
                age_s = file_system_time(path.parent) - os.fstat(stream.fileno()).st_mtime
                free = age_s > _ABANDONED_S
            if free:
                path.unlink(missing_ok=True)
            return free
    except OSError:  # it was renamed or removed meanwhile
        return False


def is_hidden(name: str) -> bool:
    """Whether a path below a folder has a part that begins with a dot.

    Such files are no data: temporary and cached ones, and what file managers and tools leave.
    """
    return any(part.startswith(".") for part in name.split("/"))


def visible(folder: Path) -> list[Path]:
    """Paths in a folder that are not hidden, sorted; none if it is absent."""
    names = os.listdir(folder) if folder.is_dir() else []
    return [folder / name for name in sorted(names) if not is_hidden(name)]


def check_inside(root: Path, paths: Iterable[Path]) -> None:
    """DatasetError if a symbolic link leads one of the paths below `root` out of it.

    Otherwise an untrusted folder could put other files of this machine into a copy or an import.
    The root itself may be a link. The cache of the Hugging Face Hub keeps a snapshot's files as
    links into `blobs` beside `snapshots`; these are followed.
    """
    real = root.resolve()
    blobs = [folder.parent / "blobs" for folder in real.parents if folder.name == "snapshots"]
    paths = list(paths)
    links = {path for path in paths if again_if_stale(path, path.is_symlink)}
    for path in sorted(links.union(path.parent for path in paths)):
        target = path.resolve()
        if not any(target.is_relative_to(folder) for folder in (real, *blobs)):
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
    if any(mark in str(relative) for mark in "\\\0") or re.match("[A-Za-z]:", str(relative)):
        raise DatasetError(f"{shown} is no path inside {folder}; it has a drive, backslash or NUL")
    path = folder.joinpath(*parts)
    try:
        check_inside(folder, [path])
    except OSError as error:  # no file can have this name, as it is too long
        raise DatasetError(f"{shown} is no path inside {folder}: {error.strerror}") from error
    return path


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal."""
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def files_under(root: Path) -> list[str]:
    """Relative POSIX paths of all files under `root` that are not hidden, sorted."""
    names = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    return sorted(name for name in names if not is_hidden(name))


def tensors_below(prefix: str, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tensors of a file that are named "PREFIX.REST", as REST -> tensor."""
    start = f"{prefix}."
    return {key[len(start) :]: value for key, value in tensors.items() if key.startswith(start)}
