"""`gaitforge train`, `evaluate` and `models`: policies from a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.collectors.robots.robot import load_robots
from gaitforge.datasets.errors import amount
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.learners.models.registry import describe_models
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.cli.experiments import submitted
from gaitforge.pipeline.cli.parsing.parser import (
    CELL_FIELDS,
    Option,
    command,
    given,
    option,
    planned,
    setting,
)
from gaitforge.pipeline.cli.parsing.runners import (
    JOB_RUNNER,
    TRAINING_RUNNER,
    TRAINING_RUNNERS,
    runner_settings,
)
from gaitforge.pipeline.cli.parsing.values import numbers
from gaitforge.pipeline.cli.running import show_submitted
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show, show_one, show_result

if TYPE_CHECKING:
    from gaitforge.flows.stages.evaluate import EvaluatePlan
    from gaitforge.flows.tasks.policies import PolicySource

SELECTED = ("terrain", "skill", "level", "where")
GRID: tuple[Option, ...] = (
    "--terrain --skill",
    option("--level", "terrain levels, e.g. 0,2,5-9 (default: 4, the middle one)", numbers),
    "--episodes --seed --threads",
)
EVALUATED: tuple[Option, ...] = (
    option(
        "--beside",
        "with several robots: experts of these robots, whose returns are the measure",
        metavar="EXPERT,EXPERT",
    ),
    option(
        "--out",
        "keep the result in this file (of several robots: in files in this folder), and do "
        "nothing where it is that already (of a run with --runner slurm: RUN/evaluation.json)",
        Path,
        metavar="FILE",
    ),
    setting("robots=64"),
    "--json",
)
"""Options of `show_evaluation`."""
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


@command(
    "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64\n"
    "          gaitforge evaluate runs/all --robot go1,robots/family --out runs/all/bodies",
    option("policy_run", "folder of a training run or exported policy", Path, metavar="RUN"),
    "--checkpoint --robot SIMULATOR",
    *GRID,
    *EVALUATED,
    *JOB_RUNNER,
)
def evaluate_command(arguments: argparse.Namespace) -> None:
    """Run a trained policy in closed loop on held-out episodes."""
    from gaitforge.flows.tasks.policies import run_source

    run = arguments.policy_run
    source = replace(run_source(run), which=arguments.checkpoint)
    words = [] if arguments.out else ["--out", str(run / "evaluation.json")]
    if not submitted(arguments, "evaluate", run, words):
        show_evaluation(arguments, source, arguments.out)


def show_evaluation(
    arguments: argparse.Namespace, source: PolicySource, path: Path | None = None
) -> None:
    """Evaluate a policy on the chosen grid; print its cells, their means and the level."""
    from gaitforge.collectors.legged.evaluation import EvaluationGrid
    from gaitforge.collectors.legged.rewards import LARGEST_RETURN
    from gaitforge.flows.stages.evaluate import EvaluatePlan, evaluate_policy
    from gaitforge.pipeline.report.pages import fixed, interval

    grid = EvaluationGrid(**given(arguments, "episodes", "seed", **CELL_FIELDS))
    plan = planned(EvaluatePlan(grid=grid), arguments, "threads", "sim")
    if plan.robot and len(load_robots(plan.robot)) > 1:
        _show_bodies(arguments, source, plan, path)
        return
    evaluation = evaluate_policy(source, plan, TerminalReporter(), path)
    cells = to_tree(evaluation.cells)
    means = (
        f"\n{source.name}: return {fixed(evaluation.return_)} ({interval(evaluation.return_ci95)}) "
        f"of at most {fixed(LARGEST_RETURN)}, success {fixed(evaluation.success)} "
        f"({interval(evaluation.success_ci95)}); means over {amount(len(cells), 'cell')}, "
        "in brackets 95 % intervals"
    )
    show_result(cells, cells, arguments.json, means, f"evaluated on {plan.grid}")


def _show_bodies(
    arguments: argparse.Namespace, source: PolicySource, plan: EvaluatePlan, out: Path | None
) -> None:
    """Evaluate a policy on several robots; print a row each, the means, and each family's."""
    from gaitforge.flows.stages.legged.bodies import evaluate_bodies
    from gaitforge.flows.tasks.legged import LeggedPlan

    robots, experts = load_robots(plan.robot), {}
    if beside := getattr(arguments, "beside", None):
        pairs = LeggedPlan(expert=beside, robot=plan.robot).pairs()
        experts = {robot.name: expert for robot, expert in pairs}
    found = evaluate_bodies(source, plan, robots, TerminalReporter(), out, experts)
    rows = to_tree(found)
    lines = [f"\n{source.name}: means over {_body_means(rows)}"]
    for item in plan.robot.split(","):
        family = {robot.name for robot in load_robots(item)}
        if 1 < len(family) < len(rows):
            chosen = [row for row in rows if row["robot"] in family]
            lines.append(f"{item}: means over {_body_means(chosen)}")
    lines.append(f"on {plan.grid}")
    show_result(rows, rows, arguments.json, *lines)


def _body_means(rows: list[dict[str, Any]]) -> str:
    """The means over rows of `_show_bodies`, in words."""
    means = {
        key: sum(row[key] for row in rows) / len(rows)
        for key in ("return", "success", "survival", "expert_return", "share")
        if rows[0][key] is not None
    }
    listed = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in means.items())
    return f"{amount(len(rows), 'robot')}: {listed}"


@command("gaitforge models --json", "--json")
def models_command(arguments: argparse.Namespace) -> None:
    """List the models and their sizes."""
    show(describe_models(), arguments.json)
