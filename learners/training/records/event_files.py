"""The record of a training run for TensorBoard."""

from pathlib import Path
from typing import Any

EVENTS = "tensorboard"
_TAGS = {
    "loss": "loss/train",
    "validation_loss": "loss/validation",
    "lr": "optimiser/learning_rate",
    "steps_per_s": "speed/control_steps_per_s",
}


class EventFiles:
    """Writes a run's rows as scalars under `tensorboard/`, a file for each start of the run.

    TensorBoard hides what earlier files hold after `last_step`, so that no step shows twice.
    """

    def __init__(self, run_dir: Path, last_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # inside: slow to import

        purge = last_step + 1 if last_step else None
        self._writer = SummaryWriter(str(run_dir / EVENTS), purge_step=purge)

    def append(self, row: dict[str, Any]) -> None:
        """Add one row of the history."""
        for name, tag in _TAGS.items():
            if row[name] is not None:
                self._writer.add_scalar(tag, row[name], row["step"])

    def close(self) -> None:
        """Flush and end the file."""
        self._writer.close()
