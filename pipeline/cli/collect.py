"""`gaitforge collect`: the parts of a plan."""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gaitforge import datasets
from gaitforge.common.errors import amount
from gaitforge.common.trust import naming
from gaitforge.flows.records.part_records import (
    PartCollected,
    allow_mixed_versions,
    collection_rate,
    plan_records,
    records_of_commits,
    store_address,
)
from gaitforge.flows.records.records import read_plan
from gaitforge.flows.runners.slurm.jobs import jobs_folder
from gaitforge.flows.settings import override, sets
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.registry import LEGGED, collection_plan, recorded_plan
from gaitforge.pipeline.cli.parsing.options import (
    CELL_FIELDS,
    EXPERT,
    JSON,
    MIX_VERSIONS,
    PRESET,
    RANDOMISATION,
    SHARE,
    SIMULATOR,
    STORE,
    STRETCH,
    cells,
    flag,
    needs,
    of_task,
    option,
    option_values,
    setting,
    simulation,
    with_default,
    with_options,
)
from gaitforge.pipeline.cli.parsing.values import advise, experts, names, numbers, of_simulator
from gaitforge.pipeline.cli.work import CommandWork, Result, work
from gaitforge.pipeline.terminal import Rows, fields_of


@work(
    "gaitforge collect data/legged.zarr --preset legged-1m9",
    STORE,
    PRESET,
    option(
        "--task",
        "an installed task, or your own module:Plan, with settings by --set (default: legged "
        "robots)",
        metavar="TASK",
    ),
    option(
        "--plan",
        "a plan's file, e.g. another collection's record",
        Path,
        metavar="FILE",
    ),
    option(
        "--from-plan",
        "a dataset's plan, which gaitforge plan wrote; says whether the content is the same",
        Path,
        metavar="FILE",
    ),
    option(
        "--where",
        "with --from-plan: only parts with such episodes, by terrain, level, skill, seed and "
        "action_noise",
        default="",
        metavar="CONDITION",
    ),
    option("--parts", "parts of the plan, e.g. 0-9 (default: all)", numbers),
    with_default(EXPERT, "the robot's"),
    option("--robot", "robots or their folders, in turn (default: aliengo)", names),
    option(
        "--policy",
        "a policy that drives: folder of a run or export, one that ships, or module:Class",
    ),
    option(
        "--labeller",
        "with --policy: the expert, which labels every step and drives in turns",
        experts,
    ),
    SHARE,
    STRETCH,
    SIMULATOR,
    simulation(320),
    cells("the preset's"),
    RANDOMISATION,
    option(
        "--state",
        "store poses, for playback: a quarter more bytes",
        action=argparse.BooleanOptionalAction,
    ),
    flag("--privileged", "store what the expert sees and a learner does not"),
    flag("--half", "half-precision floats: half the size, no exact replay"),
    flag("--new-every-day", "the day is the seed, so every day adds new parts"),
    setting("grid.episodes_per_part=100"),
    MIX_VERSIONS,
    JSON,
    needs("sim", unless="task"),
    alone=True,
)
def collect_command(arguments: argparse.Namespace) -> CommandWork:
    """Collect the missing parts of a plan into a store."""
    _allow_versions(arguments)
    if arguments.from_plan:
        return _dataset_work(arguments)
    if arguments.new_every_day:
        if arguments.seed is not None or sets(arguments.settings, "seed"):
            raise ValueError("with --new-every-day the day is the seed: give no other seed")
        arguments.seed = int(time.strftime("%Y%m%d", time.gmtime()))
    if arguments.plan:
        values, kind = read_plan(arguments.plan)
        with naming(arguments.plan):
            plan = collection_plan(arguments.task or kind or LEGGED, values)
    elif arguments.task:
        plan = collection_plan(arguments.task, {})
    else:
        plan = _legged_plan(arguments)
    if arguments.plan or arguments.task:
        if plan.kind != LEGGED:
            advise(arguments, of_task(plan))
        plan = with_options(plan, arguments, "seed", "threads")
        plan = override(plan, arguments.settings)
    of_simulator(arguments, plan)
    with naming(arguments.plan or ""):  # names of parts depend on the policy's code
        ids = plan.part_ids()
    if arguments.parts is not None:
        outside = [k for k in arguments.parts if k >= len(ids)]
        if outside:
            raise ValueError(f"the plan has no part {outside[0]}, only parts 0-{len(ids) - 1}")
        ids = [ids[k] for k in arguments.parts]
    return collection_work(arguments, plan, part_rows, ids)


def _legged_plan(arguments: argparse.Namespace) -> CollectionPlan:
    from gaitforge.collectors.experts.expert import shipped_experts
    from gaitforge.collectors.robots.robot import absolute_robot
    from gaitforge.flows.tasks.legged import legged_plan

    names = ("expert", "sim", "robots", "threads", "seed", "state", "privileged", "half")
    values = option_values(arguments, *names, **CELL_FIELDS)
    if arguments.robot:
        values["robot"] = ",".join(map(absolute_robot, arguments.robot))
        if expert_names := shipped_experts(arguments.robot):
            values = {"expert": ",".join(expert_names)} | values
    plan = legged_plan(arguments.preset, values, arguments.settings)
    if not arguments.policy:
        return plan
    if arguments.expert:
        raise ValueError("with --policy the expert is the --labeller, not --expert")
    from gaitforge.flows.tasks.legged_evaluation import driven_by  # imports torch

    turns = option_values(arguments, "share", "stretch") if arguments.labeller else {}
    return driven_by(plan, arguments.policy, arguments.labeller or "", **turns)


