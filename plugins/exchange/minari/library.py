"""The library `minari`, also for file systems without locks."""

from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py

from gaitforge.common.locks import has_locks


def minari_library() -> ModuleType:
    """The library, whose HDF5 storage opens files without HDF5's lock where there is none.

    It has no option for that, and HDF5 reads its environment variable only as it is loaded.
    """
    import minari

    with suppress(ImportError):  # a version that keeps it elsewhere works with locks
        from minari.dataset._storages import hdf5_storage

        hdf5_storage.h5py = _Hdf5()
    return minari


class _Hdf5:
    """The module `h5py` but for `File`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(h5py, name)

    def File(self, path: Path, mode: str, **options: Any) -> h5py.File:
        """Open a file that exists."""
        # None is HDF5's default, which would end, or wait for ever, without locks.
        return h5py.File(path, mode, locking=None if has_locks(path) else False, **options)
