"""`gaitforge collect`, `derive` and `dataset relabel`: parts made by the runner that is chosen."""

import argparse
from collections.abc import Mapping, Sequence

from gaitforge import datasets
from gaitforge.collectors.robots.robot import absolute_robot
from gaitforge.flows.records.part_records import (
    PartCollected,
    collection_rate,
    records_of_commits,
    store_address,
)
from gaitforge.flows.runners.registry import find_runner
from gaitforge.flows.settings import override, with_named
from gaitforge.flows.stages.derive import add_by_plan
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.overlay import OverlayPlan
from gaitforge.flows.tasks.registry import collection_plan
from gaitforge.pipeline.cli.parsing.parser import CELL_FIELDS, command, flag, given, option, setting
from gaitforge.pipeline.cli.parsing.runners import RUNNER, runner_settings
from gaitforge.pipeline.cli.parsing.values import names, numbers
from gaitforge.pipeline.cli.running import show_submitted
from gaitforge.pipeline.progress import TerminalReporter
from gaitforge.pipeline.tables import fields_of, show_one, show_result


@command(
    "gaitforge collect data/legged.zarr --preset legged-1m9",
    "store --preset",
    option(
        "--task",
        "your own task, module:Plan, with settings by --set (default: legged robots, to which most "
        "other options belong)",
        metavar="TASK",
    ),
    option("--parts", "only these parts of the plan, e.g. 0-9", numbers),
    "--expert",
    option("--robot", "robots or folders of robots, which parts take in turn", names),
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
    if arguments.task:
        plan = with_named(collection_plan(arguments.task, {}), given(arguments, "seed", "threads"))
        plan = override(plan, arguments.settings)
    else:
        plan = _legged_plan(arguments)
    ids = plan.part_ids()
    if arguments.parts is not None:
        outside = [k for k in arguments.parts if k >= len(ids)]
        if outside:
            raise ValueError(f"the plan has no part {outside[0]}, only parts 0-{len(ids) - 1}")
        ids = [ids[k] for k in arguments.parts]
    records = run_collection(arguments, plan, ids)
    if records is not None:
        show_parts(records, arguments.json)


def _legged_plan(arguments: argparse.Namespace) -> CollectionPlan:
    from gaitforge.collectors.experts.expert import shipped_experts
    from gaitforge.flows.tasks.legged import legged_plan

    top = given(arguments, "expert", "sim", "robots", "threads")
    if arguments.robot:
        top["robot"] = ",".join(map(absolute_robot, arguments.robot))
        if own := shipped_experts(arguments.robot):
            top = {"expert": ",".join(own)} | top
    plan = legged_plan(
        arguments.preset,
        given(arguments, "seed", **CELL_FIELDS),
        top,
        arguments.settings,
        given(arguments, "state", "privileged", "half"),
    )
    turns = given(arguments, "share", "stretch")
    if (turns or arguments.labeller) and not (arguments.policy and arguments.labeller):
        raise ValueError("--labeller goes with --policy, --share and --stretch with both")
    if arguments.policy:
        if arguments.expert:
            raise ValueError("with --policy the expert is the --labeller, not --expert")
        from gaitforge.flows.tasks.legged_policy import (
            driven_by,  # torch, which an expert does not need
        )

        return driven_by(plan, arguments.policy, arguments.labeller or "", **turns)
    return plan


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


_FIELDS = "height_scan, contact_forces, privileged, state, foot_positions"


@command(
    "gaitforge derive data/legged.zarr --field contact_forces",
    "store",
    option("--field", f"what to add: {_FIELDS}, or module:function of the state", required=True),
    option("--name", "the field's name in the store (default: that of --field)"),
    option("--unit", "of the values of a module:function (default: 1)"),
    option("--robot", "a name or path, if not the store's own robot"),
    "--robots --threads",
    *RUNNER,
    "--json",
)
def derive_command(arguments: argparse.Namespace) -> None:
    """Add a field to stored episodes by exact replay.

    Every episode is simulated again and compared with what is stored, bit for bit. Parts and tags
    stay as they are. Finished parts of the field are skipped: the same command again resumes.
    """
    from gaitforge.flows.tasks.derive import DerivePlan

    chosen = given(arguments, "name", "unit", "robot", "robots", "threads")
    _add(DerivePlan(str(store_address(arguments.store)), of=arguments.field, **chosen), arguments)


@command(
    "gaitforge dataset relabel data/legged.zarr --reward my_rewards:energy",
    "store",
    option("--reward", "module:function: fields of an episode -> its rewards", required=True),
    "--threads",
    *RUNNER,
    "--json",
)
def relabel(arguments: argparse.Namespace) -> None:
    """Give the present version a new reward, computed from stored fields; `return` follows."""
    from gaitforge.flows.tasks.relabel import RelabelPlan

    source, chosen = str(store_address(arguments.store)), given(arguments, "threads")
    _add(RelabelPlan(source, reward=arguments.reward, **chosen), arguments)


def _add(plan: OverlayPlan, arguments: argparse.Namespace) -> None:
    runner, settings = find_runner(arguments.runner), runner_settings(arguments)
    made = add_by_plan(plan, runner, TerminalReporter(), settings)
    if not isinstance(made, list):
        show_submitted(made, arguments.json)
        return
    field, info = plan.field, datasets.open_store(plan.source).info()
    record: dict[str, object] = {"field": field.name, "shape": list(field.shape)}
    record |= {"dtype": field.dtype, "unit": field.unit, "description": field.description}
    record |= {"parts": info.parts, "made_now": len(made), "hash": info.hash}
    show_one(record | {"steps_per_s": round(collection_rate(made))}, arguments.json)
