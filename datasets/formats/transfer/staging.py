"""Where an import grows before it is published, and what imports that died left there.

The folder lies beside the store, or beside the mirror of one on object storage. Its name holds what
is imported, so that an import goes on where it was interrupted; its lock says that one is at work.
"""

from __future__ import annotations

import os
import re
import shutil
from contextlib import suppress
from pathlib import Path

from datasets.files import exclusive_lock, write_bytes_durably
from datasets.storage.s3.bucket import Bucket, is_bucket_url

STORE = "store"
"""The store that grows, below the staging folder."""

_ORIGIN = "origin"
_LOCK = ".lock"


def staging_folder(address: str | os.PathLike[str], tag: str) -> Path:
    """The folder in which ``tag``, 12 hexadecimal digits, grows into the store at ``address``."""
    place = _place(address)
    return place.with_name(f".{place.name}.{tag}.importing")


def lock_path(staging: Path) -> Path:
    """The lock to hold while something grows in a staging folder."""
    return staging.with_name(f"{staging.name}{_LOCK}")


def note_origin(staging: Path, origin: Path) -> None:
    """Keep what is imported in a staging folder: ``remove_leftovers`` goes by that."""
    write_bytes_durably(staging / _ORIGIN, str(origin.resolve()).encode())


def remove_leftovers(address: str | os.PathLike[str], origin: Path) -> None:
    """Remove staging folders of a store that no import will go on with.

    They are those of the same ``origin`` (the content or the options changed since, or all of it is
    in the store), of one that is no longer there, and those without a store, which were published
    or never begun. What another source left stays, for its import goes on with it; so does what
    another process is at work with.
    """
    place = _place(address)
    pattern = re.compile(rf"{re.escape(f'.{place.name}.')}[0-9a-f]{{12}}\.importing")
    with suppress(OSError):  # a folder that cannot be read or written is left as it is
        found = {name.removesuffix(_LOCK) for name in os.listdir(place.parent)}
        for staging in sorted(place.with_name(name) for name in found if pattern.fullmatch(name)):
            with exclusive_lock(lock_path(staging), wait=False) as held:
                if held and not _goes_on(staging, origin):
                    shutil.rmtree(staging, ignore_errors=True)


def _goes_on(staging: Path, origin: Path) -> bool:
    try:
        noted = Path((staging / _ORIGIN).read_text())
    except FileNotFoundError:
        return False
    return (staging / STORE).is_dir() and noted != origin.resolve() and noted.exists()


def _place(address: str | os.PathLike[str]) -> Path:
    if is_bucket_url(address):
        from datasets.storage.s3.object_store import default_mirror

        return default_mirror(Bucket(str(address)))
    return Path(address).resolve()
