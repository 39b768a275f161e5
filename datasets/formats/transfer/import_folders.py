"""Staging folders of imports, and what interrupted imports left in them.

The folder lies beside the store, or beside the mirror of one on object storage. Its name contains a
digest of the content and the options, so an interrupted import finds it again; its lock marks a
running import.
"""

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from gaitforge.common.files import write_bytes_durably
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.storage.s3.bucket import local_folder

STORE = "store"
"""The staged store, below the staging folder."""

_ORIGIN = "origin"
_LOCK = ".lock"


def staging_folder(address: str | os.PathLike[str], tag: str) -> Path:
    """The folder of the import `tag`, 12 hexadecimal digits, into the store at `address`."""
    store_path = local_folder(address).resolve()
    return store_path.with_name(f".{store_path.name}.{tag}.importing")


def lock_path(folder: Path) -> Path:
    """The lock to hold while using a staging folder."""
    return folder.with_name(f"{folder.name}{_LOCK}")


def write_origin(folder: Path, origin: Path) -> None:
    """Record in a staging folder what it imports, for `remove_leftovers`."""
    write_bytes_durably(folder / _ORIGIN, str(origin.resolve()).encode())


def remove_leftovers(address: str | os.PathLike[str], origin: Path) -> None:
    """Remove staging folders of a store that no import will resume.

    They are those of the same `origin` (its content or the options changed, or all of it is in
    the store), those of an origin that no longer exists, and those without a staged store. Folders
    of other origins and locked ones stay.
    """
    store_path = local_folder(address).resolve()
    pattern = re.compile(rf"{re.escape(f'.{store_path.name}.')}[0-9a-f]{{12}}\.importing")
    with suppress(OSError):  # a folder that cannot be read or written is left as it is
        names = {name.removesuffix(_LOCK) for name in os.listdir(store_path.parent)}
        for folder in sorted(
            store_path.with_name(name) for name in names if pattern.fullmatch(name)
        ):
            with exclusive_lock(lock_path(folder), wait=False) as held:
                if held and not _resumable(folder, origin):
                    shutil.rmtree(folder, ignore_errors=True)


def _resumable(folder: Path, origin: Path) -> bool:
    try:
        recorded = Path((folder / _ORIGIN).read_text())
    except FileNotFoundError:
        return False
    return (folder / STORE).is_dir() and recorded != origin.resolve() and recorded.exists()
