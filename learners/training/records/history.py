"""The record of a training run: one JSON line every few steps, and the same as a CSV table."""

import csv
import io
import json
import os
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably

HISTORY = "history.jsonl"
TABLE = "metrics.csv"
COLUMNS = ("step", "loss", "validation_loss", "lr", "steps_per_s", "elapsed_s")


class History:
    """Appends rows with the keys COLUMNS to `history.jsonl` and `metrics.csv`.

    `loss` is the mean since the row before, `validation_loss` is there where it was computed,
    `steps_per_s` counts control steps, `elapsed_s` counts training seconds over all resumes. Rows
    after `last_step` are dropped, so that a resumed run leaves the files an uninterrupted one
    would have left.
    """

    def __init__(self, run_dir: Path, last_step: int) -> None:
        kept = [row for row in read_history(run_dir) if row["step"] <= last_step]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        table = ",".join(COLUMNS) + "\n" + "".join(map(_as_csv, kept))
        self._files = []
        for name, content in ((HISTORY, lines), (TABLE, table)):
            write_bytes_durably(run_dir / name, content.encode())
            self._files.append((run_dir / name).open("a", encoding="utf-8"))

    def append(self, row: dict[str, Any]) -> None:
        """Add one row; it is on its way to the disk when this returns."""
        for file, line in zip(self._files, (json.dumps(row) + "\n", _as_csv(row)), strict=True):
            file.write(line)
            file.flush()

    def sync(self) -> None:
        """Make the rows so far survive a power cut."""
        for file in self._files:
            os.fsync(file.fileno())

    def close(self) -> None:
        """No further rows."""
        for file in self._files:
            file.close()


def _as_csv(row: dict[str, Any]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row.get(name) for name in COLUMNS)
    return line.getvalue()


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
