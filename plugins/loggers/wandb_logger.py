"""Weights & Biases, https://wandb.ai: its key is that of `wandb login`, or WANDB_API_KEY.

WANDB_PROJECT, WANDB_ENTITY, WANDB_DIR and WANDB_MODE (online, offline, disabled) are its own.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaitforge.common.extensions import load_extra
from gaitforge.common.run_log import LoggedRun, State

_PROJECT = "gaitforge"


class WandbLogger:
    """A `Logger` whose run resumes by its id; offline, each start has a folder to sync."""

    def __init__(self, run: LoggedRun) -> None:
        wandb: Any = load_extra("wandb", "--log wandb", "wandb")
        if os.environ.get("WANDB_MODE", "online") in ("online", "shared"):
            _check_key(wandb)
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or _PROJECT,
            dir=os.environ.get("WANDB_DIR") or str(run.folder),
            id=run.id,
            name=run.name,
            group=run.group or None,
            config=dict(run.config),
            resume="allow",
            reinit="create_new",
            # What the terminal shows stays there, and so does the code.
            settings=wandb.Settings(
                console="off", disable_git=True, disable_code=True, save_code=False
            ),
        )
        self._next = self._run.step

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Logger.log`; a step that the service has is not sent again."""
        if step >= self._next:
            self._run.log(dict(values), step=step)

    def add_file(self, path: Path) -> None:
        """See `Logger.add_file`."""
        kept = shutil.copy(path, self._run.dir)  # else a link, and later changes with it
        self._run.save(kept, base_path=self._run.dir, policy="now")

    def finish(self, state: State) -> None:
        """See `Logger.finish`."""
        self._run.finish(exit_code=0 if state == "finished" else 1)


def _check_key(wandb: Any) -> None:
    """Raise ValueError without a key: wandb would ask for one at the terminal."""
    if not wandb.login(prompt=False):
        raise ValueError(
            "there is no key: run wandb login, set WANDB_API_KEY, or WANDB_MODE=offline"
        )
