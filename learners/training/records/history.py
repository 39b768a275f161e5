"""The history of a training run, as JSON lines, as a CSV table and for TensorBoard."""

import csv
import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from gaitforge.common.files import write_bytes_durably
from gaitforge.common.history import HistoryFile

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
    """State of the run after `step` optimiser steps.

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

        self._lines = HistoryFile(run_dir, "step", last_step)
        table = ",".join(COLUMNS) + "\n" + "".join(map(_as_csv, self._lines.kept))
        write_bytes_durably(run_dir / TABLE, table.encode())
        self._table = (run_dir / TABLE).open("a", encoding="utf-8")
        purge = last_step + 1 if last_step else None
        self._events = SummaryWriter(str(run_dir / EVENTS), purge_step=purge)

    def append(self, row: HistoryRow) -> None:
        """Add one row and flush."""
        values = asdict(row)
        self._lines.append(values)
        self._table.write(_as_csv(values))
        self._table.flush()
        for name, tag in _TAGS.items():
            if values[name] is not None:
                self._events.add_scalar(tag, values[name], row.step)

    def sync(self) -> None:
        """Write the rows so far to the disk."""
        self._lines.sync()
        os.fsync(self._table.fileno())

    def close(self) -> None:
        """Close the files."""
        self._events.close()
        self._lines.close()
        self._table.close()


def _as_csv(row: Mapping[str, object]) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(row.get(name) for name in COLUMNS)
    return line.getvalue()