def _dataset_work(arguments: argparse.Namespace) -> CommandWork:
    """The missing parts of a dataset by its plan, and whether their content is the same."""
    from gaitforge.flows.stages.dataset_plan import differing_parts, read_dataset_plan
    from gaitforge.flows.stages.stage import collection_stage

    store = store_address(arguments.store)
    path = arguments.from_plan
    collections = read_dataset_plan(path, arguments.where)
    of_simulator(arguments, *(plan for plan, _ in collections))
    workers = option_values(arguments, "threads")
    stages = []
    for number, (plan, parts) in enumerate(collections):
        plan = plan.with_workers(workers["threads"]) if workers else plan
        name = "collect" if len(collections) == 1 else f"collect plan-{number}"
        stages.append(collection_stage(name, plan, store, parts))

    def result(_: object) -> Result:
        parts = [part for _, part_names in collections for part in part_names]
        dataset = datasets.open_store(store)
        differing = differing_parts(path, dataset, parts)
        same = f"{amount(len(parts), 'part')}: the same content as planned"
        line = f"{len(differing)} of {amount(len(parts), 'part')} differ: {', '.join(differing)}"
        record = {"parts": len(parts), "differing": differing, "hash": dataset.info().hash}
        lines = (line if differing else same, f"hash {record['hash']}")
        return Result(record, None, lines, exit_code=1 if differing else 0)

    return CommandWork(jobs_folder(store), stages, result, arguments.words)


def collection_work(
    arguments: argparse.Namespace,
    plan: CollectionPlan,
    rows: Callable[[Sequence[PartCollected]], Rows],
    parts: Sequence[str] | None = None,
) -> CommandWork:
    """Collect the missing ones of a plan's parts (None: all) into the command's store.

    Args:
        rows: makes the table's rows from the records of all these parts.
    """
    from gaitforge.flows.stages.stage import collection_stage

    _allow_versions(arguments)
    store = store_address(arguments.store)
    ids = list(parts or plan.part_ids())
    check_unknown_policy(plan, store, ids)

    def result(collected: list[PartCollected] | None) -> Result:
        records = records_of_commits(datasets.open_store(store), store, ids)
        now = len(collected or ())
        table = rows(records)
        return Result(
            table,
            table,
            _speed(records),
            title="collection",
            about=store,
            view=store if plan.kind == LEGGED else None,
            next=("train", arguments.store, "--out", f"runs/{Path(arguments.store).stem}"),
            message=f"{amount(now, 'part')} collected, {len(records) - now} already stored",
        )

    stage = collection_stage("collect", plan, store, parts)
    return CommandWork(jobs_folder(store), [stage], result, arguments.words)


def check_unknown_policy(plan: CollectionPlan, store: Path | str, parts: Sequence[str]) -> None:
    """Refuse to add parts of a policy to parts that may be those of its earlier weights.

    Only a user's class without a `key` is such a policy. Its weights are the same if a stored part
    that is made again is: then an interrupted collection goes on. Where no part is missing, it says
    that nothing was compared.
    """
    from gaitforge.flows.stages.replay import difference_of

    if not (policy := plan.unknown_policy()):
        return
    try:
        opened = datasets.open_store(store)
    except datasets.DatasetError:
        return
    records = [
        record for record in plan_records(store) if policy in map(str, record["plan"].values())
    ]
    earlier = {
        part: (steps, record)
        for record in records
        for part, steps in zip(record["parts"], record["steps"], strict=True)
    }
    committed = earlier.keys() - set(opened.missing(list(earlier)))
    if not committed:
        return
    where = f"{store} holds episodes of {policy}, which has no `key`"
    if not opened.missing(list(parts)):
        print(f"note: {where}; nothing is made anew where its weights changed", file=sys.stderr)
        return
    shortest = min(sorted(committed), key=lambda part: earlier[part][0])
    print(f"note: {where}; part {shortest} is made again to compare it", file=sys.stderr)
    try:
        difference = difference_of(recorded_plan(earlier[shortest][1]), opened, shortest)
    except ValueError as error:
        difference = str(error)
    if difference:
        raise ValueError(
            f"{where} to say whether they are of the same weights, and part {shortest}, made "
            f"again, differs ({difference}): collect into another store"
        )


def _allow_versions(arguments: argparse.Namespace) -> None:
    if getattr(arguments, "mix_versions", False):
        allow_mixed_versions(store_address(arguments.store))


def part_rows(records: Sequence[PartCollected]) -> Rows:
    """A row for each collected part."""
    return [
        fields_of(record, "part", "episodes", "steps", "bytes")
        | {"seconds": record.ended - record.started, "write_s": record.write_s}
        for record in records
    ]


def _speed(records: Sequence[PartCollected]) -> tuple[str, ...]:
    """The speed of a collection as a line; nothing without recorded times."""
    rate = collection_rate(records)
    return (f"{rate:,.0f} steps/s: simulation, policy and writing",) if rate else ()
