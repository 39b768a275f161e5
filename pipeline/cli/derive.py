"""`gaitforge derive`, and `gaitforge dataset relabel`: fields that are added to stored episodes."""

import argparse

import datasets
from flows.records.part_records import collection_rate, store_address
from flows.runners.registry import find_runner
from flows.stages.derive import add_by_plan
from flows.tasks.overlay import OverlayPlan
from pipeline.cli.parsing.parser import command, given, option
from pipeline.cli.parsing.runners import RUNNER, runner_settings
from pipeline.cli.running import show_submitted
from pipeline.progress import TerminalReporter
from pipeline.tables import show_one

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
    from flows.tasks.derive import DerivePlan

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
    from flows.tasks.relabel import RelabelPlan

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
