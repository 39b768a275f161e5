"""The options that say who does the work, as settings, and the code that a command line names.

The work is done by this process, Dask, Slurm or Prefect.

Code that a command line names may be called also where data name it, see `common.trust`. Only a
command line is the user's own word. A form of Prefect, or the words in a job's file, give no trust.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gaitforge.common.errors import names_allowed
from gaitforge.common.extras import FLOWS, require
from gaitforge.flows.runners.dask_clusters import QUEUES, DaskSettings
from gaitforge.flows.runners.slurm.script import SlurmForm, SlurmSettings
from gaitforge.pipeline.cli.parsing.options import (
    SCHEDULER,
    Option,
    group,
    option,
    option_values,
)
from gaitforge.pipeline.cli.parsing.parser import RUNNERS_TITLE
from gaitforge.pipeline.cli.parsing.values import names, positive, whole

# Who does the work: this process, Dask, Slurm or Prefect.
RUNNERS = {
    "local": "this machine",
    "dask": "a Dask cluster",
    "slurm": "Slurm jobs",
    "prefect": "a Prefect run",
}
"""Name -> what does a command's work."""

_ON = {"action": "store_const", "const": True}
"""A flag whose default is None, as that of every option here."""
_LOCAL = (
    option("--gpu-share", "trainings on this machine's GPU at a time (default: 1)", positive),
)
_DASK = (
    option("--workers", "worker processes, or jobs of --dask-jobqueue", positive),
    SCHEDULER,
    option("--dask-jobqueue", f"start workers as jobs: {' or '.join(QUEUES)}", metavar="QUEUE"),
    option("--adaptive", "start and end workers with the work, --workers at most", **_ON),
    option(
        "--worker-memory",
        "memory limit of a worker, e.g. 4GB (default: none here, 4GB of a job)",
        metavar="SIZE",
    ),
    option(
        "--worker-deaths",
        "deaths of workers after which the last part is given up (default: 4)",
        positive,
        metavar="N",
    ),
    option("--dashboard", "serve Dask's dashboard on this machine", **_ON),
)
_SLURM = (
    option("--partition", "Slurm partition (default: the cluster's)", metavar="NAME"),
    option("--cpu-partition", "partition of what needs no GPU", metavar="NAME"),
    option("--cpus", "CPUs per process (default: 2)", positive),
    option("--memory", "memory per node, e.g. 8G (default: the partition's)", metavar="SIZE"),
    option("--time", "time limit of one run (default: 01:00:00)", metavar="HH:MM:SS"),
    option(
        "--grace",
        "how long before the limit work is stopped and saved (default: 120)",
        positive,
        metavar="SECONDS",
        dest="grace_s",
    ),
    option("--requeues", "how often Slurm may restart it (default: 3; training: 100)", whole),
    option("--account", "whom Slurm charges", metavar="NAME"),
    option("--qos", "quality of service", metavar="NAME"),
    option("--mail", "whom Slurm writes to when the job ends or fails", metavar="ADDRESS"),
    option(
        "--setup",
        'a command before the work, e.g. "module load cuda"; may be repeated',
        action="append",
        metavar="COMMAND",
    ),
    option(
        "--env-file", "file of NAME=VALUE lines that the job reads as it starts", metavar="FILE"
    ),
    option("--container", "run it in apptainer:IMAGE or pyxis:IMAGE", metavar="IMAGE"),
    option(
        "--after",
        "start once the jobs of these ids, stores or runs have succeeded",
        names,
        metavar="JOB,JOB",
    ),
    option(
        "--sbatch",
        "any other option of sbatch, e.g. account=lab; may be repeated",
        action="append",
        metavar="NAME=VALUE",
        dest="options",
    ),
    option("--pass-env", "environment variables to pass to the job", names),
    option("--dry-run", "print jobs, sizes, hours and a script; submit nothing", **_ON),
    option("--scripts", "with --dry-run: write all scripts here", Path, metavar="FOLDER"),
)
_OF_SOME = (
    option("--max-parallel", "tasks of each array that run in parallel", positive),
    option("--parts-per-task", "parts per array task of a collection (default: --cpus)", positive),
    option("--nodes", "nodes of a training (default: 1)", positive),
    option(
        "--gpus",
        "GPUs per node of a training, one process each; 1 for a simulator on a GPU (default: 0)",
        whole,
    ),
)
_FOLLOW = (
    option("--follow", "show states until all jobs have ended; exit 1 if one failed", **_ON),
    option("--cancel", "cancel the jobs", **_ON),
)
_SITE = ("--mail", "--setup", "--env-file", "--container", "--sbatch", "--pass-env", "--requeues")
_SLURM_BY_FLAG = {entry.flag: entry for entry in (*_OF_SOME, *_SLURM)}
_SITE_OPTIONS = tuple(_SLURM_BY_FLAG[name] for name in _SITE)
SITE_SLURM = group("Slurm, for runs that ask for it", *_SITE_OPTIONS)
"""Commands, files and addresses of the jobs of served flows, which a form must not set."""

_FORM = (
    "--partition",
    "--cpus",
    "--memory",
    "--time",
    "--account",
    "--qos",
    "--max-parallel",
    "--parts-per-task",
)
_FORM_OPTIONS = tuple(_SLURM_BY_FLAG[name] for name in _FORM)
COLLECTING_SLURM = group("Slurm, which collects once one of these is there", *_FORM_OPTIONS)
"""What the collections of a served flow ask Slurm for, as the form's field `slurm` has it."""

