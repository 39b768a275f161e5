"""`gaitforge train`, `evaluate` and `models`: policies from a store's episodes."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from flows.progress import Silent
from flows.settings import override, with_chosen
from pipeline.cli.arguments import CELLS, GRID, SIMULATOR, Parser, given, option
from pipeline.cli.jobs import show_submitted
from pipeline.cli.runner_arguments import add_training_runner, training_job_settings
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one


def add_train(parser: Parser) -> None:
    """`gaitforge train STORE`."""
    parser.take("store")
    option(parser, "--model", "see gaitforge models", default="fcnet", metavar="NAME")
    parser.take("--objective", "--out", "--steps", "--batch-size")
    option(parser, "--optimiser", "adamw, adam or lion (default: adamw)", metavar="NAME")
    option(parser, "--seed", "of the weights and of the order of the data", int)
    parser.take("--device", *CELLS, "--where", "--selection")
    add_training_runner(parser)
    parser.take("--set", "--json", settings="config.peak_lr=0.001")
    parser.runs(
        _train, "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet"
    )


def _train(arguments: argparse.Namespace) -> int:
    from flows.stages.train import SelectPlan, TrainPlan, run_training
    from learners.training.config import TrainConfig
    from learners.training.distributed import process_rank

    select = SelectPlan(
        arguments.terrain or (),
        arguments.skill or (),
        arguments.level or (),
        arguments.where or "",
        str(arguments.selection or ""),
    )
    names = ("model", "objective", "steps", "batch_size", "optimiser", "seed", "device")
    plan = TrainPlan(select, TrainConfig(**given(arguments, *names)))
    plan = override(plan, arguments.settings)
    job_settings = training_job_settings(arguments)
    if job_settings is not None:
        from flows.runners.slurm.runner import run_training_on_slurm

        job = run_training_on_slurm(plan, arguments.store, arguments.out, job_settings)
        show_submitted(job, arguments.json)
        return 0
    leads = process_rank() == 0  # of the processes that torchrun may have started
    reporter = TerminalReporter() if leads else Silent()
    result = run_training(plan, arguments.store, arguments.out, reporter)
    if leads:
        show_one({**asdict(result), "run_dir": str(result.run_dir)}, arguments.json)
    return 0


def add_evaluate(parser: Parser) -> None:
    """`gaitforge evaluate RUN`."""
    option(parser, "policy_run", "folder of a training run or exported policy", Path, metavar="RUN")
    parser.take("--checkpoint", "--robot", *SIMULATOR, *GRID)
    parser.take("--set", "--json", settings="robots=64")
    parser.runs(
        _evaluate, "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64"
    )


def _evaluate(arguments: argparse.Namespace) -> int:
    run = arguments.policy_run
    if not run.is_dir():
        raise ValueError(f"no training run at {run}; `gaitforge train` makes one")
    name = run.resolve().name
    return show_evaluation(arguments, name, run=run, which=arguments.checkpoint)


def show_evaluation(arguments: argparse.Namespace, name: str, **source: Any) -> int:
    """Evaluate a policy on the chosen grid and print its cells.

    Args:
        name, source: of the `PolicySource`.
    """
    from collectors.legged.evaluation import EvaluationGrid
    from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_policy

    chosen = {
        "terrains": arguments.terrain,
        "skills": arguments.skill,
        "levels": arguments.level,
        "episodes": arguments.episodes,
        "seed": arguments.seed,
    }
    plan = EvaluatePlan(grid=with_chosen(EvaluationGrid(), chosen))
    plan = with_chosen(plan, {"threads": arguments.threads, "sim": arguments.sim})
    plan = override(plan, arguments.settings)
    evaluation = evaluate_policy(PolicySource(name, **source), plan, TerminalReporter())
    show([cell.as_record() for cell in evaluation.cells], arguments.json)
    return 0


def add_models(parser: Parser) -> None:
    """`gaitforge models`."""
    parser.take("--json")
    parser.runs(_models, "gaitforge models --json")


def _models(arguments: argparse.Namespace) -> int:
    from learners.models.registry import describe_models

    show(describe_models(), arguments.json)
    return 0
