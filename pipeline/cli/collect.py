"""`gaitforge collect`: the missing parts of a plan, made by the runner that is chosen."""

import argparse
from collections.abc import Mapping, Sequence

import datasets
from flows.records.part_records import PartCollected, collection_rate, records_of_commits
from flows.runners.registry import find_runner
from flows.tasks.interface import CollectionPlan
from pipeline.cli.parsing.parser import CELL_FIELDS, command, flag, given, option, setting
from pipeline.cli.parsing.runners import RUNNER, runner_settings
from pipeline.cli.parsing.values import numbers
from pipeline.cli.running import show_submitted
from pipeline.progress import TerminalReporter
from pipeline.tables import fields_of, show_result


@command(
    "gaitforge collect data/legged.zarr --preset legged-1m9",
    "store --preset",
    option("--parts", "only these parts of the plan, e.g. 0-9", numbers),
    "--expert",
    option("--policy", "a policy that drives: folder of a run or export, or module:Class"),
    option("--labeller", "with --policy: the expert, which labels every step and drives in turns"),
    "--share --stretch SIMULATOR SIMULATION CELLS",
    option(
        "--state",
        "store base pose and joint positions, for playback: a quarter more bytes",
        action=argparse.BooleanOptionalAction,
    ),
    flag("--privileged", "store what the expert sees and a learner does not"),
    flag("--half", "store half-precision floats: half the size, no exact replay"),
    *RUNNER,
    setting("grid.episodes_per_part=100"),
    "--json",
)
def collect_command(arguments: argparse.Namespace) -> None:
    """Collect the missing parts of a plan into a store."""
    from flows.tasks.legged import legged_plan
    from flows.tasks.legged_policy import driven_by

    plan = legged_plan(
        arguments.preset,
        given(arguments, "seed", **CELL_FIELDS),
        given(arguments, "expert", "sim", "robots", "threads"),
        arguments.settings,
        given(arguments, "state", "privileged", "half"),
    )
    turns = given(arguments, "share", "stretch")
    if (turns or arguments.labeller) and not (arguments.policy and arguments.labeller):
        raise ValueError("--labeller goes with --policy, --share and --stretch with both")
    if arguments.policy:
        if arguments.expert:
            raise ValueError("with --policy the expert is the --labeller, not --expert")
        plan = driven_by(plan, arguments.policy, arguments.labeller or "", **turns)
    ids = plan.part_ids()
    if arguments.parts is not None:
        outside = [k for k in arguments.parts if k >= len(ids)]
        if outside:
            raise ValueError(f"the plan has no part {outside[0]}, only parts 0-{len(ids) - 1}")
        ids = [ids[k] for k in arguments.parts]
    records = run_collection(arguments, plan, ids)
    if records is not None:
        show_parts(records, arguments.json)


def run_collection(
    arguments: argparse.Namespace, plan: CollectionPlan, parts: Sequence[str] | None = None
) -> list[PartCollected] | None:
    """Have the chosen runner collect the missing ones of a plan's parts (None: all).

    Returns:
        The records of the parts, or None where a job was submitted instead.
    """
    runner, settings = find_runner(arguments.runner), runner_settings(arguments)
    made = runner(plan, arguments.store, TerminalReporter(), parts, settings)
    if not isinstance(made, list):
        show_submitted(made, arguments.json)
        return None
    return records_of_commits(
        datasets.open_store(arguments.store), arguments.store, parts or list(plan.part_ids())
    )


def show_parts(records: Sequence[PartCollected], as_json: bool) -> None:
    """Print a row per collected part."""
    rows = [
        fields_of(record, "part", "episodes", "steps", "bytes")
        | {"seconds": record.ended - record.started, "write_s": record.write_s}
        for record in records
    ]
    show_collected(rows, records, as_json)


def show_collected(
    rows: Sequence[Mapping[str, object]], records: Sequence[PartCollected], as_json: bool
) -> None:
    """Print rows about a collection and, below a table, its speed where times are known."""
    rate = collection_rate(records)
    told = [f"{rate:,.0f} steps/s: simulation, policy and writing"] if rate else []
    show_result(list(rows), rows, as_json, *told)
