"""The options that say who does the work (this process, Dask, Slurm, Prefect), as settings."""

import argparse
from typing import Any

from flows.runners.dask_clusters import QUEUES, DaskSettings
from flows.runners.registry import RUNNERS
from flows.runners.slurm.script import SlurmSettings
from pipeline.cli.parsing.parser import SHARED, details, given, group, option
from pipeline.cli.parsing.values import names, positive, whole

TRAINING_RUNNERS = ("local", "slurm")

Options = dict[str, dict[str, Any]]
_ON = {"action": "store_const", "const": True}
"""A flag that is None, as every option here, where it was not given."""
_DASK: Options = {
    "--workers": details("worker processes, or jobs of --dask-jobqueue", positive),
    "--scheduler": SHARED["--scheduler"],
    "--dask-jobqueue": details(f"start workers as jobs: {' or '.join(QUEUES)}", metavar="QUEUE"),
    "--dashboard": details("serve Dask's dashboard on this machine", **_ON),
}
_SLURM: Options = {
    "--partition": details("Slurm partition (default: the cluster's)", metavar="NAME"),
    "--cpus": details("CPUs per process (default: 2)", positive),
    "--memory": details("memory per node, e.g. 8G (default: the partition's)", metavar="SIZE"),
    "--time": details("time limit of one run (default: 01:00:00)", metavar="HH:MM:SS"),
    "--grace": details(
        "how long before the limit work is stopped and saved (default: 120)",
        positive,
        metavar="SECONDS",
        dest="grace_s",
    ),
    "--requeues": details("how often Slurm may restart it (default: 3; training: 100)", whole),
    "--sbatch": details(
        "any other option of sbatch, e.g. account=lab; may be repeated",
        action="append",
        metavar="NAME=VALUE",
        dest="options",
    ),
    "--pass-env": details("environment variables to pass to the job", names),
    "--dry-run": details("print the job script, submit nothing", **_ON),
}
_SLURM_COLLECTION: Options = {
    "--max-parallel": details("array tasks that run in parallel", positive),
    "--parts-per-task": details("parts per array task (default: --cpus)", positive),
}
_SLURM_TRAINING: Options = {
    "--nodes": details("nodes (default: 1)", positive),
    "--gpus": details("GPUs per node, one process each (default: 0)", whole),
}


RUNNER = (
    option(
        "--runner",
        f"who makes the parts: {', '.join(RUNNERS)}; local is this process",
        default="local",
        metavar="NAME",
    ),
    group("with --runner dask, or prefect on Dask", _DASK),
    group("with --runner slurm", _SLURM_COLLECTION | _SLURM),
)
"""The options of a command that collects."""

TRAINING_RUNNER = (
    option(
        "--runner", f"who trains: {' or '.join(TRAINING_RUNNERS)}", str, "local", metavar="NAME"
    ),
    group("with --runner slurm", _SLURM_TRAINING | _SLURM),
)
"""The options of a command that trains."""


def runner_settings(arguments: argparse.Namespace) -> DaskSettings | SlurmSettings | None:
    """The chosen runner's settings; None for one that has none.

    Raises:
        ValueError: options of another runner, or values that the runner refuses.
    """
    runner = arguments.runner
    if runner not in ("dask", "prefect"):
        _refuse(arguments, _DASK, "dask or prefect")
    if runner == "slurm":
        return _slurm_settings(arguments)
    _refuse(arguments, _SLURM_COLLECTION | _SLURM, "slurm")
    if runner == "dask" or (runner == "prefect" and _given(arguments, _DASK)):
        chosen = given(arguments, "workers", "scheduler", "dashboard", jobqueue="dask_jobqueue")
        return DaskSettings(**chosen)
    return None


def training_job_settings(arguments: argparse.Namespace) -> SlurmSettings | None:
    """What to ask Slurm for; None for a training in this process.

    Raises:
        ValueError: no such runner, Slurm's options beside another one, or values it refuses.
    """
    if arguments.runner not in TRAINING_RUNNERS:
        known = ", ".join(TRAINING_RUNNERS)
        raise ValueError(f"unknown runner '{arguments.runner}'; allowed: {known}")
    if arguments.runner == "slurm":
        return _slurm_settings(arguments)
    _refuse(arguments, _SLURM_TRAINING | _SLURM, "slurm")
    return None


def _slurm_settings(arguments: argparse.Namespace) -> SlurmSettings:
    chosen = given(arguments, *(n for n in SlurmSettings.__dataclass_fields__ if n in arguments))
    chosen = {k: tuple(v) if isinstance(v, list) else v for k, v in chosen.items()}
    return SlurmSettings(**chosen)


def _given(arguments: argparse.Namespace, options: Options) -> list[str]:
    """Those of the options that were given."""
    dests = {each: d.get("dest", each[2:].replace("-", "_")) for each, d in options.items()}
    return [each for each, dest in dests.items() if getattr(arguments, dest) is not None]


def _refuse(arguments: argparse.Namespace, options: Options, runners: str) -> None:
    for name in _given(arguments, options):
        raise ValueError(f"{name} is for --runner {runners}, not for --runner {arguments.runner}")
