"""The options of work that is handed to Slurm, and the settings that they make."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

from flows.runners.slurm.script import SlurmSettings
from pipeline.cli.arguments import names, positive, whole

_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "partition": ("--partition", {"metavar": "P", "help": "queue (default: the cluster's)"}),
    "cpus": ("--cpus", {"type": positive, "help": "of a process (default: 2)"}),
    "memory": ("--memory", {"metavar": "8G", "help": "of a node (default: the partition's)"}),
    "time": ("--time", {"metavar": "T", "help": "limit of one run (default: 01:00:00)"}),
    "grace_s": (
        "--grace",
        {"type": positive, "metavar": "S", "help": "seconds before the limit to end in (120)"},
    ),
    "requeues": (
        "--requeues",
        {"type": whole, "help": "how often Slurm may run it again (3; training: 100)"},
    ),
    "options": (
        "--sbatch",
        {"action": "append", "metavar": "NAME=VALUE", "help": "e.g. account=lab; repeatable"},
    ),
    "pass_env": (
        "--pass-env",
        {"type": names, "metavar": "NAMES", "help": "environment variables that the job sees too"},
    ),
    "dry_run": ("--dry-run", {"action": "store_true", "help": "print the script, submit nothing"}),
}
_COLLECTION: dict[str, tuple[str, dict[str, Any]]] = {
    "max_parallel": ("--max-parallel", {"type": positive, "help": "tasks that run at once"}),
    "parts_per_task": (
        "--parts-per-task",
        {"type": positive, "help": "that one task makes, --cpus at a time (default: --cpus)"},
    ),
}
_TRAINING: dict[str, tuple[str, dict[str, Any]]] = {
    "nodes": ("--nodes", {"type": positive, "help": "(default: 1)"}),
    "gpus": ("--gpus", {"type": whole, "help": "of a node, a process each (default: 0)"}),
}


def add_slurm_options(parser: argparse.ArgumentParser, training: bool = False) -> None:
    """The options of `--runner slurm`, for a collection or a training."""
    group = parser.add_argument_group("with --runner slurm")
    for name, (option, details) in {**_own(training), **_OPTIONS}.items():
        group.add_argument(option, dest=f"slurm_{name}", default=None, **details)


def slurm_settings(arguments: argparse.Namespace) -> SlurmSettings:
    """The settings that the options ask for.

    Raises:
        ValueError: a value that sbatch could not take.
    """
    given = {
        name: tuple(value) if isinstance(value, list) else value
        for name in SlurmSettings.__dataclass_fields__
        if (value := getattr(arguments, f"slurm_{name}", None)) is not None
    }
    return replace(SlurmSettings(), **given)


def refuse_slurm_options(arguments: argparse.Namespace) -> None:
    """Refuse Slurm's options beside another runner.

    Raises:
        ValueError: one was given.
    """
    for name, (option, _) in {**_COLLECTION, **_TRAINING, **_OPTIONS}.items():
        if getattr(arguments, f"slurm_{name}", None) is not None:
            raise ValueError(f"{option} is for --runner slurm, not for --runner {arguments.runner}")


def _own(training: bool) -> dict[str, tuple[str, dict[str, Any]]]:
    return _TRAINING if training else _COLLECTION
