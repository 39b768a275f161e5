"""Collection goes on where it stopped, and ends with the same store."""

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, EXPERTS
from gaitforge.collectors.legged.data import StoredForm, legged_schema
from gaitforge.collectors.legged.observations import POLICY_SLICES, PRIVILEGED_SLICES
from gaitforge.collectors.robots.robot import DEFAULT_ROBOT, load_robot
from gaitforge.collectors.timing import EPISODE_STEPS
from gaitforge.common.machine import usable_cores
from gaitforge.datasets import Store, open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import PartCollected, collection_rate, part_records
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.flows.making import COLLECT, GRID, Counting, Interrupting, Stop

WHOLE = GRID.parts * GRID.episodes_per_part * EPISODE_STEPS


@pytest.fixture(scope="module")
def complete(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """The plan's store, collected without interruption."""
    path = tmp_path_factory.mktemp("complete") / "legged.zarr"
    counting = Counting()
    records = collect(COLLECT, path, counting)
    assert sorted(record.part for record in records) == COLLECT.part_ids()
    assert counting.units["collect"] == open_store(path).info().steps <= WHOLE
    return open_store(path)


def test_the_store_holds_the_whole_plan_without_fault(complete: Store) -> None:
    info = complete.info()
    assert (info.parts, info.episodes) == (3, 24)
    assert complete.parts() == COLLECT.part_ids()
    assert complete.verify() == []


def test_every_part_is_recorded_with_its_times(complete: Store) -> None:
    records = part_records(complete.path, COLLECT.part_ids())
    assert [record.part for record in records] == COLLECT.part_ids()
    assert sum(record.steps for record in records) == complete.info().steps
    assert all(record.started < record.ended - record.write_s < record.ended for record in records)
    assert collection_rate(records) > 0


# In the second case the parts are in work in two processes: both have to stop.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("threads", "error", "share"), [(1, KeyboardInterrupt, 0.6), (2, Stop, 0.25)]
)
def test_an_interrupted_collection_goes_on_and_ends_the_same(
    complete: Store,
    tmp_path: Path,
    threads: int,
    error: type[BaseException],
    share: float,
) -> None:
    plan, path = replace(COLLECT, threads=threads), tmp_path / "legged.zarr"
    with pytest.raises(error):
        collect(plan, path, Interrupting(after=int(share * WHOLE), error=error))
    left = open_store(path)
    assert left.verify() == []
    kept = left.parts()
    assert threads > 1 or len(kept) == 1
    assert left.gc() == [], "an interrupted writer leaves nothing behind"

    counting = Counting()
    records = collect(plan, path, counting)
    assert sorted(record.part for record in records) == [
        part for part in plan.part_ids() if part not in kept
    ]
    assert counting.units["collect"] == sum(record.steps for record in records)
    assert open_store(path).info().hash == complete.info().hash
    assert open_store(path).verify() == []


def test_a_complete_collection_is_no_work(complete: Store) -> None:
    counting = Counting()
    assert collect(COLLECT, complete.path, counting) == []
    assert counting.units == {"collect": 0}


@pytest.mark.slow
def test_threads_and_the_choice_of_parts_change_nothing(complete: Store, tmp_path: Path) -> None:
    plan = replace(COLLECT, threads=4)  # two processes of two threads each
    assert plan.part_ids() == COLLECT.part_ids()
    chosen = plan.part_ids()[:2]
    assert [each.part for each in collect(plan, tmp_path / "two.zarr", Silent(), chosen)] == chosen
    two = open_store(tmp_path / "two.zarr")
    assert two.parts() == chosen
    for part in chosen:
        assert two.catalog().manifests[part] == complete.catalog().manifests[part]


