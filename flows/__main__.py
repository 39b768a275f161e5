"""The stages as programs: `python -m flows collect STORE PLAN.json`.

A plan is a JSON file: the record that a run leaves beside what it made, or the plan's values alone;
absent fields have their defaults.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from flows.progress import Silent
from flows.records.part_records import PLAN_FILES
from flows.records.plans import plan_from_tree
from flows.records.records import read_record, to_tree
from flows.runners.registry import RUNNERS, find_runner
from flows.stages.comparison import ComparisonPlan, run_comparison
from flows.stages.demo import DemoPlan, run_demo
from flows.stages.evaluate import EvaluatePlan, evaluate_once, run_source
from flows.stages.export import ExportPlan, run_export
from flows.stages.importing import ImportPlan, run_import
from flows.stages.train import TrainPlan, run_training
from flows.tasks.registry import LEGGED, TASKS, collection_plan

WRONG_INPUT = 2

Plan = TypeVar("Plan")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a stage and print its result as JSON.

    Returns:
        The exit code: 2 after one line on what was wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m flows", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, (run, places) in PROGRAMS.items():
        command = commands.add_parser(name, help=run.__doc__, description=run.__doc__)
        for place, text in places.items():
            command.add_argument(place, help=text)
        if name == "collect":
            command.add_argument("--parts", type=int, nargs="+", metavar="N", help="default: all")
            command.add_argument("--runner", default="local", help=", ".join(RUNNERS))
            command.add_argument("--task", help=f"of a plan without a record: {', '.join(TASKS)}")
    arguments = parser.parse_args(argv)
    try:
        result = PROGRAMS[arguments.name][0](arguments)
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    rows = [to_tree(row) for row in result] if isinstance(result, list) else to_tree(result)
    print(json.dumps(rows, indent=1))
    return 0


def read_plan(kind: type[Plan], path: str) -> Plan:
    """A plan from a file.

    Raises:
        ValueError: no such file, no JSON, or not this kind of plan.
    """
    tree = _read(path)
    return plan_from_tree(kind, tree["plan"] if _is_record(tree) else tree)


def _read(path: str) -> Any:
    tree = read_record(Path(path))
    if tree is None:
        raise ValueError(f"no plan at {path}")
    return tree


def _is_record(tree: Any) -> bool:
    return isinstance(tree, dict) and isinstance(tree.get("plan"), dict)


def _collect(arguments: argparse.Namespace) -> Any:
    """Collect the missing parts of a task's plan."""
    runner, tree = find_runner(arguments.runner), _read(arguments.plan)
    # Older records name their task by their file: gym-*.json.
    by_file = PLAN_FILES.get(Path(arguments.plan).stem.split("-")[0], LEGGED)
    named = tree.get("kind") if _is_record(tree) else None
    kind = arguments.task or named or by_file
    plan = collection_plan(kind, tree["plan"] if _is_record(tree) else tree)
    names = plan.part_ids()
    outside = [k for k in arguments.parts or () if not 0 <= k < len(names)]
    if outside:
        raise ValueError(f"part {outside[0]} is not in the plan, which has 0-{len(names) - 1}")
    parts = [names[k] for k in arguments.parts] if arguments.parts else None
    return runner(plan, arguments.store, Silent(), parts, None)


def _train(arguments: argparse.Namespace) -> Any:
    """Train on a selection of a store, or resume the run."""
    plan = read_plan(TrainPlan, arguments.plan)
    return run_training(plan, arguments.store, Path(arguments.out), Silent())


def _evaluate(arguments: argparse.Namespace) -> Any:
    """Evaluate a training run in closed loop."""
    source, plan = run_source(Path(arguments.run)), read_plan(EvaluatePlan, arguments.plan)
    return evaluate_once(source, plan, Path(arguments.out), Silent())


def _export(arguments: argparse.Namespace) -> Any:
    """Export a training run's policy."""
    plan = read_plan(ExportPlan, arguments.plan)
    return run_export(plan, Path(arguments.run), Path(arguments.out), Silent())


def _import(arguments: argparse.Namespace) -> Any:
    """Import data of another project's format into a store."""
    plan = read_plan(ImportPlan, arguments.plan)
    return run_import(plan, arguments.source, arguments.store, Silent())


def _compare(arguments: argparse.Namespace) -> Any:
    """Compare models on the same episodes, or resume the comparison."""
    plan = read_plan(ComparisonPlan, arguments.plan)
    return run_comparison(plan, arguments.store, Path(arguments.out), Silent())


def _demo(arguments: argparse.Namespace) -> Any:
    """Run or resume the pipeline at small scale."""
    return run_demo(read_plan(DemoPlan, arguments.plan), Path(arguments.out), Silent())


_STORE, _PLAN, _RUN = "a folder, or s3://bucket/prefix", "a JSON file", "a training run's folder"
PROGRAMS: dict[str, tuple[Callable[[argparse.Namespace], Any], dict[str, str]]] = {
    "collect": (_collect, {"store": _STORE, "plan": _PLAN}),
    "train": (_train, {"store": _STORE, "plan": _PLAN, "out": "folder of the run"}),
    "evaluate": (_evaluate, {"run": _RUN, "plan": _PLAN, "out": "file of the result"}),
    "export": (_export, {"run": _RUN, "plan": _PLAN, "out": "folder"}),
    "import": (_import, {"source": "a file or folder", "store": _STORE, "plan": _PLAN}),
    "compare": (_compare, {"store": _STORE, "plan": _PLAN, "out": "folder"}),
    "demo": (_demo, {"plan": _PLAN, "out": "folder"}),
}
"""Name -> the program and its arguments."""

if __name__ == "__main__":
    sys.exit(main())
