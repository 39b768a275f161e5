"""The files of a run's folder: settings, history and checkpoints."""

import json
from collections.abc import Mapping
from pathlib import Path

from gaitforge.common.errors import disk_failures
from gaitforge.common.files import write_bytes_durably
from gaitforge.learners.checkpoint import BEST, save_checkpoint
from gaitforge.learners.policy.policy_network import PolicyNetwork
from gaitforge.learners.training.records.history import History
from gaitforge.learners.training.update import Updater

CONFIG = "config.json"


class TrainingFiles:
    """Writes a run's folder, on rank 0; ValueError if it cannot be written."""

    def __init__(self, run_dir: Path, card: Mapping[str, object], last_step: int) -> None:
        self._run_dir = run_dir
        config = json.dumps(card, indent=2) + "\n"
        problem = f"cannot write a run to {run_dir}"
        advice = "; give a folder that can be written"
        with disk_failures(problem, advice):
            run_dir.mkdir(parents=True, exist_ok=True)
            write_bytes_durably(run_dir / CONFIG, config.encode())
            self.history = History(run_dir, last_step)

    def save(self, updater: Updater, card: Mapping[str, object]) -> None:
        """Replace the checkpoint to resume from."""
        self.history.sync()
        state = updater.policy, updater.optimiser, card, updater.averages(), updater.values
        save_checkpoint(self._run_dir, *state)

    def save_policy(
        self, policy: PolicyNetwork, card: Mapping[str, object], name: str = BEST
    ) -> None:
        """Write or replace the checkpoint `name` with a policy alone, by default the best one."""
        save_checkpoint(self._run_dir, policy, None, card, name=name)
