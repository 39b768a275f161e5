"""The options that say who does the work, and the settings that they make."""

from __future__ import annotations

import argparse
from typing import Any

from flows.runners.dask_clusters import QUEUES, DaskSettings
from flows.runners.registry import RUNNERS
from flows.runners.slurm.script import SlurmSettings
from pipeline.cli.arguments import positive
from pipeline.cli.slurm_arguments import add_slurm_options, refuse_slurm_options, slurm_settings

TRAINING_RUNNERS = ("local", "slurm")
_DASK_ONLY = {
    "workers": "--workers",
    "scheduler": "--scheduler",
    "dask_jobqueue": "--dask-jobqueue",
    "dashboard": "--dashboard",
}


def add_scheduler(parser: argparse._ActionsContainer) -> None:
    """`--scheduler ADDRESS`."""
    parser.add_argument(
        "--scheduler",
        default="",
        metavar="ADDRESS",
        help="an existing Dask scheduler, e.g. tcp://127.0.0.1:8786",
    )


def add_runner(parser: argparse.ArgumentParser, workers: str = "--threads") -> None:
    """`--runner` and what the runners need to know."""
    parser.add_argument(
        "--runner",
        default="local",
        metavar="RUNNER",
        help=f"who makes the parts: {', '.join(RUNNERS)} (default: %(default)s, {workers} "
        "of this machine)",
    )
    dask = parser.add_argument_group("with --runner dask, or prefect on Dask")
    dask.add_argument("--workers", type=positive, help="processes, or jobs in the queue")
    add_scheduler(dask)
    dask.add_argument("--dask-jobqueue", default="", metavar="QUEUE", help=" or ".join(QUEUES))
    dask.add_argument("--dashboard", action="store_true", help="Dask's page, on loopback")
    add_slurm_options(parser)


def runner_settings(arguments: argparse.Namespace) -> Any:
    """The chosen runner's settings.

    Raises:
        ValueError: options of another runner, or values that it refuses.
    """
    if arguments.runner != "slurm":
        refuse_slurm_options(arguments)
    given = [option for name, option in _DASK_ONLY.items() if getattr(arguments, name)]
    if arguments.runner == "dask" or (arguments.runner == "prefect" and given):
        return DaskSettings(
            workers=arguments.workers or 0,
            scheduler=arguments.scheduler,
            jobqueue=arguments.dask_jobqueue,
            dashboard=arguments.dashboard,
        )
    if given:
        raise ValueError(
            f"{given[0]} is for --runner dask or prefect, not for --runner {arguments.runner}"
        )
    return slurm_settings(arguments) if arguments.runner == "slurm" else None


def add_training_runner(parser: argparse.ArgumentParser) -> None:
    """`--runner` of a training and what Slurm needs to know."""
    parser.add_argument(
        "--runner",
        default="local",
        metavar="RUNNER",
        help=f"who trains: {' or '.join(TRAINING_RUNNERS)} (default: %(default)s)",
    )
    add_slurm_options(parser, training=True)


def training_job_settings(arguments: argparse.Namespace) -> SlurmSettings | None:
    """What to ask Slurm for; None for a training in this process.

    Raises:
        ValueError: no such runner, Slurm's options beside another one, or values it refuses.
    """
    if arguments.runner not in TRAINING_RUNNERS:
        known = ", ".join(TRAINING_RUNNERS)
        raise ValueError(f"unknown runner '{arguments.runner}'; a training's runners: {known}")
    if arguments.runner == "slurm":
        return slurm_settings(arguments)
    refuse_slurm_options(arguments)
    return None
