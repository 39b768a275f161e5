"""What the commands on stores, runs and reports do.

Each takes the parsed arguments and returns an exit code.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from collectors.legged.evaluation import EvaluationGrid
from datasets import open_store
from flows.progress import Reporter, Silent
from flows.records.part_records import records_of_commits
from flows.records.records import to_tree
from flows.runners.registry import find_runner
from flows.stages.demo import DemoPlan, run_demo
from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_policy
from flows.stages.train import SelectPlan, TrainPlan, run_training
from flows.tasks.legged import LeggedPlan
from learners.models.registry import describe_models
from learners.training.config import TrainConfig
from learners.training.distributed import process_rank
from pipeline.cli.collected import show_collected
from pipeline.cli.jobs_commands import show_submitted
from pipeline.cli.plan_choices import collection_plan, with_chosen
from pipeline.cli.runner_arguments import runner_settings, training_job_settings
from pipeline.cli.settings import override
from pipeline.progress import TerminalReporter
from pipeline.report.pictures import make_run_sheets
from pipeline.report.report import write_report
from pipeline.tables import show, show_one


def demo(arguments: argparse.Namespace) -> int:
    """Run the whole road, or go on with it, and write the report."""
    plan = override(DemoPlan(), arguments.settings)
    reporter = TerminalReporter()
    if arguments.prefect:
        from flows.runners.prefect import run_from_a_program
        from pipeline.serve.deployments import demo_report

        with run_from_a_program(reporter):
            summary, report = demo_report(str(arguments.out), [], to_tree(plan))
    else:
        summary = run_demo(plan, arguments.out, reporter)
        report = write_demo_report(arguments.out, reporter)
    if arguments.json:
        show_one(summary, as_json=True)
        return 0
    show(policy_rows(summary), as_json=False)
    rate = summary["collect"]["steps_per_s"]
    print(f"\ncollected {summary['dataset']['steps']:,} steps at {rate:,.0f} steps/s; ", end="")
    print(f"whole demo {summary['wall_s']:.0f} s")
    print(f"report: {report}")
    return 0


def write_demo_report(out: Path, reporter: Reporter) -> Path:
    """Draw the policies' sheets and write the report of a demo's folder."""
    make_run_sheets(out, reporter.say)
    return write_report(out)


def policy_rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """The summary's policies as table rows."""
    return [{"policy": name, **record} for name, record in summary["policies"].items()]


def collect(arguments: argparse.Namespace) -> int:
    """Collect the missing parts of a plan, or have them collected."""
    runner = find_runner(arguments.runner)
    settings = runner_settings(arguments)
    plan = _collect_plan(arguments)
    ids = plan.part_ids()
    if arguments.parts is not None:
        outside = [k for k in arguments.parts if k >= len(ids)]
        if outside:
            raise ValueError(
                f"part {outside[0]} is not in the plan, which has parts 0-{len(ids) - 1}"
            )
        ids = [ids[k] for k in arguments.parts]
    made = runner(plan, arguments.store, TerminalReporter(), ids, settings)
    if not isinstance(made, list):  # handed to a queue: nothing of it is here yet
        show_submitted(made, arguments.json)
        return 0
    records = records_of_commits(open_store(arguments.store), arguments.store, ids)
    rows = [
        {
            "part": record.part,
            "episodes": record.episodes,
            "steps": record.steps,
            "bytes": record.bytes,
            "seconds": record.ended - record.started,
            "write_s": record.write_s,
        }
        for record in records
    ]
    show_collected(rows, records, arguments.json)
    return 0


def _collect_plan(arguments: argparse.Namespace) -> LeggedPlan:
    grid = {
        "terrains": arguments.terrain,
        "skills": arguments.skill,
        "levels": arguments.level,
        "seed": arguments.seed,
    }
    kept = {name: getattr(arguments, name) for name in ("state", "privileged", "half")}
    top = {name: getattr(arguments, name) for name in ("expert", "sim", "robots", "threads")}
    return collection_plan(arguments.preset, grid, top, arguments.settings, kept)


def train(arguments: argparse.Namespace) -> int:
    """Train a model, or go on with a run."""
    select = SelectPlan(
        arguments.terrain or (),
        arguments.skill or (),
        arguments.level or (),
        arguments.where or "",
        str(arguments.selection or ""),
    )
    names = ("steps", "batch_size", "optimiser", "seed", "device")
    config = with_chosen(
        TrainConfig(model=arguments.model, objective=arguments.objective),
        {name: getattr(arguments, name) for name in names},
    )
    plan = override(TrainPlan(select, config), arguments.settings)
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


def evaluate(arguments: argparse.Namespace) -> int:
    """Evaluate a trained run."""
    if not arguments.policy_run.is_dir():
        raise ValueError(f"no training run at {arguments.policy_run}; `gaitforge train` makes one")
    run = arguments.policy_run
    source = PolicySource(run.resolve().name, run=run, which=arguments.checkpoint)
    return show_evaluation(source, arguments)


def show_evaluation(source: PolicySource, arguments: argparse.Namespace) -> int:
    """Evaluate a policy on the grid that the arguments ask for and print its cells."""
    chosen = {
        "terrains": arguments.terrain,
        "skills": arguments.skill,
        "levels": arguments.level,
        "episodes": arguments.episodes,
        "seed": arguments.seed,
    }
    plan = EvaluatePlan(grid=with_chosen(EvaluationGrid(), chosen))
    plan = with_chosen(plan, {"threads": arguments.threads, "sim": arguments.sim})
    evaluation = evaluate_policy(source, override(plan, arguments.settings), TerminalReporter())
    show([cell.as_record() for cell in evaluation.cells], arguments.json)
    return 0


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a run folder."""
    print(write_report(Path(arguments.folder)))
    return 0


def models(arguments: argparse.Namespace) -> int:
    """List the models, each sized for its own space."""
    show(describe_models(), arguments.json)
    return 0
