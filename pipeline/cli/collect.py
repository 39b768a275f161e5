"""`gaitforge collect`: the missing parts of a plan, made by the runner that is chosen."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from datasets import open_store
from flows.records.part_records import PartCollected, collection_rate, records_of_commits
from flows.runners.registry import find_runner
from flows.tasks.interface import CollectionPlan
from pipeline.cli.arguments import (
    CELLS,
    SIMULATION,
    SIMULATOR,
    command,
    flag,
    given,
    numbers,
    option,
    positive,
    setting,
)
from pipeline.cli.runner_arguments import RUNNER, runner_settings
from pipeline.cli.running import show_submitted
from pipeline.progress import TerminalReporter
from pipeline.tables import show

if TYPE_CHECKING:
    from flows.tasks.legged import LeggedPlan


@command(
    "gaitforge collect data/legged.zarr --preset legged-1m9",
    "store",
    option("--preset", "size of the plan", default="demo", metavar="NAME"),
    option("--parts", "only these parts of the plan, e.g. 0-9", numbers),
    "--expert",
    option("--policy", "a policy that drives: folder of a run or export, or module:Class"),
    option("--labeller", "with --policy: the expert, which labels every step and drives in turns"),
    option("--share", "of the stretches that the policy drives (default: 0.3)", float),
    option("--stretch", "control steps of a stretch (default: 12)", positive),
    SIMULATOR,
    SIMULATION,
    CELLS,
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

    plan = legged_plan(
        arguments.preset,
        {
            "terrains": arguments.terrain,
            "skills": arguments.skill,
            "levels": arguments.level,
            "seed": arguments.seed,
        },
        {name: getattr(arguments, name) for name in ("expert", "sim", "robots", "threads")},
        arguments.settings,
        {
            "state": arguments.state,
            "privileged": arguments.privileged or None,
            "half": arguments.half or None,
        },
    )
    plan = _driven(arguments, plan)
    ids = plan.part_ids()
    if arguments.parts is not None:
        outside = [k for k in arguments.parts if k >= len(ids)]
        if outside:
            raise ValueError(f"the plan has no part {outside[0]}, only parts 0-{len(ids) - 1}")
        ids = [ids[k] for k in arguments.parts]
    records = run_collection(arguments, plan, ids)
    if records is not None:
        show_parts(records, arguments.json)


def _driven(arguments: argparse.Namespace, plan: LeggedPlan) -> LeggedPlan:
    """The plan with the chosen policy, if any."""
    chosen = given(arguments, "share", "stretch")
    if (chosen or arguments.labeller) and not (arguments.policy and arguments.labeller):
        raise ValueError("--labeller goes with --policy, --share and --stretch with both")
    if not arguments.policy:
        return plan
    if arguments.expert:
        raise ValueError("with --policy the expert is the --labeller, not --expert")
    from flows.tasks.legged_policy import driven_by

    return driven_by(plan, arguments.policy, arguments.labeller or "", **chosen)


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
        open_store(arguments.store), arguments.store, parts or list(plan.part_ids())
    )


def show_parts(records: Sequence[PartCollected], as_json: bool) -> None:
    """Print a row per collected part."""
    names = ("part", "episodes", "steps", "bytes")
    rows = [
        {name: getattr(record, name) for name in names}
        | {"seconds": record.ended - record.started, "write_s": record.write_s}
        for record in records
    ]
    show_collected(rows, records, as_json)


def show_collected(
    rows: Sequence[Mapping[str, object]], records: Sequence[PartCollected], as_json: bool
) -> None:
    """Print rows about a collection and, below a table, its speed where times are known."""
    show(rows, as_json)
    rate = collection_rate(records)
    if rate and not as_json:
        print(f"{rate:,.0f} steps/s: simulation, policy and writing")
