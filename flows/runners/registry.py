"""The ways to run a collection, by name.

Each is a function `(plan, store_path, reporter, parts, settings)` that makes the missing ones of
the parts, or hands them to those who will. Its module is loaded when it is asked for, so that a
way nobody takes needs nothing installed. `settings` is the runner's own frozen dataclass, or None
for its defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.progress import Reporter
    from flows.stages.collect import CollectPlan

Runner = Callable[["CollectPlan", Path | str, "Reporter", Sequence[str] | None, Any], Any]

RUNNERS = {
    "local": "flows.stages.collect:run_local",
    "dask": "flows.runners.dask:run_dask",
    "slurm": "flows.runners.slurm:run_slurm",
    "prefect": "flows.runners.prefect:run_prefect",
}
"""Name -> "module:function". All but slurm return the records of what was collected now; slurm
returns the record of the job that it submitted."""


def find_runner(name: str) -> Runner:
    """The function behind a runner's name.

    Raises:
        ValueError: no such runner.
    """
    if name not in RUNNERS:
        raise ValueError(f"unknown runner '{name}'; runners: {', '.join(RUNNERS)}")
    module, function = RUNNERS[name].split(":")
    return getattr(import_module(module), function)