def test_two_plans_share_a_store_without_a_clash(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    small = replace(COLLECT, grid=replace(GRID, parts=1, episodes_per_part=4))
    other = replace(small, grid=replace(small.grid, seed=7))
    assert not set(small.part_ids()) & set(other.part_ids())
    for plan in (small, other):
        collect(plan, path, Silent())
    store = open_store(path)
    assert store.info().episodes == 8
    assert store.verify() == []
    episodes = store.select().episodes()
    assert len(set(episodes.column("episode").to_pylist())) == 8
    assert len(set(episodes.column("seed").to_pylist())) == 8


def test_a_longer_plan_goes_on_from_a_shorter_one() -> None:
    longer = replace(COLLECT, grid=replace(GRID, parts=9))
    assert longer.part_ids()[:3] == COLLECT.part_ids()
    for changes in ({"seed": 1}, {"episodes_per_part": 9}, {"levels": (3,)}):
        other = replace(COLLECT, grid=replace(GRID, **changes))
        assert not set(other.part_ids()) & set(longer.part_ids()), changes


def test_another_expert_makes_other_parts(tmp_path: Path) -> None:
    for suffix in (".safetensors", ".json"):
        shutil.copy(EXPERTS / f"{DEFAULT_EXPERT}{suffix}", tmp_path / f"mine{suffix}")
    mine = tmp_path / "mine.safetensors"
    assert replace(COLLECT, expert=str(mine)).part_ids() == COLLECT.part_ids(), "same weights"
    weights = load_file(mine)
    save_file({**weights, "mean": weights["mean"] + 1.0}, mine)
    assert not set(replace(COLLECT, expert=str(mine)).part_ids()) & set(COLLECT.part_ids())


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"sim": "ode"}, "unknown simulator 'ode'; allowed: mujoco"),
        ({"robots": 0}, "robots must be 1 to 100,000, got 0"),
        ({"threads": -1}, "threads must be 0 to 512, got -1"),
    ],
)
def test_an_impossible_plan_is_refused(changes: dict, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        LeggedPlan(**changes)


@pytest.mark.parametrize(
    ("limit", "workers"), [("3", 3), ("4,2", 4), ("", usable_cores()), ("many", usable_cores())]
)
def test_a_plan_has_a_worker_a_core_unless_told(
    limit: str, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", limit)
    assert LeggedPlan().workers == workers
    assert LeggedPlan(threads=7).workers == 7
    assert LeggedPlan() == LeggedPlan(threads=0), "the same plan on every machine"
    monkeypatch.delattr(os, "sched_getaffinity")  # as on macOS
    assert usable_cores() == os.cpu_count()


def test_an_unknown_expert_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    with pytest.raises(ValueError, match="no expert 'nobody'"):
        collect(replace(COLLECT, expert="nobody"), path, Silent())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.raises(ValueError, match="give a path in a folder that can be written") as refusal:
        collect(COLLECT, tmp_path / "file" / "legged.zarr", Silent())
    assert "\n" not in str(refusal.value)


def record(started: float, ended: float, steps: int) -> PartCollected:
    return PartCollected("p", 1, steps, 1, started, 0.1, ended)


def test_the_rate_counts_time_in_which_parts_overlap_once_and_pauses_not_at_all() -> None:
    assert collection_rate([]) == 0.0
    assert collection_rate([record(0, 10, 100)]) == pytest.approx(10)
    assert collection_rate([record(0, 10, 100), record(5, 20, 100)]) == pytest.approx(10)
    assert collection_rate([record(0, 10, 100), record(2, 8, 100)]) == pytest.approx(20)
    assert collection_rate([record(100, 110, 100), record(0, 10, 100)]) == pytest.approx(10)


def test_a_store_keeps_the_fields_that_its_form_asks_for(tmp_path: Path) -> None:
    grid = replace(GRID, parts=1, episodes_per_part=4)
    rich = replace(COLLECT, grid=grid, form=StoredForm(state=True, privileged=True))
    collect(rich, tmp_path / "rich.zarr", Silent())
    store = open_store(tmp_path / "rich.zarr")
    always = {"obs", "action", "reward"}
    assert set(store.schema.names("step")) == always | {"state", "privileged"}
    assert set(legged_schema(load_robot(DEFAULT_ROBOT)).names("step")) == always
    start, stop = PRIVILEGED_SLICES["joint_vel"]
    seen = store.select().episode(0)
    noise = seen["privileged"][:, start:stop] - seen["obs"][:, slice(*POLICY_SLICES["joint_vel"])]
    assert 0 < np.abs(noise).max() <= 1.5 + 1e-4, "the expert sees joint speeds without noise"


def test_half_floats_are_the_same_episodes_rounded_and_cannot_replay(tmp_path: Path) -> None:
    grid = replace(GRID, parts=1, episodes_per_part=4)
    for name, form in (("full", StoredForm()), ("half", StoredForm(half=True))):
        collect(replace(COLLECT, grid=grid, form=form), tmp_path / f"{name}.zarr", Silent())
    full = open_store(tmp_path / "full.zarr").select().episode(2)
    half = open_store(tmp_path / "half.zarr").select().episode(2)
    np.testing.assert_array_equal(full["obs"].astype(np.float16), half["obs"])
    np.testing.assert_array_equal(full["reward"], half["reward"])
    with pytest.raises(ValueError, match="half floats"):
        replay(tmp_path / "half.zarr", 2, 0, Silent())


def test_a_saved_selection_trains_on_the_same_episodes_after_more_were_added(
    tmp_path: Path,
) -> None:
    path, saved = tmp_path / "legged.zarr", tmp_path / "runs.json"
    collect(COLLECT, path, Silent(), COLLECT.part_ids()[:1])
    chosen = open_store(path).select(skill="run")
    chosen.save(saved)
    collect(COLLECT, path, Silent(), COLLECT.part_ids()[1:2])
    again = SelectPlan(saved=str(saved)).select(path)
    assert again.hash == chosen.hash
    assert len(SelectPlan(skill=("run",)).select(path)) > len(again)
    with pytest.raises(ValueError, match="saved selection"):
        SelectPlan(skill=("run",), saved=str(saved)).select(path)
