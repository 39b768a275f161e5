"""The status of collections and training runs, from the files they leave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.common.locks import ProcessIdentity
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import (
    STALE_S,
    Heartbeat,
    PartActivity,
    collection_rate,
    part_records,
    read_active,
    records_folder,
)
from gaitforge.flows.stages.collect import collect, prepare
from gaitforge.flows.stages.status import (
    QUIET_S,
    CollectionStatus,
    TrainingStatus,
    as_tree,
    collection_status,
    has_begun,
    status,
    training_status,
)
from tests.flows.making import COLLECT, GRID, Interrupting, Stop
from tests.flows.processes import ROOT, committed, is_running, soon

PLAN = replace(COLLECT, grid=replace(GRID, parts=3, episodes_per_part=4), threads=1)
FULL = PLAN.expected_steps()[PLAN.part_ids()[0]]


ELSEWHERE = ProcessIdentity("elsewhere", 1, "another kernel", 1)


def begin(
    store: Path,
    part: str,
    steps: int = 0,
    process: ProcessIdentity | None = None,
    age_s: float = 0.0,
) -> None:
    """Leave a heartbeat as another process would have."""
    beat = Heartbeat(part, process or ProcessIdentity.of_this(), 4.0, steps, FULL)
    path = records_folder(store) / "active" / f"{part}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(beat.to_tree()))
    age(path, age_s)


@pytest.fixture(scope="module")
def one_part(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the first of the plan's three parts."""
    path = tmp_path_factory.mktemp("one") / "legged.zarr"
    collect(PLAN, path, Silent(), PLAN.part_ids()[:1])
    return path


@pytest.fixture
def store(one_part: Path, tmp_path: Path) -> Path:
    """A copy of it to change."""
    shutil.copytree(one_part, tmp_path / "legged.zarr")
    shutil.copytree(records_folder(one_part), records_folder(tmp_path / "legged.zarr"))
    return tmp_path / "legged.zarr"


def test_a_store_that_nobody_works_on_is_stopped_until_it_is_complete(store: Path) -> None:
    found = collection_status(store)
    info = open_store(store).info()
    assert (found.state, found.planned, found.done, found.missing) == ("stopped", 3, 1, 2)
    assert (found.steps, found.episodes, found.bytes) == (
        info.steps,
        info.episodes,
        info.bytes,
    )
    assert found.steps_per_s == pytest.approx(collection_rate(part_records(store, PLAN.part_ids())))
    assert found.remaining_s is None
    assert found.remaining_steps == pytest.approx(2 * info.steps, abs=1)
    collect(PLAN, store, Silent())
    found = collection_status(store)
    assert (found.state, found.done, found.missing, found.remaining_steps) == ("complete", 3, 0, 0)


def test_parts_in_work_are_shown_and_counted(store: Path) -> None:
    _, second, third = PLAN.part_ids()
    begin(store, second, steps=400)
    begin(store, third, steps=200, process=ELSEWHERE)
    found = collection_status(store)
    assert found.state == "working"
    assert [part.part for part in found.active] == [second, third]
    assert not any(part.stale for part in found.active)
    assert found.working_steps_per_s == pytest.approx(150)
    full = found.steps / FULL
    assert found.remaining_steps == pytest.approx((2 * FULL - 600) * full, abs=1)
    assert found.remaining_s == pytest.approx(found.remaining_steps / 150, rel=0.01)


def test_a_dead_processes_part_is_stale_and_does_not_count_as_work(store: Path) -> None:
    _, second, third = PLAN.part_ids()
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    begin(
        store, second, steps=400, process=replace(ProcessIdentity.of_this(), pid=int(gone.stdout))
    )
    begin(store, third, process=ELSEWHERE, age_s=STALE_S + 5)
    found = collection_status(store)
    assert (found.state, [part.stale for part in found.active]) == ("stopped", [True, True])
    assert found.active[1].heartbeat_age_s == pytest.approx(STALE_S + 5, abs=2)
    assert found.remaining_steps == pytest.approx(2 * found.steps, abs=1)
    collect(PLAN, store, Silent())
    assert collection_status(store).active == (), "who makes a part takes its heartbeat over"


def test_a_part_that_was_committed_is_not_in_work_whatever_its_heartbeat(store: Path) -> None:
    begin(store, PLAN.part_ids()[0], steps=400)
    assert collection_status(store).active == ()
    assert collection_status(store).state == "stopped"


def test_failures_are_shown_and_mended_by_a_commit(store: Path) -> None:
    first, second, _ = PLAN.part_ids()
    for part in (first, second, second):
        with pytest.raises(OSError, match="full"), PartActivity(records_folder(store), part, FULL):
            raise OSError("the disk is full")
    found = {part.part: part for part in collection_status(store).failed}
    assert found[first].made_since
    assert not found[second].made_since
    assert (found[second].failures, found[second].error) == (2, "OSError: the disk is full")


def test_several_plans_count_together(store: Path) -> None:
    other = replace(PLAN, grid=replace(PLAN.grid, seed=5, parts=2))
    prepare(other, store)
    prepare(replace(PLAN, threads=2), store)
    assert collection_status(store).planned == 5
    for path in records_folder(store).glob("plan-*.json"):
        path.unlink()
    found = collection_status(store)
    assert (found.planned, found.done, found.other, found.state) == (0, 0, 1, "complete")


def working(store: Path) -> CollectionStatus | None:
    """The status, if somebody works on the store now."""
    found = collection_status(store)
    return found if found.state == "working" else None


WORKER = """
import sys
from pathlib import Path
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.progress import Silent
from tests.flows.test_status import PLAN
from dataclasses import replace
collect(replace(PLAN, grid=replace(PLAN.grid, parts=60)), Path(sys.argv[1]), Silent())
"""


