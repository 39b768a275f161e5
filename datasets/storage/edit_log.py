"""The log of a store's edits: one file each, written once, under a lock."""

import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures
from gaitforge.common.files import fsync_path, write_bytes_durably
from gaitforge.common.liveness import again_if_stale
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.catalog.edit_log import Edit, edit_name, is_edit_name, read_edit
from gaitforge.datasets.layout import EDITS, STAGING

LOCK = f"{EDITS}.lock"
"""Held while an edit is committed, in `.staging`."""


def last_sha256(edits: Sequence[Edit]) -> str:
    """`sha256` of the last edit; empty for none."""
    return edits[-1].sha256 if edits else ""


class EditLog:
    """The edits of the store at `root`, read again only when their files change."""

    def __init__(self, root: Path, address: str) -> None:
        self._root = root
        self._address = address
        self._read: dict[str, tuple[tuple[int, int], Edit]] = {}
        self._last: tuple[Edit, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder of the edits' files; it need not exist."""
        return self._root / EDITS

    def names(self) -> list[str]:
        """Names of the edits' files in order."""
        try:
            return sorted(name for name in os.listdir(self.folder) if is_edit_name(name))
        except FileNotFoundError:
            return []

    def load(self) -> tuple[Edit, ...]:
        """All edits in order: the same tuple while none is added.

        DatasetError if one is damaged, missing, or does not follow the one before it.
        """
        edits: list[Edit] = []
        for name in self.names():
            edit = self._edit(name)
            if (edit.number, edit.previous) != (len(edits) + 1, last_sha256(edits)):
                raise DatasetError(
                    f"edit {name} of {self._address} does not follow the edit before it: a file of "
                    f"{EDITS}/ was removed or added"
                )
            edits.append(edit)
        if [id(edit) for edit in edits] != [id(edit) for edit in self._last]:
            self._last = tuple(edits)
        return self._last

    def _edit(self, name: str) -> Edit:
        path = self.folder / name
        status = again_if_stale(path, path.stat)
        stamp = (status.st_size, status.st_mtime_ns)
        entry = self._read.get(name)
        if entry is None or entry[0] != stamp:
            entry = self._read[name] = (stamp, read_edit(path, self._address))
        return entry[1]

    def append(
        self,
        kind: str,
        content: Mapping[str, Any],
        rows: pa.Table,
        origin: Mapping[str, Any],
        after: str,
    ) -> Edit:
        """Commit an edit (see `Edit`); its file's appearance is the commit.

        The time is added to an `origin` without one. DatasetError, and nothing changed, if the
        disk fails or the last edit's `sha256` is not `after` (empty for none).
        """
        with disk_failures(f"store {self._address} cannot be edited"):
            (self._root / STAGING).mkdir(exist_ok=True)
            with exclusive_lock(self._root / STAGING / LOCK):
                edits = self.load()
                if last_sha256(edits) != after:
                    raise DatasetError(
                        f"store {self._address} was edited by another process meanwhile; nothing "
                        "was changed: run the same again"
                    )
                if not edits:
                    self.folder.mkdir(exist_ok=True)
                    fsync_path(self._root)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                edit = Edit(len(edits) + 1, kind, content, {"made": now, **origin}, after, rows)
                written = edit.to_bytes()
                write_bytes_durably(self.folder / edit_name(edit.number, written), written)
                return self.load()[-1]
