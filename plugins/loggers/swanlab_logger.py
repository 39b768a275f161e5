"""SwanLab, https://swanlab.cn: its key is that of `swanlab login`, or SWANLAB_API_KEY.

SWANLAB_MODE (online, local, offline, disabled), SWANLAB_PROJECT and the other variables are its
own.
"""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from gaitforge.common.extensions import load_extra
from gaitforge.common.run_log import LoggedRun, State

_PROJECT = "gaitforge"
_STATES: dict[State, Literal["success", "crashed", "aborted"]] = {
    "finished": "success",
    "stopped": "aborted",
    "failed": "crashed",
}


class SwanlabLogger:
    """A `Logger` whose run resumes by its id online; else each start has a folder."""

    def __init__(self, run: LoggedRun) -> None:
        swanlab: Any = load_extra("swanlab", "--log swanlab", "swanlab")
        mode = os.environ.get("SWANLAB_MODE") or "online"
        options = {"id": run.id, "resume": "allow"} if mode == "online" else {}
        if not {"SWANLAB_LOGDIR", "SWANLAB_LOG_DIR"} & set(os.environ):
            options["log_dir"] = str(run.folder / "swanlab")
        self._run: Any = swanlab.init(
            project=os.environ.get("SWANLAB_PROJECT") or _PROJECT,
            name=run.name,
            group=run.group or None,
            config=dict(run.config),
            mode=mode,
            # It asks for no key at the terminal, and what the terminal shows stays there.
            settings=swanlab.Settings(interactive=False, terminal={"proxy_type": "none"}),
            reinit=True,
            **options,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """See `Logger.log`."""
        self._run.log(dict(values), step=step)

    def add_file(self, path: Path) -> None:
        """See `Logger.add_file`."""
        kept = shutil.copy(path, Path(self._run.dir) / "files")  # else a link, told of each time
        self._run.save(kept, base_path=str(Path(kept).parent), policy="now")

    def finish(self, state: State) -> None:
        """See `Logger.finish`."""
        self._run.finish(_STATES[state])
