"""Collection on Dask's workers: the same dataset, also when workers and clients are killed."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from distributed import Client, default_client

from gaitforge.common.interrupts import Interrupted
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import part_records, read_active, records_folder
from gaitforge.flows.runners.dask import run_dask, run_parts, until_cancelled
from gaitforge.flows.runners.dask_clusters import CONFIG, DaskSettings, dask_client
from gaitforge.flows.stages.collect import collect, collect_part, prepare
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.pipeline.cli.main import main
from tests.flows.making import COLLECT, GRID, Counting, Interrupting
from tests.flows.processes import (
    committed,
    descendants,
    gaitforge,
    is_running,
    listening,
    part_in_work,
    read_log,
    soon,
    wait_for_json,
)

pytestmark = pytest.mark.slow

PLAN = replace(COLLECT, grid=replace(GRID, parts=4))
LOOPBACK = {"0100007F", "00000000000000000000000001000000"}


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Hash of the plan's dataset, collected without interruption in this process."""
    path = tmp_path_factory.mktemp("local") / "legged.zarr"
    collect(PLAN, path, Silent())
    return open_store(path).info().hash


def assert_whole(path: Path, expected: str) -> None:
    """Every part is there once, and nothing is left over."""
    store = open_store(path)
    assert store.parts() == PLAN.part_ids()
    assert store.verify() == []
    assert store.gc() == []
    assert store.info().hash == expected
    assert [record.part for record in part_records(path, PLAN.part_ids())] == PLAN.part_ids()


def test_workers_make_the_dataset_that_one_process_makes(
    scheduler: DaskSettings, tmp_path: Path, expected: str
) -> None:
    path, counting = tmp_path / "legged.zarr", Counting()
    records = run_dask(PLAN, path, counting, None, scheduler)
    assert sorted(record.part for record in records) == PLAN.part_ids()
    assert counting.units["collect"] == sum(record.steps for record in records)
    assert_whole(path, expected)
    assert read_active(records_folder(path)) == []
    log = read_log(records_folder(path))
    makers = {line["pid"] for line in log if line["event"] == "part committed"}
    assert os.getpid() not in makers
    assert len(makers) == 2
    assert run_dask(PLAN, path, Silent(), None, scheduler) == [], "nothing is left to make"


