"""TensorBoard's files, in the folder `tensorboard` of a training."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gaitforge.common.run_log import LoggedRun, State

EVENTS = "tensorboard"
"""Folder of the files, in that of the training."""


class TensorBoardLogger:
    """A `Logger` that writes a file for each start, which hides later steps of earlier ones."""

    def __init__(self, run: "LoggedRun") -> None:
        from torch.utils.tensorboard import SummaryWriter  # slow to import

        purge = run.last_step + 1 if run.last_step else None
        self._events = SummaryWriter(str(run.folder / EVENTS), purge_step=purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Logger.log`."""
        for name, value in values.items():
            self._events.add_scalar(name, value, step)

    def add_file(self, path: Path) -> None:
        """See `Logger.add_file`; the file lies beside TensorBoard's already."""

    def finish(self, state: "State") -> None:
        """See `Logger.finish`."""
        self._events.close()
