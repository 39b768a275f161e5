"""Replay: stored episodes simulated again, compared bit for bit or with their originals in pairs.

`replay` compares bit for bit. Legged episodes are repeated one by one from their seeds, stored
draws and stored actions (`replay_legged`). Of the other tasks whole parts are rolled out again,
policy included, by the plan beside the store.

`paired` gives the differences between episodes that were simulated again and their originals.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.collectors.legged.replaying import (
    by_robot,
    replay_environment,
    replayed,
    simulator_of_selection,
    stored_episodes,
)
from gaitforge.common.errors import amount
from gaitforge.common.trust import naming
from gaitforge.datasets import Selection, Store, open_store
from gaitforge.datasets.edits.split import pieces_of
from gaitforge.datasets.schema import TERRAIN_AND_SKILL
from gaitforge.flows.intervals import mean_interval
from gaitforge.flows.progress import Reporter, no_progress
from gaitforge.flows.records.part_records import PlanRecord, plan_records
from gaitforge.flows.tasks.interface import CollectionPlan, PartData
from gaitforge.flows.tasks.registry import LEGGED, LEGGED_POLICY, recorded_plan

# Replay of legged episodes.
ROBOTS = 64


@dataclass(frozen=True)
class ReplayFault:
    """An episode that did not repeat, and the first field and step that differ."""

    part: str
    episode: int
    what: str

    def __str__(self) -> str:
        return f"part {self.part}: episode {self.episode}: {self.what}"


def whole_episodes(selection: Selection, reporter: Reporter) -> Selection:
    """The selection without pieces of episodes, which is said; ValueError if nothing is left."""
    pieces = pieces_of(selection)
    if not pieces.any():
        return selection
    count = amount(int(pieces.sum()), "piece")
    why = "of episodes that were cut, which cannot be simulated again"
    if pieces.all():
        raise ValueError(f"{selection.store.address} holds only {count} {why}")
    reporter.say(f"left out: {count} {why}")
    return selection.with_rows(selection.rows[~pieces])


def replay_legged(
    selection: Selection,
    count: int,
    seed: int,
    reporter: Reporter,
    robot: str = "",
    version: str = "",
) -> list[ReplayFault]:
    """See `gaitforge.flows.stages.replay.replay`."""
    selection = whole_episodes(selection, reporter)
    if not version:
        simulator_of_selection(selection)  # raises for several, whatever the sample has
    count = min(count, len(selection))
    sample = np.sort(np.random.default_rng(seed).choice(len(selection), count, replace=False))
    selection = selection.with_rows(selection.rows[sample])
    if version:
        selection = selection.select(simulator_version=version)
    faults = []
    with reporter.step("replay", selection.steps, "step") as advance:
        for robot_selection in by_robot(selection):
            env = replay_environment(
                robot_selection, min(ROBOTS, max(len(robot_selection), 1)), robot
            )
            with closing(env):
                for first in range(0, len(robot_selection), env.num_robots):
                    rows = robot_selection.rows[first : first + env.num_robots]
                    episodes = stored_episodes(robot_selection.with_rows(rows))
                    for episode, _, text in replayed(env, episodes, None, lambda n: advance(n, "")):
                        if text:
                            part = episode.row["part"]
                            number = episode.row["episode"]
                            faults.append(ReplayFault(part, number, text))
    return sorted(faults, key=lambda fault: (fault.part, fault.episode))


# Replay of any task.
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


# Paired differences between episodes and their originals.
_NEEDED = ("original_return", "original_success", "diverged_at")


def paired(selection: Selection, group_by: Sequence[str] | None = None) -> list[dict[str, Any]]:
    """A row for each group of episodes, and one for all: means of new minus original.

    Half widths of 95 % intervals: `ci95` and `success_ci95` of the mean difference within pairs;
    `unpaired_ci95` of what as many episodes of each kind would tell without pairs.

    Raises:
        ValueError: no store of gaitforge counterfactual, or no episodes.
    """
    columns = selection.catalog.column_names
    if missing := [name for name in _NEEDED if name not in columns]:
        raise ValueError(
            f"{selection.store.address} has no column {missing[0]}: pairs are in the stores that "
            "gaitforge counterfactual makes"
        )
    if not len(selection):
        raise ValueError("no episodes are selected")
    names = list(selection.schema.group_by if group_by is None else group_by)
    table = selection.episodes(*names, *_NEEDED, "return", "success")
    keys = list(zip(*(table[name].to_pylist() for name in names), strict=True)) or [()] * len(table)
    groups: dict[tuple[object, ...], list[int]] = {}
    for row, key in enumerate(keys):
        groups.setdefault(key, []).append(row)
    rows = [
        dict(zip(names, key, strict=True)) | _row(table.take(groups[key]))
        for key in sorted(groups, key=str)
    ]
    if len(groups) > 1:
        rows.append({**dict.fromkeys(names, "all"), **_row(table)})
    return rows


def _row(table: pa.Table) -> dict[str, Any]:
    new, original = (table[name].to_numpy() for name in ("return", "original_return"))
    success, before = (
        table[name].to_numpy(zero_copy_only=False).astype(float)
        for name in ("success", "original_success")
    )
    difference = new - original
    diverged = table["diverged_at"].to_numpy()
    return {
        "episodes": len(table),
        "return": float(new.mean()),
        "original": float(original.mean()),
        "difference": float(difference.mean()),
        "ci95": _half_width(difference),
        "unpaired_ci95": float(np.hypot(_half_width(new), _half_width(original))),
        "success_difference": float((success - before).mean()),
        "success_ci95": _half_width(success - before),
        "diverged": float((diverged >= 0).mean()),
        "diverged_at": float(np.median(diverged[diverged >= 0])) if (diverged >= 0).any() else None,
    }


def _half_width(values: np.ndarray) -> float:
    """Half the width of the 95 % interval of a mean; NaN for one value."""
    low, high = mean_interval(values.tolist()) or (np.nan, np.nan)
    return float(high - low) / 2
