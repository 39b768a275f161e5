"""`gaitforge train`, `evaluate`, `models` and `compare`: policies from a store's episodes."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.progress import Silent
from flows.settings import override, with_chosen
from pipeline.cli.arguments import (
    CELLS,
    GRID,
    SIMULATOR,
    Parser,
    given,
    names,
    numbers,
    option,
    positive,
)
from pipeline.cli.runner_arguments import add_training_runner, training_job_settings
from pipeline.cli.running import show_submitted
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one

if TYPE_CHECKING:
    from flows.stages.comparison import ComparisonPlan
    from flows.stages.train import SelectPlan


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
    from flows.stages.train import TrainPlan, run_training
    from learners.training.config import TrainConfig
    from learners.training.distributed import process_rank

    select = _select_plan(arguments)
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


def _select_plan(arguments: argparse.Namespace) -> SelectPlan:
    from flows.stages.train import SelectPlan

    return SelectPlan(
        arguments.terrain or (),
        arguments.skill or (),
        arguments.level or (),
        arguments.where or "",
        str(arguments.selection or ""),
    )


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
    show(evaluation["cells"], arguments.json)
    return 0


def add_models(parser: Parser) -> None:
    """`gaitforge models`."""
    parser.take("--json")
    parser.runs(_models, "gaitforge models --json")


def _models(arguments: argparse.Namespace) -> int:
    from learners.models.registry import describe_models

    show(describe_models(), arguments.json)
    return 0


def add_compare(parser: Parser) -> None:
    """`gaitforge compare STORE`."""
    parser.take("store")
    option(parser, "--models", "see gaitforge models (default: fcnet and three baselines)", names)
    option(parser, "--seeds", "one run each, e.g. 0-2 (default: 0,1,2)", numbers)
    parser.take("--objective", "--steps", "--batch-size", "--device", "--out", *CELLS, "--where")
    parser.take("--selection")
    option(
        parser, "--episodes", "episodes to evaluate per terrain and skill (default: 20)", positive
    )
    parser.take("--expert")
    parser.take("--set", "--json", settings="""'own={"transformer":{"peak_lr":0.001}}'""")
    parser.runs(
        _compare,
        "gaitforge compare legged.zarr --models fcnet,transformer --steps 5000 --out runs/compare",
    )


def _compare(arguments: argparse.Namespace) -> int:
    from flows.stages.comparison import run_comparison
    from pipeline.report.comparison_page import comparison_rows, write_comparison

    plan = _comparison_plan(arguments)
    record = run_comparison(plan, arguments.store, arguments.out, TerminalReporter())
    page = write_comparison(arguments.out)
    if arguments.json:
        show_one(record, as_json=True)
        return 0
    show(comparison_rows(record), as_json=False)
    print(f"\npage: {page}")
    return 0


def _comparison_plan(arguments: argparse.Namespace) -> ComparisonPlan:
    from flows.stages.comparison import GRID_EPISODES, ComparisonPlan, comparison_grid

    select = _select_plan(arguments)
    plan = ComparisonPlan(select=select)
    shared = given(arguments, "objective", "steps", "batch_size", "device")
    plan = replace(
        plan, config=replace(plan.config, **shared), **given(arguments, "models", "seeds", "expert")
    )
    grid = comparison_grid(select.select(arguments.store), arguments.episodes or GRID_EPISODES)
    plan = replace(plan, evaluate=replace(plan.evaluate, grid=grid))
    return override(plan, arguments.settings)
