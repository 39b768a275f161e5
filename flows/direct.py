"""Flows as programs: `python -m flows.stages.collect STORE PLAN.json`.

A plan is the JSON that every run leaves beside what it made, or such a tree alone; what it does not
name has its default.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from flows.progress import Silent
from flows.records.plans import plan_from_tree
from flows.records.records import read_record, to_tree

WRONG_INPUT = 2

Plan = TypeVar("Plan")


def main(flow: str, argv: Sequence[str] | None = None) -> int:
    """Run a flow with the process's arguments; prints its result as JSON.

    Args:
        flow: a name in `PROGRAMS`.

    Returns:
        The exit code: 2 after one line on what was wrong.
    """
    add_arguments, run = PROGRAMS[flow]
    parser = argparse.ArgumentParser(prog=f"python -m flows.{flow}", description=run.__doc__)
    add_arguments(parser)
    try:
        result = run(parser.parse_args(argv))
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    sys.stdout.write(f"{_json(result)}\n")
    return 0


def read_plan(kind: type[Plan], path: Path) -> Plan:
    """A plan from a file.

    Raises:
        ValueError: no such file, no JSON, or not this kind of plan.
    """
    tree = read_record(path)
    if tree is None:
        raise ValueError(f"no plan at {path}")
    whole = isinstance(tree, dict) and isinstance(tree.get("plan"), dict)
    return plan_from_tree(kind, tree["plan"] if whole else tree)


def _collect_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a folder, or s3://bucket/prefix")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--parts", type=int, nargs="+", metavar="N", help="numbers; else all")
    parser.add_argument("--runner", default="local", help="(default: %(default)s)")


def _collect(arguments: argparse.Namespace) -> Any:
    """Collect the parts of a plan that a store lacks."""
    from flows.runners.registry import find_runner
    from flows.stages.collect import CollectPlan

    runner = find_runner(arguments.runner)
    plan = read_plan(CollectPlan, arguments.plan)
    names = plan.part_ids()
    outside = [k for k in arguments.parts or () if not 0 <= k < len(names)]
    if outside:
        raise ValueError(f"part {outside[0]} is not in the plan, which has 0-{len(names) - 1}")
    parts = [names[k] for k in arguments.parts] if arguments.parts else None
    return runner(plan, arguments.store, Silent(), parts, None)


def _train_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a folder, or s3://bucket/prefix")
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path, help="folder of the run")


def _train(arguments: argparse.Namespace) -> Any:
    """Train on a selection of a store, or go on with the run that is there."""
    from flows.stages.train import TrainPlan, run_training

    plan = read_plan(TrainPlan, arguments.plan)
    return asdict(run_training(plan, arguments.store, arguments.out, Silent()))


def _evaluate_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, help="folder of a training run")
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path, help="file of the result")


def _evaluate(arguments: argparse.Namespace) -> Any:
    """Evaluate a training run in closed loop."""
    from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_once

    if not arguments.run.is_dir():
        raise ValueError(f"no training run at {arguments.run}")
    source = PolicySource(arguments.run.resolve().name, run=arguments.run)
    plan = read_plan(EvaluatePlan, arguments.plan)
    return evaluate_once(source, plan, arguments.out, Silent())


def _ingest_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="a file or folder of another project's format")
    parser.add_argument("store", help="a folder, or s3://bucket/prefix")
    parser.add_argument("plan", type=Path)


def _ingest(arguments: argparse.Namespace) -> Any:
    """Import data of another project's format into a store."""
    from flows.stages.importing import IngestPlan, ingest

    plan = read_plan(IngestPlan, arguments.plan)
    return asdict(ingest(plan, arguments.source, arguments.store, Silent()))


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", type=Path)
    parser.add_argument("out", type=Path, help="folder")


def _demo(arguments: argparse.Namespace) -> Any:
    """Run the whole road, or go on with it."""
    from flows.stages.demo import DemoPlan, run_demo

    return run_demo(read_plan(DemoPlan, arguments.plan), arguments.out, Silent())


def _gym_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("store", help="a folder, or s3://bucket/prefix")
    parser.add_argument("plan", type=Path)
    parser.add_argument("--processes", type=int, default=1, help="(default: %(default)s)")


def _gym(arguments: argparse.Namespace) -> Any:
    """Collect episodes of a Gymnasium task that a store lacks."""
    from flows.stages.gym import GymPlan, collect_gym

    plan = read_plan(GymPlan, arguments.plan)
    return collect_gym(plan, arguments.store, Silent(), processes=arguments.processes)


Arguments = Callable[[argparse.ArgumentParser], None]
Run = Callable[[argparse.Namespace], Any]

PROGRAMS: dict[str, tuple[Arguments, Run]] = {
    "collect": (_collect_arguments, _collect),
    "train": (_train_arguments, _train),
    "evaluate": (_evaluate_arguments, _evaluate),
    "ingest": (_ingest_arguments, _ingest),
    "demo": (_demo_arguments, _demo),
    "gym": (_gym_arguments, _gym),
}


def _json(result: Any) -> str:
    rows = [to_tree(row) for row in result] if isinstance(result, list) else to_tree(result)
    return json.dumps(rows, indent=1)
