"""The ways to run a collection, by name; a runner's module is imported when it is chosen."""

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from gaitforge.flows.progress import Reporter
from gaitforge.flows.tasks.interface import CollectionPlan

Runner = Callable[[CollectionPlan, Path | str, Reporter, Sequence[str] | None, Any], Any]
"""runner(plan, store_path, reporter, parts, settings) makes the missing ones of the parts (None for
all); `settings` is the runner's own frozen dataclass, or None for its defaults."""

RUNNERS = {
    "local": "gaitforge.flows.stages.collect:collect",
    "dask": "gaitforge.flows.runners.dask:run_dask",
    "slurm": "gaitforge.flows.runners.slurm.runner:run_slurm",
    "prefect": "gaitforge.flows.collect:run_prefect",
}
"""Name -> "module:function". All but slurm return the records of what was collected now; slurm
returns the record of the job that it submitted."""


def find_runner(name: str) -> Runner:
    """The function behind a runner's name.

    Raises:
        ValueError: no such runner.
    """
    if name not in RUNNERS:
        raise ValueError(f"unknown runner '{name}'; allowed: {', '.join(RUNNERS)}")
    module, function = RUNNERS[name].split(":")
    return getattr(import_module(module), function)