_SLURM_OPTIONS = (*_OF_SOME, *_SLURM, *_FOLLOW)

RUNNER = (
    group(
        RUNNERS_TITLE,
        option(
            "--runner",
            f"{', '.join(RUNNERS)} (default: local); options of one: --runner slurm --help",
            default="local",
            metavar="NAME",
        ),
    ),
    group("with --runner local", *_LOCAL, runners=("local",)),
    group("with --runner dask, or prefect on Dask", *_DASK, runners=("dask", "prefect")),
    group("with --runner slurm", *_SLURM_OPTIONS, runners=("slurm",)),
)
"""Options of commands whose work any runner can do."""


def runner_settings(arguments: argparse.Namespace) -> DaskSettings | SlurmSettings | None:
    """The chosen runner's settings; None for one that has none.

    Raises:
        ValueError: no such runner, options of another one, or values that the runner refuses.
    """
    runner = arguments.runner
    if runner not in RUNNERS:
        raise ValueError(f"unknown runner '{runner}'; {names_allowed(runner, RUNNERS)}")
    if runner == "prefect":
        require("--runner prefect", FLOWS)
    if runner != "local":
        _refuse(arguments, _LOCAL, "local")
    if runner not in ("dask", "prefect"):
        _refuse(arguments, _DASK, "dask or prefect")
    if runner == "slurm":
        _refuse_combinations(arguments)
        fields = SlurmSettings.__dataclass_fields__
        values = option_values(arguments, *(name for name in fields if name in arguments))
        return _slurm_settings(values)
    _refuse(arguments, _SLURM_OPTIONS, "slurm")
    if runner == "dask" or (runner == "prefect" and _options_in_use(arguments, _DASK)):
        same = ("workers", "scheduler", "adaptive", "dashboard", "worker_deaths")
        values = option_values(arguments, *same, jobqueue="dask_jobqueue", memory="worker_memory")
        return DaskSettings(**values)
    return None


def _slurm_settings(values: dict[str, Any]) -> SlurmSettings:
    return SlurmSettings(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})


def site_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The settings that every Slurm job of served flows gets.

    Raises:
        ValueError: values that `SlurmSettings` refuses.
    """
    values = option_values(arguments, *(entry.argument for entry in _SITE_OPTIONS))
    _slurm_settings(values)
    return values


def collecting_settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """The fields of `SlurmForm` that served collections have; none for this machine.

    Raises:
        ValueError: values that `SlurmForm` refuses.
    """
    values = option_values(arguments, *(entry.argument for entry in _FORM_OPTIONS))
    SlurmForm(**values)
    return values


def runner_arguments() -> set[str]:
    """The arguments of all runners' options."""
    return {"runner", *(entry.argument for entry in (*_LOCAL, *_DASK, *_SLURM_OPTIONS))}


def runner_names() -> set[str]:
    """The names that the runners' options would have in a form."""
    flags = [entry.flag for entry in (*_LOCAL, *_DASK, *_SLURM_OPTIONS)]
    return {flag[2:].replace("-", "_") for flag in ("--runner", *flags)}


def run_here(arguments: argparse.Namespace) -> None:
    """Set the arguments of a command line as if it had asked for this process."""
    for name in runner_arguments():
        if name in arguments:
            setattr(arguments, name, None)
    arguments.runner = "local"


def _options_in_use(arguments: argparse.Namespace, options: Sequence[Option]) -> list[str]:
    """The options whose arguments are not None."""
    values = vars(arguments)
    return [entry.flag for entry in options if values.get(entry.argument) is not None]


def _refuse_combinations(arguments: argparse.Namespace) -> None:
    """Refuse options of Slurm that cannot act together."""
    if arguments.cancel:
        for name in _options_in_use(arguments, (*_OF_SOME, *_SLURM)):
            raise ValueError(f"{name} is for submitting jobs, and --cancel submits none")
    if arguments.scripts is not None and not arguments.dry_run:
        raise ValueError("--scripts is for --dry-run")
    if arguments.dry_run and arguments.follow:
        raise ValueError("--follow follows jobs, and --dry-run submits none")


def _refuse(arguments: argparse.Namespace, options: Sequence[Option], runners: str) -> None:
    for name in _options_in_use(arguments, options):
        raise ValueError(f"{name} is for --runner {runners}, not for --runner {arguments.runner}")


# Code that a command line names.
_NO_NAMES = {"words", "command", "action", "run", "begin", "trust", "out", "store"}
"""Arguments that are no option's value, and places of results."""


def named_code(arguments: argparse.Namespace) -> list[str]:
    """The values of options that name code, or a setting that may be a file or code.

    `trust` tells which parts of them name something. Paths name none.
    """
    values = vars(arguments)
    left_out = _NO_NAMES | runner_arguments()
    texts = [text for name in values.keys() - left_out for text in _texts(values[name])]
    # Of `expert import` it is a flag, which allows a program of the user's own and names none.
    named = _texts(values.get("trust"))
    return [*named, *sorted(text for text in texts if _may_name_code(text))]


def _texts(value: object) -> Iterator[str]:
    if isinstance(value, str | Path):  # a policy may stand where folders do
        yield str(value)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _may_name_code(text: str) -> bool:
    """Whether a value is a setting or has a colon; addresses and existing files have no name."""
    if "=" in text:
        return True
    return ":" in text and "://" not in text and not Path(text).exists()
