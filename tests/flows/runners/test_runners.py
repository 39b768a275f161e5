"""The ways to run a collection, and the one part that they all come down to."""

from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.common.interrupts import Interrupted
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import (
    part_records,
    plan_records,
    read_active,
    records_folder,
)
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.stages.collect import Retry, collect, collect_part, prepare
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.flows.making import COLLECT, GRID, Counting, Interrupting, Stop
from tests.flows.processes import read_log

PLAN = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4), threads=1)


def test_a_collection_leaves_its_plan(tmp_path: Path) -> None:
    records = collect(PLAN, tmp_path / "legged.zarr", Silent(), PLAN.part_ids()[:1])
    assert [record.part for record in records] == PLAN.part_ids()[:1]
    [known] = plan_records(tmp_path / "legged.zarr")
    assert known["parts"] == PLAN.part_ids()
    assert plan_from_tree(LeggedPlan, known["plan"]) == PLAN


@pytest.mark.slow
def test_parts_made_one_by_one_are_those_of_a_collection(tmp_path: Path) -> None:
    collect(PLAN, tmp_path / "whole.zarr", Silent())
    path, steps = tmp_path / "single.zarr", 0

    def advance(n: int, note: str) -> None:
        nonlocal steps
        steps += n

    prepared = prepare(PLAN, path)
    parts = prepared.parts
    assert parts == prepared.missing == PLAN.part_ids()
    records = [collect_part(PLAN, path, part, advance) for part in parts]
    assert prepare(PLAN, path).missing == []
    assert steps == sum(record.steps for record in records)
    assert records == part_records(path, parts)
    assert open_store(path).info().hash == open_store(tmp_path / "whole.zarr").info().hash
    assert [collect_part(PLAN, path, part, advance) for part in parts] == records
    assert steps == sum(record.steps for record in records), "nothing was simulated again"


def test_a_record_that_was_lost_is_made_from_the_commit(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    collect(PLAN, path, Silent())
    part = PLAN.part_ids()[0]
    [before] = part_records(path, [part])
    (records_folder(path) / f"{part}.json").unlink()
    again = collect_part(PLAN, path, part)
    assert (again.part, again.episodes, again.steps, again.bytes) == (
        before.part,
        before.episodes,
        before.steps,
        before.bytes,
    )
    assert again.started == again.ended == pytest.approx(before.ended, abs=5)
    assert part_records(path, [part]) == [again]


def test_a_part_of_another_plan_or_without_a_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no store at"):
        collect_part(PLAN, tmp_path / "absent.zarr", PLAN.part_ids()[0])
    prepare(PLAN, tmp_path / "legged.zarr")
    other = replace(PLAN, grid=replace(PLAN.grid, seed=1)).part_ids()[0]
    with pytest.raises(ValueError, match=f"part {other} is not one of the plan's 2"):
        collect_part(PLAN, tmp_path / "legged.zarr", other)


def test_a_passing_fault_costs_an_attempt_and_the_part_is_made(tmp_path: Path) -> None:
    path, part = tmp_path / "legged.zarr", PLAN.part_ids()[0]
    prepare(PLAN, path)
    failures, steps = [2], 0

    def advance(n: int, note: str) -> None:
        nonlocal steps
        steps += n
        if n > 0 and failures[0]:
            failures[0] -= 1
            raise OSError("the network went away")

    record = collect_part(PLAN, path, part, advance, retry=Retry(3, 0.01))
    assert steps == record.steps, "what failed attempts had made was taken back"
    assert len(list((records_folder(path) / "failed").iterdir())) == 2
    assert read_active(records_folder(path)) == []

    failures[0] = 3
    with pytest.raises(OSError, match="network went away"):
        collect_part(PLAN, path, PLAN.part_ids()[1], advance, retry=Retry(3, 0.01))
    assert open_store(path).parts() == [part]


@pytest.mark.parametrize(
    ("call", "begun"), [(0, False), (1, True), (2, True)], ids=["before", "built", "at work"]
)
def test_who_is_told_to_stop_commits_nothing_and_can_work_on(
    tmp_path: Path, call: int, begun: bool
) -> None:
    path, part = tmp_path / "legged.zarr", PLAN.part_ids()[0]
    prepare(PLAN, path)
    calls = 0

    def stop(n: int, note: str) -> None:
        nonlocal calls
        if calls == call:
            raise Interrupted
        calls += 1

    with pytest.raises(Interrupted):
        collect_part(PLAN, path, part, stop)
    assert open_store(path).parts() == []
    events = [line["event"] for line in read_log(records_folder(path))]
    assert ("part started" in events) == begun, "else there is no heartbeat either"
    assert not (records_folder(path) / "failed").exists()
    assert collect_part(PLAN, path, part).part == part


@pytest.mark.slow
def test_a_local_run_that_is_stopped_leaves_no_heartbeat(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    with pytest.raises(Stop):
        collect(replace(PLAN, threads=2), path, Interrupting(after=50))
    assert read_active(records_folder(path)) == []
    counting = Counting()
    collect(PLAN, path, counting)
    assert open_store(path).parts() == PLAN.part_ids()


@pytest.mark.parametrize(
    ("tree", "complaint"),
    [
        ({"grid": 3}, "needs an object of named values, not 3"),
        ({"robots": "many"}, "robots needs int, not 'many'"),
        ({"robotz": 3}, "has no 'robotz'"),
        ({"threads": -1}, "threads must be 0 to 512, got -1"),
        ("text", "needs an object of named values"),
    ],
)
def test_a_tree_that_is_no_plan_is_refused(tree: object, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        plan_from_tree(LeggedPlan, tree)


def test_a_plan_survives_its_json() -> None:
    assert plan_from_tree(LeggedPlan, to_tree(COLLECT)) == COLLECT
