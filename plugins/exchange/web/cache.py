"""The bound of what mirrors of remote stores keep on disk: the objects of arrays.

Those that were used least recently are removed first. Small files stay: a store is opened from them
without its server.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from gaitforge.common.errors import DatasetError
from gaitforge.common.files import cache_folder
from gaitforge.datasets.layout import PARTS
from gaitforge.plugins.exchange.web.manifest import MANIFEST

CACHE = "GAITFORGE_CACHE"
"""Variable: the folder of mirrors (default: gaitforge's folder in the user's cache)."""
CACHE_GB = "GAITFORGE_CACHE_GB"
"""Variable: the most GB of arrays in that folder (default: 50)."""
_DEFAULT_GB = 50.0
_IN_USE_S = 600.0
"""Objects that were used less long ago stay: a reader may be about to read them."""


def mirrors_folder() -> Path:
    """The folder of all mirrors."""
    chosen = os.environ.get(CACHE)
    return Path(chosen) if chosen else cache_folder()


def most_bytes() -> float:
    """The bound; DatasetError for a variable that is no number."""
    text = os.environ.get(CACHE_GB) or str(_DEFAULT_GB)
    try:
        return float(text) * 1e9
    except ValueError:
        raise DatasetError(f"{CACHE_GB}={text!r:.40} is no number of GB") from None


class CacheBound:
    """Counts what this process fetches, and removes old objects where it is too much."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._bytes: float | None = None

    def fetched(self, size: int) -> None:
        """Count an object that is about to be kept, and make room for it."""
        with self._lock:
            if self._bytes is None:
                self._bytes = float(sum(size for _, size, _ in _states()))
            self._bytes += size
            if self._bytes > most_bytes():
                self._bytes = _remove_oldest(most_bytes() - size)


def _objects() -> Iterator[Path]:
    """The objects of arrays in all mirrors of stores on web servers, which have a manifest."""
    for manifest in mirrors_folder().glob(f"*/{MANIFEST}"):
        objects = manifest.parent.glob(f"{PARTS}/*/**/*")
        yield from (path for path in objects if path.is_file())


def _states() -> list[tuple[float, int, Path]]:
    """Time of the last use, bytes and path of each object that no other process removes."""
    states = []
    for path in _objects():
        with suppress(FileNotFoundError):
            state = path.stat()
            states.append((state.st_mtime, state.st_size, path))
    return states


def _remove_oldest(wanted: float) -> float:
    """Remove objects until at most `wanted` bytes are left, if that can be; returns the bytes."""
    states = sorted(_states())
    left = float(sum(size for _, size, _ in states))
    until = time.time() - _IN_USE_S
    for modified, size, path in states:
        if left <= wanted or modified > until:
            break
        path.unlink(missing_ok=True)
        left -= size
    return left


BOUND = CacheBound()
"""Of this process."""
