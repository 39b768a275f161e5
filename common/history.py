"""A training's history: a row of numbers now and then, as JSON lines."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaitforge.common.files import write_bytes_durably

HISTORY = "history.jsonl"
_TYPES: dict[str, Any] = {
    "step": int,
    "steps": int,
    "total_steps": int,
    "elapsed_s": int | float,
    "loss": int | float | None,
    "validation_loss": int | float | None,
    "lr": int | float | None,
    "steps_per_s": int | float | None,
}
"""Column -> its type, of those that several readers know; a training may write others."""


class HistoryFile:
    """Appends rows to a folder's `history.jsonl`, and cuts those after the last checkpoint.

    So a resumed training leaves the same rows as an uninterrupted one. `kept` are the rows that
    were there and stay, each step once.
    """

    def __init__(self, folder: Path, key: str, last_step: int) -> None:
        """Keep rows whose `key` is at most `last_step`; ValueError for another kind's rows."""
        path = folder / HISTORY
        rows = read_history(folder)
        if not all(key in row for row in rows):
            raise ValueError(f"{path} is of another kind of training; choose another folder")
        once = {row[key]: row for row in rows if row[key] <= last_step}
        self.kept = [once[step] for step in sorted(once)]
        write_bytes_durably(path, "".join(json.dumps(row) + "\n" for row in self.kept).encode())
        self._file = path.open("a", encoding="utf-8")

    def append(self, row: Mapping[str, Any]) -> None:
        """Add one row and flush."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Write the rows so far to the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_history(folder: Path) -> list[dict[str, Any]]:
    """The rows so far, oldest first, without a last line cut short by a crash.

    Raises:
        ValueError: another line is no row of named numbers.
    """
    path = folder / HISTORY
    lines = path.read_bytes().splitlines() if path.is_file() else []
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number} is not JSON") from None
        if not _is_row(row):
            raise ValueError(f"{path}, line {number} is no object of named numbers")
        rows.append(row)
    return rows


def _is_row(row: object) -> bool:
    """Whether values are an object whose counts and times are numbers."""
    if not isinstance(row, dict):
        return False
    return all(
        isinstance(row[name], kind) and not isinstance(row[name], bool)
        for name, kind in _TYPES.items()
        if name in row
    )
