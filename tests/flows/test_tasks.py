"""Every task by the one engine: runners, status, job folders and replay."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
from gaitforge.datasets import create_store, open_store
from gaitforge.flows.progress import Silent, no_progress
from gaitforge.flows.records.part_records import plan_records, records_folder
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.runners.dask import run_dask
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.slurm.jobs import work_sha256
from gaitforge.flows.runners.slurm.runner import run_slurm, run_task
from gaitforge.flows.runners.slurm.script import SlurmSettings
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.replay import replay
from gaitforge.flows.stages.status import collection_status
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.legged_evaluation import driven_by
from gaitforge.flows.tasks.registry import TASKS, collection_plan, recorded_plan
from tests.flows.making import COLLECT, GRID, small_run

pytestmark = pytest.mark.slow

Made = tuple[CollectionPlan, Path]


@pytest.fixture(scope="module", name="legged-policy")
def legged_policy(tmp_path_factory: pytest.TempPathFactory) -> CollectionPlan:
    small = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4))
    run = small_run(tmp_path_factory.mktemp("run"))
    return driven_by(small, str(run), DEFAULT_EXPERT, share=0.5)


@pytest.fixture(scope="module", params=list(TASKS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A small plan of the task, and its store, collected in this process."""
    plan = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4))
    if request.param != "legged":
        plan = request.getfixturevalue(request.param)
    store = tmp_path_factory.mktemp(request.param) / "data.zarr"
    collect(plan.with_workers(1), store, Silent())
    return plan, store


def dataset_hash(store: Path) -> str:
    return open_store(store).info().hash


def as_a_slurm_job(plan: CollectionPlan, store: Path) -> None:
    """The job's folder as a submission leaves it, and its tasks run by hand."""
    assert "array=0-" in str(run_slurm(plan, store, Silent(), None, SlurmSettings(dry_run=True)))
    tasks = [[part] for part in plan.part_ids()]
    job = {"kind": "collect", "task": plan.kind, "target": str(store), "store": str(store)}
    job |= {"plan": to_tree(plan), "tasks": tasks}
    write_record(store.parent / "job" / "plan.json", job)
    for task in range(len(tasks)):
        run_task(store.parent / "job", task, Silent(), work_sha256(job))


def test_parts_of_another_version_are_refused_before_anything_is_simulated(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, store = made
    told = plan.simulator()
    assert told is not None
    columns = ("simulator", "simulator_version")
    [row] = open_store(store).as_collected().describe(columns)
    assert told == tuple(row[name] for name in columns), "as its parts record it"
    first, *_ = plan.part_ids()
    collect(plan.with_workers(1), tmp_path / "s.zarr", Silent(), [first])
    monkeypatch.setattr(type(plan), "simulator", lambda self: (told[0], "9"))
    monkeypatch.setattr(type(plan), "simulate", lambda self, threads: pytest.fail("simulated"))
    with pytest.raises(ValueError, match=r"and this is .*9: .*or give --mix-versions"):
        collect(plan.with_workers(1), tmp_path / "s.zarr", Silent())
    assert open_store(tmp_path / "s.zarr").parts() == [first]


def test_dasks_workers_make_the_same_dataset(
    made: Made, scheduler: DaskSettings, tmp_path: Path
) -> None:
    plan, store = made
    run_dask(plan, tmp_path / "data.zarr", Silent(), None, scheduler)
    assert dataset_hash(tmp_path / "data.zarr") == dataset_hash(store)


def test_local_workers_make_the_same_dataset(made: Made, tmp_path: Path) -> None:
    plan, store = made
    collect(plan.with_workers(2), tmp_path / "data.zarr", Silent())
    assert dataset_hash(tmp_path / "data.zarr") == dataset_hash(store)


def test_a_slurm_job_makes_the_same_dataset(made: Made, tmp_path: Path) -> None:
    plan, store = made
    as_a_slurm_job(plan, tmp_path / "data.zarr")
    assert dataset_hash(tmp_path / "data.zarr") == dataset_hash(store)


def test_the_plan_beside_the_store_names_its_task_and_gives_the_status(
    made: Made, tmp_path: Path
) -> None:
    plan, store = made
    [record] = plan_records(store)
    assert recorded_plan(record).with_workers(1) == plan.with_workers(1)
    assert record["kind"] == plan.kind
    first, *others = plan.part_ids()
    collect(plan, tmp_path / "data.zarr", Silent(), [first])
    found = collection_status(tmp_path / "data.zarr")
    assert (found.done, found.missing, found.state) == (1, len(others), "stopped")
    assert found.remaining_steps > 0


def test_a_store_replays_bit_for_bit_also_when_it_was_compacted(made: Made) -> None:
    _, store = made
    assert replay(store, 100, 0, Silent()) == []
    open_store(store).compact()
    assert replay(store, 3, 1, Silent()) == []


@pytest.mark.parametrize("field", ["obs", "final_obs", "return"])
def test_a_changed_number_is_found_and_named(made: Made, tmp_path: Path, field: str) -> None:
    plan, store = made
    if plan.kind in TASKS:
        pytest.skip("see test_replay")
    part, schema = plan.part_ids()[0], open_store(store).schema
    with closing(plan.simulate()) as simulation:
        data = simulation.roll_out(part, schema, no_progress)
    catalog = {name: list(values) for name, values in data.catalog.items()}
    arrays = {name: np.array(values) for name, values in (data.steps | data.per_episode).items()}
    if field == "return":
        catalog["return"][0] = np.nextafter(catalog["return"][0], 9.0)
    else:
        arrays[field][0, 3] = np.nextafter(arrays[field][0, 3], np.float32(9))
    copy = create_store(tmp_path / "copy.zarr", schema)
    steps, last = ({name: arrays[name] for name in schema.names(k)} for k in ("step", "episode"))
    copy.write_part(part, steps, catalog, last)
    write_record(records_folder(copy.path) / "plan-1.json", plan_records(store)[0])
    [fault] = replay(copy.path, 1, 0, Silent())
    assert f"part {part}: episode {int(catalog['episode'][0])}: {field} " in str(fault)


def test_what_is_no_task_is_refused() -> None:
    with pytest.raises(ValueError, match=r"unknown task 'drone'; allowed: legged, legged-policy"):
        collection_plan("drone", {})
