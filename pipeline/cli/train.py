"""`gaitforge train`, `evaluate` and `models`: policies, from a store and in closed loop."""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
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
    OBJECTIVE,
    OUT,
    RANDOMISATION,
    ROBOT,
    SEED,
    SELECTION,
    SIMULATOR,
    STEPS,
    STORE,
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
from gaitforge.pipeline.cli.parsing.values import names, numbers, of_simulator, run_name
from gaitforge.pipeline.cli.work import CommandWork, Result, work
from gaitforge.pipeline.terminal import show_result

if TYPE_CHECKING:
    from gaitforge.flows.stages.expert_training import BodyResult
    from gaitforge.flows.tasks.evaluation import EvaluationPlan, PolicyEvaluation
    from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
    from gaitforge.flows.tasks.policy_sources import PolicySource
    from gaitforge.learners.training.train import TrainResult

SELECTED = ("terrain", "skill", "level", "where")
TRAINED = ("objective", "steps", "batch_size", "device")
"""Arguments that are fields of `SelectPlan`, and of `TrainConfig`."""


@work(
    "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    STORE,
    option(
        "--model",
        "one of gaitforge models, or module:Config (default: fcnet, or that of --start-from)",
        metavar="NAME",
    ),
    OBJECTIVE,
    OUT,
    option(
        "--start-from",
        "begin with the weights of this run, or of a policy that ships (default: random weights)",
        run_name,
        metavar="RUN",
    ),
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
    from gaitforge.learners.training.building import policy_settings
    from gaitforge.learners.training.train import finished_result

    if arguments.plan:
        plan = plan_from_tree(TrainPlan, read_plan(arguments.plan)[0])
        if arguments.start_from:
            config = replace(plan.config, **option_values(arguments, "start_from"))
            plan = replace(plan, config=config)
    else:
        values = option_values(arguments, *TRAINED, "model", "optimiser", "seed", "start_from")
        if arguments.start_from:
            policy = policy_settings(arguments.start_from, arguments.out)
            if values.get("model", policy["model"]) != policy["model"]:
                del policy["model_overrides"]  # of the other model, which is refused by its name
            values = policy | values
        select = SelectPlan(**option_values(arguments, *SELECTED, saved="selection"))
        plan = TrainPlan(select, TrainConfig.recommended(**values))
    plan = planned(plan, arguments)
    preset(plan.config.model, plan.config.model_overrides)  # refused here, not in a job
    store = store_address(arguments.store)
    run = arguments.out.absolute()
    if arguments.runner != "local" and not arguments.after:  # they may collect what is selected
        plan.check_start(plan.selection(store), run)

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
    option(
        "--runtime",
        "what runs an exported policy's files: onnx, or a plug-in's, such as c (default: onnx)",
    ),
    ROBOT,
    SIMULATOR,
    RANDOMISATION,
    option(
        "--terrain",
        "terrains, comma-separated (default: those that the run was trained on, or all)",
        names,
    ),
    option(
        "--skill",
        "skills, comma-separated (default: those that the run was trained on, or all)",
        names,
    ),
    option(
        "--level",
        "terrain levels, e.g. 0,2,5-9 (default: 4; of a run the middle one of its episodes)",
        numbers,
    ),
    EPISODES,
    SEED,
    THREADS,
    option(
        "--against",
        "tell the return as a share of another policy's on the same episodes: expert (who "
        "collected what the run was trained on), a run's folder, or a policy by name",
        metavar="RUN",
    ),
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
    from gaitforge.flows.stages.evaluate import (
        EVALUATION,
        compared_policy,
        evaluate_beside,
        is_evaluated,
        shared_evaluation,
        shares,
    )
    from gaitforge.flows.stages.stage import CommandStage
    from gaitforge.flows.tasks.policy_sources import RUN

    policy = Path(arguments.policy)
    out = arguments.out
    words = arguments.words
    plan = _evaluation_plan(arguments)
    of_simulator(arguments, plan)
    source = plan.source(arguments.policy, "last")
    if source.kind == RUN:
        source = plan.source(arguments.policy, arguments.checkpoint)
    if arguments.runtime:
        source = source.run_by(arguments.runtime)
    folder = policy if policy.is_dir() else (out or policy).parent
    if out is None and arguments.runner != "local":
        out = folder / EVALUATION
        words = [*words, "--out", str(out)]
    robot = getattr(plan, "robot", "")
    if robot and len(load_robots(robot)) > 1:  # of the legged task alone
        return _bodies_work(arguments, source, cast("LeggedEvaluation", plan), out, words)
    compared = compared_policy(source, plan, arguments.against) if arguments.against else None

    def result(evaluations: "Sequence[PolicyEvaluation | None] | None") -> Result:
        evaluation, other = evaluations or (None, None)
        if evaluation is None and out is not None:
            record = read_record(out) or {}
        else:
            record = to_tree(evaluation)
        if compared is not None:
            other = other or shared_evaluation(*compared, Silent())
            record = shares(record, to_tree(other), compared[0].place)
        lines = (*_means(record), f"evaluated on {plan}")
        message = f"return {record['return']:.2f}, success {record['success']:.0%}"
        where = {"title": "evaluation", "about": folder, "view": out, "message": message}
        left_out = () if plan.falls else ("survival",)
        rows = [{k: v for k, v in cell.items() if k not in left_out} for cell in record["cells"]]
        following = ("export", policy, f"exports/{policy.name}") if source.kind == RUN else ()
        return Result(record, rows, lines, **where, next=following)

    stage = CommandStage(
        "evaluate",
        run=partial(evaluate_beside, source, plan, compared, path=out),
        place=out.absolute() if out else None,
        reads=(folder.absolute(),),
        done=lambda: out is not None and is_evaluated(source, plan, out),
    )
    return CommandWork(folder, [stage], result, words)


def _evaluation_plan(arguments: argparse.Namespace) -> "EvaluationPlan":
    """The plan that the run's record, the task or a file has, with the options' values."""
    from gaitforge.flows.tasks.registry import LEGGED, evaluation_class, run_evaluation

    policy = Path(arguments.policy)
    default = run_evaluation(policy)
    task = arguments.task
    if default is None and task is None and arguments.plan is None:
        _check_legged(policy)
    plan = (
        default if default and task in (None, default.kind) else evaluation_class(task or LEGGED)()
    )
    if arguments.plan:
        plan = plan_from_tree(type(plan), read_plan(arguments.plan)[0])
    plan = with_options(plan, arguments, "episodes", "seed", "threads", "sim", **CELL_FIELDS)
    return override(plan, arguments.settings)


def _check_legged(policy: Path) -> None:
    """Raise ValueError for a run, or its export, whose data are of no task that is known here."""
    from gaitforge.flows.tasks.policy_sources import data_of, is_run
    from gaitforge.flows.tasks.registry import LEGGED, run_record

    if is_run(policy) and run_record(policy).get("task", LEGGED) is None:
        raise ValueError(
            f"{policy} was trained on {data_of(policy)}, and no task that is known here has such "
            "data; --task names one to evaluate on, such as module:Plan of your own; to use the "
            "policy elsewhere: gaitforge export"
        )


def _means(record: Mapping[str, Any]) -> list[str]:
    """The means of an evaluation in words, and those of each group of its cells."""
    from gaitforge.pipeline.report.pages import fixed

    returned = _with_interval(record["return"], record["return_ci95"])
    succeeded = _with_interval(record["success"], record["success_ci95"])
    few = "" if record["return_ci95"] else "; that of a return needs two episodes per cell"
    lines = [
        f"\n{record['policy']}: return {returned}, success {succeeded}; means over "
        f"{amount(len(record['cells']), 'cell')}, in brackets 95 % intervals{few}"
    ]
    if (other := record.get("against")) is not None:
        name = " ".join(dict.fromkeys([other["policy"], other["place"]]))
        share = record["return_fraction"]
        told = f"the return of {name}, {_with_interval(other['return'], other['return_ci95'])}"
        if share is None:
            lines.append(f"no share of {told}, which is not above 0")
        else:
            shared = _with_interval(share, record["return_fraction_ci95"], 3)
            lines.append(f"{shared} of {told}")
    if (scale := record["references"]) is not None:
        score = _with_interval(record["score"], record["score_ci95"])
        lines.append(
            f"reference score {score}; 0 is a return of {fixed(scale['zero'])}, 100 of "
            f"{fixed(scale['hundred'])}, from {scale['source']}"
        )
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in record["cells"]:
        if "group" in row:
            groups.setdefault(row["group"], []).append(row)
    return [*lines, *(f"{name}: {_row_means(rows, 'cell')}" for name, rows in groups.items())]


def _with_interval(value: float, bounds: Sequence[float] | None, digits: int = 2) -> str:
    """A mean, and in brackets its interval, if there is one."""
    from gaitforge.pipeline.report.pages import fixed, interval

    return fixed(value, digits) + (f" ({interval(bounds, digits)})" if bounds else "")


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
    if arguments.against:
        raise ValueError("--against compares on one robot; of several, --beside names the experts")
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
    """The means over rows in words, of the columns that are measures in all of them."""
    measures = [key for key in rows[0] if all(isinstance(row[key], float) for row in rows)]
    means = {key: sum(row[key] for row in rows) / len(rows) for key in measures}
    listed = ", ".join(f"{key.replace('_', ' ')} {value:.3f}" for key, value in means.items())
    return f"means over {amount(len(rows), unit)}: {listed}"
