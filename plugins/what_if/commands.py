"""`gaitforge derive`, `counterfactual` and `dataset relabel`: stored episodes, and what if."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge import datasets
from gaitforge.flows.records.part_records import PartCollected, collection_rate, store_address
from gaitforge.flows.runners.slurm.jobs import jobs_folder
from gaitforge.flows.settings import override
from gaitforge.pipeline.cli.collect import collection_work, part_rows
from gaitforge.pipeline.cli.parsing.options import (
    JSON,
    MIX_VERSIONS,
    RANDOMISATION,
    ROBOTS,
    SIMULATOR_VERSION,
    STORE,
    THREADS,
    WHERE,
    WITH_RECORDED_VERSIONS,
    needs,
    option,
    option_values,
    setting,
)
from gaitforge.pipeline.cli.work import CommandWork, Result, work

if TYPE_CHECKING:
    from gaitforge.plugins.what_if.added_fields import OverlayPlan

_FIELDS = "height_scan, contact_forces, privileged, state, foot_positions"


@work(
    "gaitforge derive data/legged.zarr --field contact_forces",
    STORE,
    option("--field", f"what to add: {_FIELDS}, or module:function of the state", required=True),
    option("--name", "the field's name in the store (default: that of --field)"),
    option("--unit", "of the values of a module:function (default: 1)"),
    option("--robot", "a name or path, if not the store's own robot"),
    ROBOTS,
    THREADS,
    WITH_RECORDED_VERSIONS,
    SIMULATOR_VERSION,
    JSON,
    needs("sim"),
    alone=True,
)
def derive_command(arguments: argparse.Namespace) -> CommandWork:
    """Add a field to stored episodes by exact replay.

    Every episode is simulated again and compared with what is stored, bit for bit. Parts and tags
    stay as they are. Finished parts of the field are skipped: the same command again resumes.
    """
    from gaitforge.plugins.what_if.added_fields import DerivePlan, parts_of_version

    values = option_values(arguments, "name", "robot", "robots", "threads")
    if ":" in arguments.field:
        values |= option_values(arguments, "unit")
    address = str(store_address(arguments.store))
    plan = DerivePlan(address, of=arguments.field, **values)
    version = arguments.simulator_version
    if arguments.with_recorded_versions:
        version = _derive_elsewhere(arguments)
    if not version:
        return _added_field(plan, arguments)
    return _added_field(plan, arguments, parts_of_version(plan.episodes(), version))


def _derive_elsewhere(arguments: argparse.Namespace) -> str:
    """Make the parts of the other recorded versions with these; returns the one for here."""
    from gaitforge.flows.stages.recorded_versions import run_recorded

    store = datasets.open_store(arguments.store)
    here, runs = run_recorded(store, arguments.words, arguments.simulator_version)
    if failed := [run for run in runs if run.code]:
        raise SystemExit(failed[0].code)  # it has said why
    if not here:
        print(runs[-1].output, end="")
        raise SystemExit(0)
    return here


@work(
    "gaitforge counterfactual legged.zarr --where \"skill = 'run'\" "
    "--set randomisation.friction=0.2 --out ice.zarr",
    STORE,
    option("--out", "store of the new episodes", store_address, metavar="STORE", required=True),
    WHERE,
    option("--actions", "stored: the recorded actions, whatever happens"),
    option("--policy", "drives in place of the one that drove: a run's folder, or module:Class"),
    RANDOMISATION,
    THREADS,
    setting("randomisation.friction=0.2"),
    MIX_VERSIONS,
    JSON,
    needs("sim"),
    alone=True,
)
def counterfactual_command(arguments: argparse.Namespace) -> CommandWork:
    """Simulate stored episodes again with one thing changed.

    Seeds, starts, commands, noise and pushes stay. gaitforge query OUT --paired compares.
    """
    from gaitforge.plugins.what_if.counterfactual import CounterfactualPlan

    if arguments.policy and Path(arguments.policy).is_dir():
        arguments.policy = str(Path(arguments.policy).absolute())
    values = option_values(arguments, "where", "actions", "policy", "threads")
    plan = CounterfactualPlan(str(store_address(arguments.store)), **values)
    plan = override(plan, arguments.settings)
    arguments.store = arguments.out
    return collection_work(arguments, plan, part_rows)


@work(
    "gaitforge dataset relabel data/legged.zarr --reward my_rewards:energy",
    STORE,
    option("--reward", "module:function: fields of an episode -> its rewards", required=True),
    THREADS,
    JSON,
    needs("sim"),
)
def relabel(arguments: argparse.Namespace) -> CommandWork:
    """Give the present version a new reward, computed from stored fields; `return` follows."""
    from gaitforge.plugins.what_if.added_fields import RelabelPlan

    source = str(store_address(arguments.store))
    values = option_values(arguments, "threads")
    return _added_field(RelabelPlan(source, reward=arguments.reward, **values), arguments)


def _added_field(
    plan: "OverlayPlan", arguments: argparse.Namespace, parts: Sequence[str] | None = None
) -> CommandWork:
    """Make the missing ones of a field's parts (None: all); the last adds it to its store."""
    from gaitforge.flows.stages.stage import collection_stage

    plan.schema()  # raises where the field cannot be added

    def result(collected: list[PartCollected] | None) -> Result:
        field = plan.field
        info = datasets.open_store(plan.source).info()
        record: dict[str, object] = {"field": field.name, "shape": list(field.shape)}
        record |= {"dtype": field.dtype, "unit": field.unit, "description": field.description}
        record |= {"parts": info.parts, "made_now": len(collected or ()), "hash": info.hash}
        return Result(record | {"steps_per_s": round(collection_rate(collected or []))})

    stage = collection_stage(plan.kind, plan, plan.address, parts)
    return CommandWork(jobs_folder(plan.address), [stage], result, arguments.words)
