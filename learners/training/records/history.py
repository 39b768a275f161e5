"""The history of a training run, as JSON lines, as a CSV table and for TensorBoard."""

import csv
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably

HISTORY = "history.jsonl"
TABLE = "metrics.csv"
EVENTS = "tensorboard"
_TAGS = {
    "loss": "loss/train",
    "validation_loss": "loss/validation",
    "lr": "optimiser/learning_rate",
    "steps_per_s": "speed/control_steps_per_s",
}


@dataclass(frozen=True)
class HistoryRow:
    """The run after some optimiser steps.

    loss is the mean since the previous row, validation_loss is None where it was not computed,
    steps_per_s counts control steps, and elapsed_s the training seconds over all resumes.
    """

    step: int
    loss: float
    validation_loss: float | None
    lr: float
    steps_per_s: float
    elapsed_s: float


COLUMNS = tuple(field.name for field in fields(HistoryRow))


class History:
    """Appends rows to `history.jsonl`, `metrics.csv` and `tensorboard/`.

    Rows after `last_step` are dropped, so that a resumed run leaves the same files as an
    uninterrupted one. TensorBoard gets a file for each start and hides later steps of earlier ones.
    """

    def __init__(self, run_dir: Path, last_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        kept = [row for row in read_history(run_dir) if row["step"] <= last_step]
        lines = "".join(json.dumps(row) + "\n" for row in kept)
        table = ",".join(COLUMNS) + "\n" + "".join(map(_as_csv, kept))
        self._files = []
        for name, content in ((HISTORY, lines), (TABLE, table)):
            write_bytes_durably(run_dir / name, content.encode())
            self._files.append((run_dir / name).open("a", encoding="utf-8"))
        purge = last_step + 1 if last_step else None
        self._events = SummaryWriter(str(run_dir / EVENTS), purge_step=purge)

    def append(self, row: HistoryRow) -> None:
        """Add one row and flush."""
        values = asdict(row)
        lines = (json.dumps(values) + "\n", _as_csv(values))
        for file, line in zip(self._files, lines, strict=True):
            file.write(line)
            file.flush()
        for name, tag in _TAGS.items():
            if values[name] is not None:
                self._events.add_scalar(tag, values[name], row.step)

    def sync(self) -> None:
        """Write the rows so far to the disk."""
        for file in self._files:
            os.fsync(file.fileno())

    def close(self) -> None:
        """Close the files."""
        self._events.close()
        for file in self._files:
            file.close()


def _as_csv(row: Mapping[str, object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row.get(name) for name in COLUMNS)
    return line.getvalue()


def read_history(run_dir: Path) -> list[dict[str, Any]]:
    """The rows so far, oldest first, without a last line cut short by a crash."""
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
