"""`gaitforge train`, `evaluate`, `models`, `compare`, `dagger`: policies from a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.progress import Silent
from flows.records.records import to_tree
from flows.settings import override, with_chosen
from learners.models.registry import describe_models
from learners.training.config import TrainConfig
from pipeline.cli.arguments import (
    CELLS,
    GRID,
    SIMULATOR,
    command,
    given,
    names,
    numbers,
    option,
    positive,
    setting,
)
from pipeline.cli.runner_arguments import TRAINING_RUNNER, training_job_settings
from pipeline.cli.running import show_submitted
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one

if TYPE_CHECKING:
    from flows.stages.comparison import ComparisonPlan
    from flows.stages.train import SelectPlan


@command(
    "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    "store",
    option("--model", "one of gaitforge models", default="fcnet", metavar="NAME"),
    "--objective --out --steps --batch-size",
    option("--optimiser", "adamw, adam or lion (default: adamw)", metavar="NAME"),
    option("--seed", "random seed of the weights and the data order", int),
    "--device",
    CELLS,
    "--where --selection",
    *TRAINING_RUNNER,
    setting("config.peak_lr=0.001"),
    "--json",
)
def train_command(arguments: argparse.Namespace) -> None:
    """Train a model on a selection of a store, or resume a run."""
    from flows.stages.train import TrainPlan, run_training
    from learners.training.distributed import process_rank

    select = _select_plan(arguments)
    names = ("model", "objective", "steps", "batch_size", "optimiser", "seed", "device")
    plan = TrainPlan(select, TrainConfig.recommended(**given(arguments, *names)))
    plan = override(plan, arguments.settings)
    job_settings = training_job_settings(arguments)
    if job_settings is not None:
        from flows.runners.slurm.runner import run_training_on_slurm

        job = run_training_on_slurm(plan, arguments.store, arguments.out, job_settings)
        show_submitted(job, arguments.json)
        return
    leads = process_rank() == 0  # of the processes that torchrun may have started
    reporter = TerminalReporter() if leads else Silent()
    result = run_training(plan, arguments.store, arguments.out, reporter)
    if leads:
        show_one({**asdict(result), "run_dir": str(result.run_dir)}, arguments.json)


def _select_plan(arguments: argparse.Namespace) -> SelectPlan:
    from flows.stages.train import SelectPlan

    return SelectPlan(
        arguments.terrain or (),
        arguments.skill or (),
        arguments.level or (),
        arguments.where or "",
        str(arguments.selection or ""),
    )


@command(
    "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64",
    option("policy_run", "folder of a training run or exported policy", Path, metavar="RUN"),
    "--checkpoint --robot",
    SIMULATOR,
    GRID,
    setting("robots=64"),
    "--json",
)
def evaluate_command(arguments: argparse.Namespace) -> None:
    """Run a trained policy in closed loop on held-out episodes."""
    run = arguments.policy_run
    if not run.is_dir():
        raise ValueError(f"no training run at {run}; `gaitforge train` makes one")
    name = run.resolve().name
    show_evaluation(arguments, name, run=run, which=arguments.checkpoint)


def show_evaluation(arguments: argparse.Namespace, name: str, **source: Any) -> None:
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
    show(to_tree(evaluation.cells), arguments.json)


@command("gaitforge models --json", "--json")
def models_command(arguments: argparse.Namespace) -> None:
    """List the models and their sizes."""
    show(describe_models(), arguments.json)


@command(
    "gaitforge compare legged.zarr --models fcnet,transformer --steps 5000 --out runs/compare",
    "store",
    option("--models", "of gaitforge models (default: fcnet and three baselines)", names),
    option("--seeds", "random seeds, one run each, e.g. 0-2 (default: 0,1,2)", numbers),
    "--objective --steps --batch-size --device --out",
    CELLS,
    "--where --selection",
    option("--episodes", "episodes to evaluate per terrain and skill (default: 20)", positive),
    "--expert",
    setting('\'own={"transformer":{"peak_lr":0.001}}\''),
    "--json",
)
def compare_command(arguments: argparse.Namespace) -> None:
    """Train models with equal budgets on the same episodes, and evaluate."""
    from flows.stages.comparison import run_comparison
    from pipeline.report.comparison_page import comparison_rows, write_comparison

    plan = _comparison_plan(arguments)
    record = run_comparison(plan, arguments.store, arguments.out, TerminalReporter())
    page = write_comparison(arguments.out)
    if arguments.json:
        show_one(record, as_json=True)
        return
    show(comparison_rows(record), as_json=False)
    print(f"\npage: {page}")


@command(
    "gaitforge dagger data/legged.zarr --rounds 3 --steps 3000 --out runs/dagger",
    "store --out",
    option("--rounds", "of collecting and training, after a first training", positive, 3),
    option("--model", "one of gaitforge models", default="fcnet", metavar="NAME"),
    "--objective --steps --batch-size --device",
    option("--labeller", "the expert: a shipped one, or a .safetensors file", metavar="NAME"),
    option("--share", "of the stretches that the policy drives (default: 0.3)", float),
    option("--stretch", "control steps of a stretch (default: 12)", positive),
    option("--parts", "to collect in a round (default: 4)", positive),
    option("--plain", "learn from the expert alone, too", action=argparse.BooleanOptionalAction),
    CELLS,
    "--where --episodes --threads",
    setting("config.window_len=192"),
    "--json",
)
def dagger_command(arguments: argparse.Namespace) -> None:
    """Train in rounds, with an expert's corrections on the policy's own states."""
    from flows.stages.comparison import GRID_EPISODES, comparison_grid
    from flows.stages.dagger import DaggerPlan, run_dagger
    from flows.stages.train import SelectPlan

    select = SelectPlan(**given(arguments, "terrain", "skill", "level", "where"))
    selection = select.select(arguments.store)
    grid = comparison_grid(selection, arguments.episodes or GRID_EPISODES)
    levels = sorted(selection.episodes().column("level").unique().to_pylist())
    names = ("model", "objective", "steps", "batch_size", "device")
    config = TrainConfig.recommended(**given(arguments, *names))
    more = given(arguments, "rounds", "share", "stretch", "plain")
    plan = DaggerPlan(select=select, config=config, **more)
    cells = {"terrains": grid.terrains, "skills": grid.skills, "levels": tuple(levels)}
    made = with_chosen(plan.collect.grid, {**cells, "parts": arguments.parts})
    chosen = {"grid": made, "expert": arguments.labeller, "threads": arguments.threads}
    collect = with_chosen(plan.collect, chosen)
    evaluate = with_chosen(plan.evaluate, {"grid": grid, "threads": arguments.threads})
    plan = override(replace(plan, collect=collect, evaluate=evaluate), arguments.settings)
    show(run_dagger(plan, arguments.store, arguments.out, TerminalReporter()), arguments.json)


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
