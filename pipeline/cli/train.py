"""`gaitforge train`, `evaluate` and `models`: policies, from a store and in closed loop."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gaitforge.common.errors import amount
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_plan, read_record, to_tree
from gaitforge.flows.settings import override
from gaitforge.flows.stages.status import training_status
from gaitforge.learners.models.registry import describe_models, preset
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.cli.parsing.options import (
    BATCH_SIZE,
    CELL_FIELDS,
    CELLS,
    CHECKPOINT,
    DEVICE,
    EPISODES,
    JSON,
    LOG,
    MODEL,
    OBJECTIVE,
    OUT,
    RANDOMISATION,
    ROBOT,
    SEED,
    SELECTION,
    SIMULATOR,
    SKILL,
    STEPS,
    STORE,
    TERRAIN,
    THREADS,
    WHERE,
    needs,
    option,
    option_values,
    planned,
    setting,
    with_default,
    with_options,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import numbers, of_simulator
from gaitforge.pipeline.cli.work import CommandWork, Result, work
from gaitforge.pipeline.terminal import show_result

if TYPE_CHECKING:
    from gaitforge.flows.stages.expert_training import BodyResult
    from gaitforge.flows.tasks.evaluation import PolicyEvaluation, PolicySource
    from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
    from gaitforge.learners.training.train import TrainResult

SELECTED = ("terrain", "skill", "level", "where")
TRAINED = ("objective", "steps", "batch_size", "device")
"""Arguments that are fields of `SelectPlan`, and of `TrainConfig`."""


@work(
    "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    STORE,
    MODEL,
    OBJECTIVE,
    OUT,
    with_default(STEPS, f"{TrainConfig.steps:,}"),
    with_default(BATCH_SIZE, "the model's; 24 of fcnet, 256 of bot"),
    option("--optimiser", "adamw, adam or lion (default: adamw)", metavar="NAME"),
    option("--seed", "random seed of the weights and the data order (default: 0)", int),
    with_default(DEVICE, "cpu"),
    CELLS,
    WHERE,
    SELECTION,
    option("--plan", "a plan's file, e.g. the plan.json of another run", Path, metavar="FILE"),
    LOG,
    setting("config.peak_lr=0.001"),
    JSON,
    needs("learn"),
)
def train_command(arguments: argparse.Namespace) -> CommandWork:
    """Train a model on a selection of a store, or resume a run."""
    from gaitforge.flows.stages.stage import CommandStage
    from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
    from gaitforge.learners.training.train import finished_result

    if arguments.plan:
        plan = plan_from_tree(TrainPlan, read_plan(arguments.plan)[0])
    else:
        values = option_values(arguments, *TRAINED, "optimiser", "seed")
        select = SelectPlan(**option_values(arguments, *SELECTED, saved="selection"))
        config = TrainConfig.recommended(arguments.model, **values)
        plan = TrainPlan(select, config)
    plan = planned(plan, arguments)
    preset(plan.config.model, plan.config.model_overrides)  # refused here, not in a job
    store = store_address(arguments.store)
    run = arguments.out.absolute()
    if arguments.runner != "local" and not arguments.after:  # they may collect what is selected
        plan.selection(store)

    def result(trained: "TrainResult | None") -> Result:
        record = asdict(trained or finished_result(run)) | {"run_dir": str(arguments.out)}
        message = f"{record['steps']:,} steps, loss {record['loss']:.4f}"
        row = {"run": str(run), "model": plan.config.model, **record}
        return Result(
            record,
            title="trained",
            about=run,
            message=message,
            tables={"trained": [row]},
            next=("evaluate", arguments.out),
        )

    stage = CommandStage(
        "train",
        run=partial(run_training, plan, store, arguments.out),
        place=run,
        reads=(store,),
        trains=True,
        done=lambda: training_status(run).state == "complete",
    )
    return CommandWork(arguments.out, [stage], result, arguments.words)


@command("gaitforge models --json", JSON)
def models_command(arguments: argparse.Namespace) -> None:
    """List the models and their sizes."""
    models = describe_models()
    columns = ("model", "words", "space", "objective", "parameters")
    show_result(models, [{name: row[name] for name in columns} for row in models], arguments.json)


@work(
    "gaitforge evaluate runs/fcnet --terrain flat,rough --skill run --episodes 64\n"
    "          gaitforge evaluate aliengo-family --robot go1,robots/family --out runs/bodies",
    option(
        "policy",
        "folder of a training run or exported policy, a policy that ships (fcnet-aliengo), "
        "module:Class, or an expert of the task (of legged robots: see gaitforge expert list)",
    ),
    option(
        "--task",
        "legged, a plug-in's or your own, module:Plan (default: the run's, or legged)",
    ),
    CHECKPOINT,
    ROBOT,
    SIMULATOR,
    RANDOMISATION,
    TERRAIN,
    SKILL,
    option("--level", "terrain levels, e.g. 0,2,5-9 (default: 4, the middle one)", numbers),
    EPISODES,
    SEED,
    THREADS,
    option(
        "--beside",
        "with several robots: experts of these robots, whose returns are the measure",
        metavar="EXPERT,EXPERT",
    ),
    option(
        "--out",
        "keep the result in this file (of several robots: in files in this folder), and do "
        "nothing where it is that already (of a run, with another runner than local: "
        "RUN/evaluation.json)",
        Path,
        metavar="FILE",
    ),
    option("--plan", "a plan's file, instead of the task's", Path, metavar="FILE"),
    setting("robots=64"),
    JSON,
    needs("learn", "sim"),
)
def evaluate_command(arguments: argparse.Namespace) -> CommandWork:
    """Run a policy in closed loop on held-out episodes of its task."""
    from gaitforge.collectors.robots.robot import load_robots
    from gaitforge.flows.stages.evaluate import EVALUATION, evaluate_policy, is_evaluated
    from gaitforge.flows.stages.stage import CommandStage
    from gaitforge.flows.tasks.evaluation import RUN
    from gaitforge.flows.tasks.registry import LEGGED, evaluation_class, run_evaluation

    policy = Path(arguments.policy)
    out = arguments.out
    words = arguments.words
    default = run_evaluation(policy)
    task = arguments.task
    plan = (
        default if default and task in (None, default.kind) else evaluation_class(task or LEGGED)()
    )
    if arguments.plan:
        plan = plan_from_tree(type(plan), read_plan(arguments.plan)[0])
    plan = with_options(plan, arguments, "episodes", "seed", "threads", "sim", **CELL_FIELDS)
    plan = override(plan, arguments.settings)
    of_simulator(arguments, plan)
    source = plan.source(arguments.policy, "last")
    if source.kind == RUN:
        source = plan.source(arguments.policy, arguments.checkpoint)
    folder = policy if policy.is_dir() else (out or policy).parent
    if out is None and arguments.runner != "local":
        out = folder / EVALUATION
        words = [*words, "--out", str(out)]
    robot = getattr(plan, "robot", "")
    if robot and len(load_robots(robot)) > 1:  # of the legged task alone
        return _bodies_work(arguments, source, cast("LeggedEvaluation", plan), out, words)

    def result(evaluation: "PolicyEvaluation | None") -> Result:
        if evaluation is None and out is not None:
            record = read_record(out) or {}
        else:
            record = to_tree(evaluation)
        lines = (*_means(record), f"evaluated on {plan}")
        message = f"return {record['return']:.2f}, success {record['success']:.0%}"
        where = {"title": "evaluation", "about": folder, "view": out, "message": message}
        following = ("export", policy, f"exports/{policy.name}") if source.kind == RUN else ()
        return Result(record, record["cells"], lines, **where, next=following)

    stage = CommandStage(
        "evaluate",
        run=partial(evaluate_policy, source, plan, path=out),
        place=out.absolute() if out else None,
        reads=(folder.absolute(),),
        done=lambda: out is not None and is_evaluated(source, plan, out),
    )
    return CommandWork(folder, [stage], result, words)


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


def _bodies_work(
    arguments: argparse.Namespace,
    source: "PolicySource",
    plan: "LeggedEvaluation",
    out: Path | None,
    words: Sequence[str],
) -> CommandWork:
    """Evaluate a policy on several robots: a row each, the means, and each family's."""
    from gaitforge.collectors.robots.robot import load_robots
    from gaitforge.flows.stages.expert_training import evaluate_bodies
    from gaitforge.flows.stages.stage import CommandStage
    from gaitforge.flows.tasks.legged import LeggedPlan

    robots = load_robots(plan.robot)
    experts = {}
    if beside := arguments.beside:
        pairs = LeggedPlan(expert=beside, robot=plan.robot).pairs()
        experts = {robot.name: expert for robot, expert in pairs}

    def run(reporter: Reporter) -> "list[BodyResult]":
        return evaluate_bodies(source, plan, robots, reporter, out, experts)

    def result(bodies: "list[BodyResult] | None") -> Result:
        rows = to_tree(run(Silent()) if bodies is None else bodies)
        lines = [f"\n{source.name}: {_row_means(rows, 'robot')}"]
        for item in plan.robot.split(","):
            family = {robot.name for robot in load_robots(item)}
            if 1 < len(family) < len(rows):
                mine = [row for row in rows if row["robot"] in family]
                lines.append(f"{item}: {_row_means(mine, 'robot')}")
        return Result(rows, rows, (*lines, f"on {plan}"), title="evaluation", about=out)

    return CommandWork(out or Path(), [CommandStage("evaluate", run=run)], result, words)


def _row_means(rows: Sequence[Mapping[str, Any]], unit: str) -> str:
    """The means over rows in words, of the columns that are measures."""
    measures = [key for key, value in rows[0].items() if isinstance(value, float)]
    means = {key: sum(row[key] for row in rows) / len(rows) for key in measures}
    listed = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in means.items())
    return f"means over {amount(len(rows), unit)}: {listed}"
