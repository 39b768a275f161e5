"""Trackio, https://github.com/gradio-app/trackio: on this machine, or in a Space of Hugging Face.

TRACKIO_DIR, TRACKIO_SPACE_ID, TRACKIO_SERVER_URL and HF_TOKEN are its own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaitforge.common.extensions import load_extra
from gaitforge.common.run_log import LoggedRun, State

_PROJECT = "gaitforge"


class TrackioLogger:
    """A `Logger` whose run resumes by its name, which ends with the id."""

    def __init__(self, run: LoggedRun) -> None:
        trackio: Any = load_extra("trackio", "--log trackio", "trackio")
        self._artifact = trackio.Artifact
        self._name = f"{run.name}-{run.id[:6]}"
        self._run: Any = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT") or _PROJECT,
            name=self._name,
            group=run.group or None,
            config=dict(run.config),
            resume="allow",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )
        self._next = getattr(self._run, "_next_step", 0)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Logger.log`; a step that Trackio has is not sent again."""
        if step >= self._next:
            self._run.log(dict(values), step=step)

    def add_file(self, path: Path) -> None:
        """See `Logger.add_file`."""
        artifact = self._artifact(f"{self._name}-{path.name}", type="training")
        artifact.add_file(str(path))
        self._run.log_artifact(artifact)

    def finish(self, state: State) -> None:
        """See `Logger.finish`; Trackio has no states."""
        self._run.finish()
