"""The stages as programs: `python -m gaitforge.flows collect STORE PLAN.json`.

A plan is a JSON file: the record that a run leaves beside what it made, or the plan's values alone;
absent fields have their defaults.
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_record, to_tree
from gaitforge.flows.runners.registry import RUNNERS, find_runner
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.export import ExportPlan, run_export
from gaitforge.flows.stages.importing import ImportPlan, run_import
from gaitforge.flows.stages.train import TrainPlan, run_training
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policies import run_source
from gaitforge.flows.tasks.registry import LEGGED, TASKS, collection_plan, run_evaluation

WRONG_INPUT = 2

Plan = TypeVar("Plan")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a stage and print its result as JSON.

    Returns:
        The exit code: 2 after one line on what was wrong.
    """
    parser = argparse.ArgumentParser(prog="python -m gaitforge.flows", description=__doc__)
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, (run, _, places) in PROGRAMS.items():
        text = (run.__doc__ or name).splitlines()[0]  # `python -OO` drops docstrings
        command = commands.add_parser(name, help=text, description=text)
        for place in places:
            kind, text = PLACES[place]
            command.add_argument(place, help=text, type=kind)
        if name == "collect":
            command.add_argument("--parts", type=int, nargs="+", metavar="N", help="default: all")
            command.add_argument("--runner", default="local", help=", ".join(RUNNERS))
            command.add_argument("--task", help=f"of a plan without a record: {', '.join(TASKS)}")
    arguments = parser.parse_args(argv)
    run, kind, places = PROGRAMS[arguments.name]
    try:
        if kind is None:
            result = run(arguments)
        else:
            others = [getattr(arguments, place) for place in places if place != "plan"]
            result = run(read_plan(kind, arguments.plan), *others, Silent())
    except (ValueError, OSError) as error:
        print(f"{parser.prog}: error: {' '.join(str(error).split())}", file=sys.stderr)
        return WRONG_INPUT
    print(json.dumps(to_tree(result), indent=1))
    return 0


def read_plan(kind: type[Plan], path: str) -> Plan:
    """A plan from a file.

    Raises:
        ValueError: no such file, no JSON, or not this kind of plan.
    """
    return plan_from_tree(kind, _read(path)[0])


def _read(path: str) -> tuple[Any, str | None]:
    """A plan's values, and the task that its record names."""
    tree = read_record(Path(path))
    if tree is None:
        raise ValueError(f"no plan at {path}")
    if isinstance(tree, dict) and isinstance(tree.get("plan"), dict):
        return tree["plan"], tree.get("kind")
    return tree, None


def _collect(arguments: argparse.Namespace) -> Any:
    """Collect the missing parts of a task's plan."""
    runner, (tree, recorded) = find_runner(arguments.runner), _read(arguments.plan)
    plan = collection_plan(arguments.task or recorded or LEGGED, tree)
    names = plan.part_ids()
    outside = [k for k in arguments.parts or () if not 0 <= k < len(names)]
    if outside:
        raise ValueError(f"part {outside[0]} is not in the plan, which has 0-{len(names) - 1}")
    parts = [names[k] for k in arguments.parts] if arguments.parts else None
    return runner(plan, arguments.store, Silent(), parts, None)


def _evaluate(arguments: argparse.Namespace) -> Any:
    """Evaluate a training run in closed loop."""
    known = run_evaluation(arguments.run) or LeggedEvaluation()
    source, plan = run_source(arguments.run), read_plan(type(known), arguments.plan)
    evaluate_policy(source, plan, Silent(), arguments.out)
    return read_record(arguments.out)


PLACES: dict[str, tuple[Callable[[str], Any], str]] = {
    "store": (str, "a folder, or s3://bucket/prefix"),
    "plan": (str, "a JSON file"),
    "run": (Path, "a training run's folder"),
    "source": (str, "a file or folder"),
    "out": (Path, "folder of the result; of evaluate its file"),
}
PROGRAMS: dict[str, tuple[Callable[..., Any], Any, tuple[str, ...]]] = {
    "collect": (_collect, None, ("store", "plan")),
    "train": (run_training, TrainPlan, ("store", "plan", "out")),
    "evaluate": (_evaluate, None, ("run", "plan", "out")),
    "export": (run_export, ExportPlan, ("run", "plan", "out")),
    "import": (run_import, ImportPlan, ("source", "store", "plan")),
}
"""Name -> the stage, its plan's class (None: it reads the plan itself), and its arguments."""

if __name__ == "__main__":
    sys.exit(main())
