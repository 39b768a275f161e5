"""The record of a training run: one JSON line every few steps."""

import json
import os
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably

HISTORY = "history.jsonl"


class History:
    """Appends rows to `history.jsonl`: step, loss, validation_loss, lr, steps_per_s, elapsed_s.

    `loss` is the mean since the row before, `steps_per_s` counts control steps, `elapsed_s`
    counts training seconds over all resumes. Rows after `last_step` are dropped, so that a resumed
    run leaves the file an uninterrupted one would have left.
    """

    def __init__(self, run_dir: Path, last_step: int) -> None:
        self._path = run_dir / HISTORY
        kept = [row for row in read_history(run_dir) if row["step"] <= last_step]
        content = "".join(json.dumps(row) + "\n" for row in kept)
        write_bytes_durably(self._path, content.encode())
        self._file = self._path.open("a", encoding="utf-8")

    def append(self, row: dict[str, Any]) -> None:
        """Add one row; it is on its way to the disk when this returns."""
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def sync(self) -> None:
        """Make the rows so far survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """No further rows."""
        self._file.close()


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """The rows so far, oldest first; a last line that a crash cut short is left out."""
    path = run_dir / HISTORY
    if not path.is_file():
        return []
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
