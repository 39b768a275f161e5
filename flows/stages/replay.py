"""Replay: stored episodes simulated again and compared bit for bit.

Legged episodes are repeated one by one from their seeds and stored actions. Of the other tasks
whole parts are rolled out again, policy included, by the plan beside the store.
"""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np

from gaitforge.common.errors import amount
from gaitforge.common.trust import naming
from gaitforge.datasets import Selection, Store, open_store
from gaitforge.datasets.edits.cutting import pieces_of
from gaitforge.datasets.schema import TERRAIN_AND_SKILL
from gaitforge.flows.progress import Reporter, no_progress
from gaitforge.flows.records.part_records import PlanRecord, plan_records
from gaitforge.flows.stages.legged.replay import ReplayFault, replay_legged, whole_episodes
from gaitforge.flows.tasks.interface import CollectionPlan, PartData
from gaitforge.flows.tasks.registry import LEGGED, LEGGED_POLICY, recorded_plan


def replay(
    store_path: Path | str,
    count: int,
    seed: int,
    reporter: Reporter,
    robot: str = "",
    version: str = "",
) -> list[ReplayFault]:
    """Simulate random episodes of a store again and compare every step.

    Args:
        count: episodes (at least: whole parts, unless they are legged).
        seed: which episodes; robot: of a legged store, a name or path; empty for the store's own.
        version: only those of the sample that this version of the simulator made.

    Raises:
        ValueError: no store, or one that was made by another version or robot, by a simulator that
            does not repeat itself bit for bit, or by policies that are gone.
    """
    store = open_store(store_path)
    if any(field.dtype == "float16" for field in store.schema.fields):
        raise ValueError(f"{store_path} holds half floats, which no replay can equal bit for bit")
    collected = store.as_collected()
    plans, parts = _parts_with_plans(store, collected, reporter)
    if not parts:
        return replay_legged(collected, count, seed, reporter, robot, version)
    if version:
        matching = store.as_collected().select(simulator_version=version).episodes("part")
        parts = sorted(set(parts).intersection(matching.column("part").to_pylist()))
    faults: list[ReplayFault] = []
    with reporter.step("replay", min(count, len(store.as_collected())), "episode") as advance:
        for part in np.random.default_rng(seed).permutation(parts).tolist():
            if count <= 0:
                break
            with naming(store_path):
                episodes, different = _made_again(recorded_plan(plans[part]), store, part)
            faults += different
            advance(min(count, episodes), "")
            count -= episodes
    return faults


def _parts_with_plans(
    store: Store, collected: Selection, reporter: Reporter
) -> tuple[dict[str, PlanRecord], list[str]]:
    """The plans beside the store by part, and the parts that can be rolled out again by them.

    None are needed for legged episodes. ValueError if a store of another task has none.
    """
    store_path = store.address
    plans = {
        part: record
        for record in plan_records(store.full_address)
        if record["kind"] not in (LEGGED, LEGGED_POLICY, "counterfactual")
        for part in record["parts"]
    }
    pieces = pieces_of(collected)
    cut_parts = set(
        collected.with_rows(collected.rows[pieces]).episodes("part")["part"].to_pylist()
    )
    parts = sorted(plans.keys() - set(store.missing(list(plans))) - cut_parts)
    if not parts and store.schema.group_by != TERRAIN_AND_SKILL:
        whole_episodes(collected, reporter)
        if cut_parts:
            raise ValueError(
                f"every part of {store_path} holds pieces of episodes that were cut, and no whole "
                "part can be simulated again; verify the store that was cut"
            )
        raise ValueError(
            f"{store_path} has no collection plan beside it, which a replay needs; a store of "
            "gym collect gets it by the same command again"
        )
    if parts and cut_parts & plans.keys():
        reporter.say(f"left out: {amount(len(cut_parts), 'part')} with pieces of cut episodes")
    return plans, parts


def difference_of(plan: CollectionPlan, store: Store, part: str) -> str:
    """How a plan's part, made again here, differs from the stored one; empty if it does not.

    Raises:
        ValueError: the part is not the plan's any more, as after a change of the policy's code.
    """
    _, faults = _made_again(plan, store, part)
    return faults[0].what if faults else ""


def _made_again(plan: CollectionPlan, store: Store, part: str) -> tuple[int, list[ReplayFault]]:
    """The episodes of a part that is made again, and how they differ from the stored ones."""
    plan.listed_with(part)
    with closing(plan.simulate()) as simulation:
        data = simulation.roll_out(part, store.schema, no_progress)
    return len(data.catalog["episode"]), list(_differences(store, part, data))


def _differences(store: Store, part: str, data: PartData) -> Iterator[ReplayFault]:
    """A fault for each episode that did not repeat; ValueError for another simulator version.

    Episodes are compared in the part's order: older versions gave some other ids.
    """
    selection = store.as_collected().of_parts([part])
    table = selection.episodes()
    first = 0
    for i, episode in enumerate(map(int, data.catalog["episode"])):
        last = first + int(data.catalog["length"][i])
        if i >= len(selection):
            yield ReplayFault(part, episode, "is not in the store")
        else:
            row = table.slice(i, 1).to_pylist()[0]
            again = data.catalog
            if row["simulator_version"] != (version := again["simulator_version"][i]):
                raise ValueError(
                    f"{store.path} was made by {row['simulator']} {row['simulator_version']}; "
                    f"version {version} cannot repeat it bit for bit"
                )
            steps = {name: values[first:last] for name, values in data.steps.items()}
            steps |= {name: values[i] for name, values in data.per_episode.items()}
            compared = (row.keys() & again.keys()) - {"episode"}
            columns = {name: again[name][i] for name in compared}
            if difference := _difference(selection.episode(i), row, steps, columns):
                yield ReplayFault(part, int(row["episode"]), difference)
        first = last
    for row in table.slice(len(data.catalog["episode"])).to_pylist():
        yield ReplayFault(part, int(row["episode"]), "is not made again")


def _difference(
    stored: dict[str, np.ndarray],
    row: dict[str, object],
    steps: dict[str, np.ndarray],
    columns: dict[str, object],
) -> str:
    """The first field or column that differs; empty if none does."""
    for name, value in columns.items():
        if row[name] != value and not (row[name] != row[name] and value != value):  # both NaN
            return f"{name} is {value}, not {row[name]} as stored"
    for name, unrounded in steps.items():
        values = unrounded.astype(stored[name].dtype)  # as a part is written
        if not np.array_equal(values, stored[name]):
            apart = np.flatnonzero((values != stored[name]).reshape(len(values), -1).any(axis=1))
            return f"{name} of step {apart[0]} differs from the stored one"
    return ""
