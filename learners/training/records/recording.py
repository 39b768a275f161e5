"""What a run leaves in its folder: settings, history, events and checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably
from learners.checkpoint import BEST, save_checkpoint
from learners.training.records.event_files import EventFiles
from learners.training.records.history import History
from learners.training.update import Updater

CONFIG = "config.json"


class RunFiles:
    """Writes a run's folder; only the rank that leads has one.

    Raises:
        ValueError: the folder cannot be written.
    """

    def __init__(self, run_dir: Path, card: dict[str, Any], last_step: int) -> None:
        self._run_dir = run_dir
        config = json.dumps(card, indent=2) + "\n"
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            write_bytes_durably(run_dir / CONFIG, config.encode())
            self._history = History(run_dir, last_step)
            self._events = EventFiles(run_dir, last_step)
        except OSError as error:
            raise ValueError(
                f"cannot write a run to {run_dir}: {error.strerror}; give a folder that can "
                "be written"
            ) from error

    def append(self, row: dict[str, Any]) -> None:
        """Add a row to the history and the events."""
        self._history.append(row)
        self._events.append(row)

    def save(self, updater: Updater, card: dict[str, Any]) -> None:
        """Replace the checkpoint from which the run goes on."""
        self._history.sync()
        averages = None if updater.averages is None else updater.averages.state()
        save_checkpoint(self._run_dir, updater.policy, updater.optimiser, card, averages)

    def save_best(self, updater: Updater, card: dict[str, Any]) -> None:
        """Replace the best policy by the updater's, as its weights are now."""
        save_checkpoint(self._run_dir, updater.policy, None, card, name=BEST)

    def close(self) -> None:
        """End the history and the events."""
        self._history.close()
        self._events.close()
