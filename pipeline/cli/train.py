"""`gaitforge train` and `models`: policies from a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from gaitforge.flows.progress import Silent
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.learners.models.registry import describe_models
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.cli.parsing.parser import (
    command,
    given,
    option,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.runners import (
    TRAINING_RUNNER,
    TRAINING_RUNNERS,
    runner_settings,
)
from gaitforge.pipeline.cli.running import show_submitted
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show, show_one

SELECTED = ("terrain", "skill", "level", "where")
TRAINED = ("objective", "steps", "batch_size", "device")
"""Arguments that are fields of a selection's plan, and of every training's config."""


@command(
    "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    "store --model --objective --out --steps --batch-size",
    option("--optimiser", "adamw, adam or lion (default: adamw)", metavar="NAME"),
    option("--seed", "random seed of the weights and the data order", int),
    "--device CELLS --where --selection",
    *TRAINING_RUNNER,
    setting("config.peak_lr=0.001"),
    "--json",
)
def train_command(arguments: argparse.Namespace) -> None:
    """Train a model on a selection of a store, or resume a run."""
    from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
    from gaitforge.learners.training.distributed import process_rank

    select = SelectPlan(**given(arguments, *SELECTED, saved="selection"))
    config = TrainConfig.recommended(**given(arguments, *TRAINED, "model", "optimiser", "seed"))
    plan = planned(TrainPlan(select, config), arguments)
    job_settings = runner_settings(arguments, TRAINING_RUNNERS)
    if isinstance(job_settings, SlurmSettings):
        from gaitforge.flows.runners.slurm.training import run_training_on_slurm

        job = run_training_on_slurm(plan, arguments.store, arguments.out, job_settings)
        show_submitted(job, arguments.json)
        return
    leads = process_rank() == 0  # of the processes that torchrun may have started
    reporter = TerminalReporter() if leads else Silent()
    result = run_training(plan, arguments.store, arguments.out, reporter)
    if leads:
        show_one({**asdict(result), "run_dir": str(result.run_dir)}, arguments.json)


@command("gaitforge models --json", "--json")
def models_command(arguments: argparse.Namespace) -> None:
    """List the models and their sizes."""
    show(describe_models(), arguments.json)