def test_a_killed_workers_part_is_made_by_another(
    scheduler: DaskSettings, tmp_path: Path, expected: str
) -> None:
    path = tmp_path / "legged.zarr"
    killed: list[int] = []

    def kill() -> None:
        beat = soon(part_in_work(path))
        os.kill(beat.pid, signal.SIGKILL)
        killed.append(beat.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    records = run_dask(PLAN, path, Silent(), None, scheduler)
    killer.join()
    assert not is_running(killed[0])
    assert sorted(record.part for record in records) == PLAN.part_ids()
    assert_whole(path, expected)
    commits = [x["part"] for x in read_log(records_folder(path)) if x["event"] == "part committed"]
    assert len(commits) == len(set(commits)), "no part was committed twice"


def test_an_interrupt_stops_the_workers_and_leaves_no_torn_part(
    scheduler: DaskSettings, tmp_path: Path
) -> None:
    path = tmp_path / "legged.zarr"
    long = replace(PLAN, grid=replace(GRID, parts=100))
    with pytest.raises(KeyboardInterrupt):
        run_dask(long, path, Interrupting(after=1, error=KeyboardInterrupt), None, scheduler)
    done = len(open_store(path).parts())
    with dask_client(scheduler) as client:
        soon(lambda: not _any(client, _works), limit_s=120)
    store = open_store(path)
    assert done <= len(store.parts()) <= done + 2, "no more than what was being written then"
    assert store.verify() == []
    assert store.gc() == []
    assert read_active(records_folder(path)) == []
    run_dask(PLAN, path, Silent(), None, scheduler)
    assert open_store(path).missing(PLAN.part_ids()) == []


def _any(client: Client, asked: Callable[..., bool], *arguments: object) -> bool:
    """Whether it is so on any worker."""
    answers: Any = client.run(asked, *arguments)
    return any(answers.values())


def _works(dask_worker: Any) -> bool:
    """Whether a worker runs a task, a cancelled one too."""
    return bool(dask_worker.state.all_running_tasks)


def test_a_cancelled_task_stops_at_its_next_look(scheduler: DaskSettings, tmp_path: Path) -> None:
    waiting, cancelled, stopped = (tmp_path / name for name in ("waiting", "cancelled", "stopped"))

    def work() -> None:
        advance = until_cancelled()
        advance(0, "")
        waiting.touch()
        soon(cancelled.exists)
        try:
            advance(0, "")
        except Interrupted:
            stopped.touch()

    with dask_client(scheduler) as client:
        future = client.submit(work, pure=False)
        soon(waiting.exists)
        future.cancel(force=True)
        soon(lambda: _any(client, _is_cancelled, future.key))
        cancelled.touch()
        soon(lambda: not _any(client, _works))
    assert stopped.exists()


def _is_cancelled(key: str, dask_worker: Any) -> bool:
    task = dask_worker.state.tasks.get(key)
    return task is not None and task.state == "cancelled"


def test_two_processes_at_one_part_commit_it_once(scheduler: DaskSettings, tmp_path: Path) -> None:
    path, part = tmp_path / "legged.zarr", PLAN.part_ids()[0]
    prepare(PLAN, path)
    with dask_client(scheduler) as client:
        client.wait_for_workers(2)
        workers: Any = client.scheduler_info()["workers"]
        both = [client.submit(collect_part, PLAN, path, part, workers=[w]) for w in workers]
        first, second = (future.result() for future in both)
    store = open_store(path)
    assert store.parts() == [part]
    assert store.verify() == []
    assert store.gc() == []
    assert (first.steps, first.bytes) == (second.steps, second.bytes)
    assert collect_part(PLAN, path, part) in (first, second), "it is not made a third time"


def test_a_part_that_fails_ends_the_run_with_its_one_line(
    scheduler: DaskSettings, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"part abcdef-00000 is not one of the plan's 4") as line:
        run_dask(PLAN, tmp_path / "legged.zarr", Silent(), ["abcdef-00000"], scheduler)
    assert "\n" not in str(line.value)


def test_a_scheduler_without_workers_and_one_that_dies_are_one_line_each(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = tmp_path / "scheduler.json"
    words = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    scheduler = subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_scheduler", *words, "--scheduler-file", where],
        stderr=subprocess.DEVNULL,
    )
    try:
        settings = DaskSettings(scheduler=wait_for_json(where)["address"])
        with dask_client(settings) as client:
            told = capsys.readouterr().err
            assert told.startswith("no Dask worker yet; waiting until the scheduler at tcp://")
            assert told.count("\n") == 1
            killer = threading.Timer(0.5, scheduler.kill)
            killer.start()
            with pytest.raises(ValueError, match="scheduler went away") as line:
                run_parts(client, str, ["nobody makes it"], lambda records: None)
        assert "\n" not in str(line.value)
    finally:
        scheduler.kill()
        scheduler.wait()


@pytest.mark.slow
def test_a_part_that_kills_every_worker_is_given_up(tmp_path: Path) -> None:
    deadly = "__import__('os')._exit(1)"
    with (
        dask_client(DaskSettings(workers=1)) as client,
        pytest.raises(ValueError, match="the worker that made it died 4 times") as line,
    ):
        run_parts(client, eval, [deadly], lambda records: None)
    assert "\n" not in str(line.value)


@pytest.mark.slow
def test_a_worker_that_dies_in_its_restart_is_replaced_and_so_is_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(CONFIG, "distributed.deploy.lost-worker-timeout", "1s")
    with dask_client(DaskSettings(workers=1)) as client:
        before = descendants(os.getpid())

        def started() -> int:
            [pid] = soon(lambda: [p for p in descendants(os.getpid()) if p not in before])
            before.append(pid)
            return pid

        workers: Any = client.run(os.getpid)
        [first] = workers.values()
        os.kill(first, signal.SIGKILL)
        restarting = started()
        os.kill(restarting, signal.SIGSTOP)
        cluster: Any = client.cluster
        soon(lambda: not cluster.workers, limit_s=60)
        os.kill(restarting, signal.SIGKILL)
        os.kill(started(), signal.SIGKILL)
        assert client.submit(abs, -1).result(timeout=60) == 1


def test_statistics_are_computed_by_the_workers_and_are_the_same(
    scheduler: DaskSettings, tmp_path: Path
) -> None:
    path = tmp_path / "legged.zarr"
    collect(replace(PLAN, grid=replace(GRID, parts=1)), path, Silent())
    selection = open_store(path).select()
    here = selection.statistics("obs", "synchronous")
    with dask_client(scheduler) as client:
        there = selection.statistics("obs")
        stories: Any = client.run(_tasks_done)
    assert sum(stories.values()) > 0, "the workers did it"
    assert (here.mean == there.mean).all()
    assert (here.squares == there.squares).all()


def _tasks_done(dask_worker: Any) -> int:
    """Statistics' tasks that a worker has run."""
    return sum("_measure_unit" in str(event) for event in dask_worker.state.log)


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        (
            DaskSettings(scheduler="tcp://127.0.0.1:9"),
            "no Dask scheduler answers at tcp://127.0.0.1:9",
        ),
        (DaskSettings(scheduler="nonsense://here"), "no Dask scheduler answers at nonsense://here"),
        (DaskSettings(scheduler="here"), "no Dask scheduler answers at here: missing port number"),
    ],
)
def test_what_cannot_be_reached_is_one_line_within_seconds(
    settings: DaskSettings, complaint: str, tmp_path: Path
) -> None:
    started = time.monotonic()
    with pytest.raises(ValueError, match=complaint) as line:
        run_dask(PLAN, tmp_path / "legged.zarr", Silent(), None, settings)
    assert time.monotonic() - started < 15
    assert "\n" not in str(line.value)
    with pytest.raises(ValueError, match="No clients found"):
        default_client()  # for which whatever Dask computes next would wait


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"workers": -1}, "-1 workers"),
        ({"scheduler": "tcp://x:1", "jobqueue": "slurm"}, "not both"),
        ({"jobqueue": "pbs"}, "unknown job queue 'pbs'; allowed: slurm"),
        ({"memory": "much"}, "memory looks like 4GB or 500MB, not 'much'"),
        ({"scheduler": "tcp://x:1", "adaptive": True}, "are its own, not adaptive"),
        ({"walltime_min": 5}, "too short for workers that leave 5 min before"),
    ],
)
def test_impossible_settings_are_refused(settings: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        DaskSettings(**settings)


@pytest.mark.parametrize(
    ("settings", "package"),
    [(DaskSettings(dashboard=True), "bokeh"), (DaskSettings(jobqueue="slurm"), "dask_jobqueue")],
)
def test_an_extra_that_is_missing_is_named(
    settings: DaskSettings, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    missing = pytest.raises(ValueError, match=r"not installed: run \.venv/bin/python")
    with missing, dask_client(settings):
        pass


@pytest.mark.slow
def test_adaptive_workers_come_and_go_have_a_memory_limit_and_a_dashboard(
    tmp_path: Path,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("gaitforge.flows.runners.dask_clusters.DASHBOARD_PORT", 0)
    settings = DaskSettings(workers=2, adaptive=True, dashboard=True, memory="2GB")
    store = tmp_path / "legged.zarr"
    collection = prepare(PLAN, store)
    with dask_client(settings) as client:
        assert client.ncores() == {}
        address = capsys.readouterr().err.removeprefix("Dask's page: ").strip()
        assert httpx.get(address, timeout=120.0).status_code == 200
        run_parts(
            client,
            lambda part: collect_part(PLAN, store, part),
            collection.missing,
            lambda records: None,
        )
        limits = {each["memory_limit"] for each in client.scheduler_info()["workers"].values()}
        assert limits == {2_000_000_000}
        soon(lambda: client.ncores() == {})
    assert_whole(store, expected)


@pytest.mark.slow
def test_a_worker_beyond_its_memory_is_an_error_and_no_wait_for_ever() -> None:
    greedy = "[b'x' * 10**9, __import__('time').sleep(60)]"
    with (
        dask_client(DaskSettings(workers=1, memory="500MB")) as client,
        pytest.raises(ValueError, match=r"see (its host's|the hosts') memory"),
    ):
        run_parts(client, eval, [greedy], lambda records: None, deaths=2)


def options_of(plan: LeggedPlan) -> list[str]:
    """The command line's options for a plan of the tests."""
    grid = plan.grid
    sizes = {"parts": grid.parts, "episodes_per_part": grid.episodes_per_part}
    words = [word for name, n in sizes.items() for word in ("--set", f"grid.{name}={n}")]
    words += ["--terrain", ",".join(grid.terrains), "--skill", ",".join(grid.skills)]
    return [*words, "--level", "2", "--robots", str(plan.robots)]


@pytest.mark.slow
def test_a_killed_client_takes_its_workers_along_and_the_next_one_makes_the_rest(
    scheduler: DaskSettings, tmp_path: Path, expected: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "legged.zarr"
    arguments = ["collect", str(path), *options_of(PLAN), "--runner", "dask"]
    first = gaitforge(*arguments, "--workers", "2")
    soon(lambda: committed(path), limit_s=120)
    soon(part_in_work(path))
    ports = listening(first.pid)
    workers = descendants(first.pid)
    first.kill()
    first.wait()
    assert ports, "the scheduler listens"
    assert ports <= LOOPBACK, "and nowhere beyond loopback"
    soon(lambda: not any(map(is_running, workers)), limit_s=60)
    kept = open_store(path).parts()
    assert 0 < len(kept) < len(PLAN.part_ids())
    assert open_store(path).verify() == []

    assert main([*arguments, "--scheduler", scheduler.scheduler]) == 0
    out = capfd.readouterr().out
    assert all(part in out for part in PLAN.part_ids())
    open_store(path).gc()  # what the killed ones had in work
    assert_whole(path, expected)
