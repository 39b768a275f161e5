"""`gaitforge evaluate`: any policy in closed loop, on the episodes of its task."""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gaitforge.collectors.robots.robot import load_robots
from gaitforge.datasets.errors import amount
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.settings import override, with_named
from gaitforge.pipeline.cli.experiments import submitted
from gaitforge.pipeline.cli.parsing.parser import CELL_FIELDS, command, given, option, setting
from gaitforge.pipeline.cli.parsing.runners import JOB_RUNNER
from gaitforge.pipeline.cli.parsing.values import numbers
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import show_result

if TYPE_CHECKING:
    from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
    from gaitforge.flows.tasks.policies import PolicySource


@command(
    "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64\n"
    "          gaitforge evaluate aliengo-family --robot go1,robots/family --out runs/bodies\n"
    "          gaitforge evaluate expert --task gym --set env=Hopper-v5\n"
    "          gaitforge evaluate runs/mocap --set reference=clips.h5 --set validation=step_00",
    option(
        "policy",
        "folder of a training run or exported policy, module:Class, or a task's expert: see "
        "gaitforge expert list; random, medium, expert of gym; pd or a folder of experts of "
        "humanoid",
    ),
    option("--task", "legged, gym, humanoid or your own (default: the run's, or legged)"),
    "--checkpoint --robot SIMULATOR --terrain --skill",
    option("--level", "terrain levels, e.g. 0,2,5-9 (default: 4, the middle one)", numbers),
    "--episodes --seed --threads",
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
    *JOB_RUNNER,
    "--json",
)
def evaluate_command(arguments: argparse.Namespace) -> None:
    """Run a policy in closed loop on held-out episodes of its task."""
    from gaitforge.flows.stages.evaluate import EVALUATION, evaluate_policy
    from gaitforge.flows.tasks.registry import LEGGED, evaluation_class, run_evaluation

    policy = Path(arguments.policy)
    known, task = run_evaluation(policy), arguments.task
    plan = known if known and task in (None, known.kind) else evaluation_class(task or LEGGED)()
    chosen = given(arguments, "episodes", "seed", "threads", "sim", **CELL_FIELDS)
    plan = override(with_named(plan, chosen), arguments.settings)
    source = plan.source(arguments.policy, arguments.checkpoint)
    place = policy if policy.is_dir() else (arguments.out or policy).parent
    words = [] if arguments.out else ["--out", str(place / EVALUATION)]
    if submitted(arguments, "evaluate", place, words):
        return
    robots = load_robots(plan.robot) if getattr(plan, "robot", "") else []
    if len(robots) > 1:
        _show_bodies(arguments, source, plan)
        return
    record = to_tree(evaluate_policy(source, plan, TerminalReporter(), arguments.out))
    show_result(record, record["cells"], arguments.json, *_means(record), f"evaluated on {plan}")


def _means(record: Mapping[str, Any]) -> list[str]:
    """The means of an evaluation in words, and those of each group of its cells."""
    from gaitforge.pipeline.report.pages import fixed, interval

    lines = [
        f"\n{record['policy']}: return {fixed(record['return'])} "
        f"({interval(record['return_ci95'])}), success {fixed(record['success'])} "
        f"({interval(record['success_ci95'])}); means over {amount(len(record['cells']), 'cell')}, "
        "in brackets 95 % intervals"
    ]
    if (scale := record["references"]) is not None:
        lines.append(
            f"score {fixed(record['score'])} ({interval(record['score_ci95'])}); 0 is a return of "
            f"{fixed(scale['zero'])}, 100 of {fixed(scale['hundred'])}, from {scale['source']}"
        )
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["cells"]:
        if "group" in row:
            groups.setdefault(row["group"], []).append(row)
    return [*lines, *(f"{name}: {_row_means(rows, 'cell')}" for name, rows in groups.items())]


def _show_bodies(
    arguments: argparse.Namespace, source: "PolicySource", plan: "LeggedEvaluation"
) -> None:
    """Evaluate a policy on several robots; print a row each, the means, and each family's."""
    from gaitforge.flows.stages.legged.bodies import evaluate_bodies
    from gaitforge.flows.tasks.legged import LeggedPlan

    robots, experts = load_robots(plan.robot), {}
    if beside := arguments.beside:
        pairs = LeggedPlan(expert=beside, robot=plan.robot).pairs()
        experts = {robot.name: expert for robot, expert in pairs}
    found = evaluate_bodies(source, plan, robots, TerminalReporter(), arguments.out, experts)
    rows = to_tree(found)
    lines = [f"\n{source.name}: {_row_means(rows, 'robot')}"]
    for item in plan.robot.split(","):
        family = {robot.name for robot in load_robots(item)}
        if 1 < len(family) < len(rows):
            chosen = [row for row in rows if row["robot"] in family]
            lines.append(f"{item}: {_row_means(chosen, 'robot')}")
    show_result(rows, rows, arguments.json, *lines, f"on {plan}")


def _row_means(rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """The means over rows in words, of the columns that are measures."""
    measures = [key for key, value in rows[0].items() if isinstance(value, float)]
    means = {key: sum(row[key] for row in rows) / len(rows) for key in measures}
    listed = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in means.items())
    return f"means over {amount(len(rows), unit)}: {listed}"