@pytest.mark.slow
def test_the_status_of_another_process_while_it_works_and_when_it_was_killed(
    tmp_path: Path,
) -> None:
    path = tmp_path / "legged.zarr"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, str(path)], cwd=ROOT, env=os.environ | {"PYTHONPATH": "."}
    )
    try:
        soon(lambda: committed(path))
        found = soon(lambda: working(path))
        assert found.active[0].pid == worker.pid
        assert found.planned == 60
        assert found.done >= 1
    finally:
        worker.send_signal(signal.SIGKILL)
        worker.wait()
    assert not is_running(worker.pid)
    found = collection_status(path)
    assert found.state == "stopped"
    assert all(part.stale for part in found.active)
    assert len(found.active) == len(
        [b for b in read_active(records_folder(path)) if b.part not in open_store(path).parts()]
    )


def test_an_interrupted_collection_is_stopped_at_once(tmp_path: Path) -> None:
    path = tmp_path / "legged.zarr"
    with pytest.raises(Stop):
        collect(PLAN, path, Interrupting(after=100))
    found = collection_status(path)
    assert (found.state, found.active, found.done) == ("stopped", (), 0)
    assert found.remaining_steps == 3 * FULL, "no part is known yet that ended early"


@pytest.mark.slow
def test_a_remote_stores_status_is_found_beside_its_mirror(url: str) -> None:
    collect(PLAN, url, Silent(), PLAN.part_ids()[:2])
    found = status(url)
    tree = as_tree(found)
    assert (tree["kind"], tree["state"], tree["done"], tree["planned"]) == (
        "store",
        "stopped",
        2,
        3,
    )


def write_run(run: Path, step: int, finished: bool = False, age_s: float = 0.0) -> None:
    """A training run's files, as they stand after some steps."""
    run.mkdir(exist_ok=True)
    config = {"train_config": {"model": "fcnet", "steps": 100}}
    (run / "config.json").write_text(json.dumps(config))
    rows = [
        {
            "step": s,
            "loss": 1.0 / s,
            "validation_loss": 2.0 / s if s == 10 else None,
            "lr": 0.1,
            "steps_per_s": 1000.0,
            "elapsed_s": 0.5 * s,
        }
        for s in range(10, step + 1, 10)
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + ('{"step": ' if step else "")
    (run / "history.jsonl").write_text(text)
    if finished:
        done = {"step": 100, "train_s": 50.0, "loss": 0.01, "validation_loss": 0.02}
        (run / "checkpoint.json").write_text(json.dumps({"finished": True, "progress": done}))
    for path in run.iterdir():
        age(path, age_s)


def age(path: Path, seconds: float) -> None:
    """Make a file look as if it was written that long ago."""
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_training_run_goes_from_empty_to_complete(tmp_path: Path) -> None:
    run = tmp_path / "run"
    write_run(run, 0)
    assert training_status(run).step == 0
    write_run(run, 40)
    found = training_status(run)
    assert (found.state, found.model, found.step, found.steps) == ("working", "fcnet", 40, 100)
    assert (found.loss, found.validation_loss) == (pytest.approx(1 / 40), pytest.approx(0.2))
    assert found.elapsed_s == 20
    assert found.remaining_s == pytest.approx(30)
    assert found.metrics == {"lr": 0.1}
    write_run(run, 40, age_s=QUIET_S + 10)
    found = training_status(run)
    assert (found.state, found.remaining_s) == ("stopped", None)
    assert found.quiet_s == pytest.approx(QUIET_S + 10, abs=5)
    write_run(run, 90, finished=True, age_s=QUIET_S + 10)
    found = training_status(run)
    assert (found.state, found.step, found.elapsed_s) == ("complete", 100, 50.0)


def test_a_run_that_has_only_its_plan_or_jobs_is_empty(tmp_path: Path) -> None:
    (tmp_path / "waiting" / "jobs").mkdir(parents=True)
    assert status(tmp_path / "waiting").state == "empty"
    (tmp_path / "plan.json").write_text('{"plan": {"config": {"model": "bot", "steps": 9}}}')
    found = status(tmp_path)
    assert isinstance(found, TrainingStatus)
    assert (found.state, found.model, found.step, found.steps) == ("empty", "bot", 0, 9)
    assert not has_begun(tmp_path)


def test_a_run_that_was_stopped_by_a_signal_is_stopped_at_once_until_it_goes_on(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    write_run(run, 40)
    progress = {"step": 40, "train_s": 20.0}
    saved = {"finished": False, "stopped": True, "progress": progress}
    (run / "checkpoint.json").write_text(json.dumps(saved))
    assert training_status(run).state == "stopped"
    age(run / "checkpoint.json", 5.0)
    age(run / "config.json", 1.0)
    assert training_status(run).state == "working"


def test_a_slow_run_is_not_taken_for_a_stopped_one(tmp_path: Path) -> None:
    write_run(tmp_path / "run", 20, age_s=100)
    history = tmp_path / "run" / "history.jsonl"
    history.write_text(history.read_text().replace('"elapsed_s": 10.0', '"elapsed_s": 100.0'))
    age(history, 100)
    assert training_status(tmp_path / "run").state == "working", "it writes every 50 s"


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing is at"):
        status(tmp_path / "absent")
    with pytest.raises(ValueError, match="neither a store") as line:
        status(tmp_path)
    assert "\n" not in str(line.value)


def test_looking_needs_neither_a_simulator_nor_a_network() -> None:
    code = (
        "import sys, gaitforge.pipeline.cli.status; print({'torch', 'mujoco'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                          env=os.environ | {"PYTHONPATH": "."}, check=True)  # fmt: skip
    assert done.stdout.strip() == "set()"
