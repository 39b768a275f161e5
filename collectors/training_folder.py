"""A training's folder: `training.json` commits a checkpoint, whose tensors lie beside it."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.common.files import write_bytes_durably
from gaitforge.common.history import HISTORY, HistoryFile
from gaitforge.common.interrupts import Notices, Stopped, stop_signals
from gaitforge.common.run_log import RunLog, logged_training
from gaitforge.datasets.layout import check_outside_stores

if TYPE_CHECKING:
    import torch

TRAINING = "training.json"
POLICY = "policy"
"""Folder of a trained network of the registry, in its training's folder."""
Report = Callable[[dict[str, Any]], None]
_LOGGED = (TRAINING, HISTORY)
"""Files of a training's folder that its loggers get."""
_COUNTS = ("steps", "total_steps", "remaining_s")
"""Columns of a row that are no curve."""

CHECKPOINT_EVERY_S = 60.0
"""Seconds between checkpoints. They wait for an update's end, so up to two minutes may be lost."""


class TrainingFiles:
    """Writes a training's history, and its checkpoints: regularly, at its end, and at a signal."""

    def __init__(
        self, history: HistoryFile, log: RunLog, every_s: float, notices: Notices, report: Report
    ) -> None:
        self._history = history
        self._log = log
        self._every_s = every_s
        self._notices = notices
        self._saved = time.monotonic()
        self._report = report

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to the history, log and report it."""
        self._history.append(row)
        self._log.log(row["steps"], {name: row[name] for name in row if name not in _COUNTS})
        self._report(row)

    def after_step(
        self, steps: int, save: Callable[[], None], *, last: bool, convenient: bool = True
    ) -> None:
        """Call `save` if a checkpoint is due; raises Stopped if a signal came, after saving.

        Args:
            steps: steps done so far; last: whether these are all.
            convenient: whether a checkpoint that is due may be written now.
        """
        received = self._notices.received
        due = time.monotonic() - self._saved >= self._every_s
        if last or received or (due and convenient):
            self._history.sync()
            save()
            self._saved = time.monotonic()
        if received:
            raise Stopped(received, f"step {steps}")


@contextmanager
def training_files(
    out: Path, config: Mapping[str, Any], steps: int, report: Report
) -> Iterator[TrainingFiles]:
    """Open a training's files after `steps`; signals wait for `TrainingFiles.after_step`.

    Args:
        config: its settings, with `steps` in all and `checkpoint_every_s`.
    """
    with (
        closing(HistoryFile(out, "steps", steps)) as history,
        logged_training(out, config, steps, _LOGGED) as log,
        stop_signals() as notices,
    ):
        yield TrainingFiles(history, log, config["checkpoint_every_s"], notices, report)


def write_checkpoint(
    out: Path, number: int, tensors: "Mapping[str, torch.Tensor]", record: Mapping[str, Any]
) -> None:
    """Write the tensors, then the record with their file as "tensors"; remove older tensors."""
    from safetensors.torch import save  # it imports torch

    check_outside_stores(out)
    name = f"training-{number}.safetensors"
    content = save({key: value.contiguous() for key, value in tensors.items()})
    write_bytes_durably(out / name, content)
    tree = {**record, "tensors": name}
    write_bytes_durably(out / TRAINING, json.dumps(tree, indent=1).encode())
    for old in out.glob("training-*.safetensors"):
        if old.name != name:
            old.unlink()


def check_setting(out: Path, name: str, recorded: object, mine: object) -> None:
    """Raise ValueError if the training in `out` has another value of a setting."""
    if recorded != mine:
        raise ValueError(
            f"{out} holds a training with {name}={recorded}, not {mine}; choose another folder"
        )
