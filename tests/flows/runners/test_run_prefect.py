"""Collection under Prefect, with a real server on loopback."""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock
from urllib.parse import urlsplit

import pytest
from prefect import flow
from prefect.logging.handlers import APILogHandler

from gaitforge.collectors.rendering.rendering import RenderingError
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.part_records import PartCollected, read_active, records_folder
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree, write_record
from gaitforge.flows.runners.artifacts import artifact_key
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.prefect_stages import (
    collect_part,
    collect_parts,
    describe_collected,
    run_as_flow,
)
from gaitforge.flows.runners.slurm.jobs import jobs_folder
from gaitforge.flows.stages import collect as stage
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.stages.stage import collection_stage
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.pipeline.cli.deployments import FLOWS
from gaitforge.pipeline.cli.main import main
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.pipeline.serve.prefect_server import prefect_api, server_log
from tests.datasets.making import store_of_many_parts
from tests.flows.making import (
    COLLECT,
    GRID,
    LEAN,
    Counting,
    Interrupting,
    Results,
    results,
    unplotted,
)
from tests.flows.making import Stop as Interrupt
from tests.flows.prefect_runs import Server
from tests.flows.processes import descendants, gaitforge, part_in_work, soon

pytestmark = pytest.mark.slow

PLAN = replace(COLLECT, grid=replace(GRID, parts=3, episodes_per_part=4), threads=2)
TINY = ["--terrain", "flat", "--skill", "run", "--level", "1"]
MANY = 320
DESCRIBE = "describe what was collected"
"""The task after those of the parts."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server, which the flows of this process report to."""
    with prefect_api(port=0) as url:
        yield Server(url)
        APILogHandler().flush()  # else this process ends a minute late: it tries to send the rest


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The hash of the plan's dataset, collected without Prefect."""
    store = tmp_path_factory.mktemp("plain") / "legged.zarr"
    collect(PLAN, store, Silent())
    return open_store(store).info().hash


def run_prefect(
    plan: Any,
    store: Path,
    reporter: Reporter,
    parts: list[str] | None = None,
    dask: DaskSettings | None = None,
) -> list[PartCollected]:
    """What `gaitforge collect --runner prefect` does."""
    stage = collection_stage("collect", plan, store, parts)
    return run_as_flow("collect", jobs_folder(store), [stage], reporter, dask)


def last_run(server: Server, name: str) -> str:
    [run] = [r for r in server.runs("collect") if r["name"] == f"collect {name}"][:1]
    return run["id"]


def soon_done(server: Server, run: str, names: set[str]) -> None:
    """The server hears of tasks as events, a moment after they ended."""

    def look() -> bool:
        found = server.tasks(run)
        found.pop(DESCRIBE, None)
        return found == dict.fromkeys(names, "COMPLETED")

    soon(look)


def test_a_part_is_a_task_and_what_is_there_is_left(
    server: Server, plain: str, tmp_path: Path
) -> None:
    store, counting = tmp_path / "parts.zarr", Counting()
    first = PLAN.part_ids()[0]
    run_prefect(PLAN, store, Silent(), [first])
    soon_done(server, last_run(server, "parts.zarr"), {f"collect {first}"})

    rest = run_prefect(PLAN, store, counting)
    assert sorted(record.part for record in rest) == PLAN.part_ids()[1:]
    assert counting.units["collect"] == sum(record.steps for record in rest)
    run = last_run(server, "parts.zarr")
    soon_done(server, run, {f"collect {part}" for part in PLAN.part_ids()[1:]})
    assert server.artifacts(run)["collect"]["data"] == 100.0
    assert open_store(store).info().hash == plain

    assert run_prefect(PLAN, store, Silent()) == []
    assert server.tasks(last_run(server, "parts.zarr")) == {}


def test_parts_are_made_by_dask_workers_that_know_nothing_of_prefect(
    server: Server, plain: str, tmp_path: Path
) -> None:
    store = tmp_path / "dask.zarr"
    records = run_prefect(PLAN, store, Silent(), None, DaskSettings(workers=1))
    assert sorted(record.part for record in records) == PLAN.part_ids()
    assert open_store(store).info().hash == plain
    names = {f"collect {part}" for part in PLAN.part_ids()}
    soon_done(server, last_run(server, "dask.zarr"), names)


def test_plans_and_flows_select_thousands_of_parts(tmp_path: Path) -> None:
    path = tmp_path / "s"
    names = [f"2b5deb-{number:05d}" for number in range(3000)]
    store_of_many_parts(path, names)
    plan = SelectPlan(skill=("run",), where="length = 2", parts=tuple(names[1:]))
    assert plan_from_tree(SelectPlan, to_tree(plan)) == plan
    chosen = plan.select(path)
    assert chosen.hash == open_store(path).select(skill="run", part=names[1:]).hash
    assert describe_collected.fn(path, names) == open_store(path).select().describe()
    with pytest.raises(ValueError, match="no part 2b5deb-1 in"):
        replace(plan, parts=("2b5deb-1",)).select(path)


def test_an_interrupted_run_commits_whole_parts_and_goes_on(
    server: Server, plain: str, tmp_path: Path
) -> None:
    store = tmp_path / "stopped.zarr"
    with pytest.raises(Interrupt):
        run_prefect(PLAN, store, Interrupting(after=1))
    assert read_active(records_folder(store)) == []
    assert open_store(store).verify() == []
    run_prefect(PLAN, store, Silent())
    assert open_store(store).info().hash == plain


def test_transient_errors_are_retried_and_others_are_not(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    attempts: list[str] = []
    busy, wrong, _ = PLAN.part_ids()
    collected = stage.collect_part

    def make(plan: Any, store: Any, part: str, *rest: Any) -> PartCollected:
        attempts.append(part)
        if part == wrong:
            raise ValueError("no such thing")
        if attempts.count(part) < 3:
            raise OSError("the disk was busy")
        return collected(plan, store, part, *rest)

    monkeypatch.setattr(stage, "collect_part", make)
    monkeypatch.setattr(collect_part, "retry_delay_seconds", 0.01)
    store = tmp_path / "tried.zarr"
    assert [record.part for record in run_prefect(PLAN, store, Silent(), [busy])] == [busy]
    assert attempts == [busy] * 3
    with pytest.raises(ValueError, match="no such thing"):
        run_prefect(PLAN, store, Silent(), [wrong])
    assert attempts.count(wrong) == 1


def test_320_tasks_in_one_run_are_all_recorded(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plan = replace(PLAN, grid=replace(PLAN.grid, parts=MANY), threads=16)

    def make(plan: Any, store: Any, part: str, *rest: Any) -> PartCollected:
        return PartCollected(part, 1, 1, 1, 0.0, 0.0, 1.0)

    @flow
    def many() -> list[PartCollected]:
        return collect_parts(plan, tmp_path / "many.zarr", Silent())

    monkeypatch.setattr(stage, "collect_part", make)
    started = time.monotonic()
    assert sorted(record.part for record in many()) == plan.part_ids()
    took = time.monotonic() - started
    [run] = server.runs("many")
    soon_done(server, run["id"], {f"collect {name}" for name in plan.part_ids()})
    assert run["state_type"] == "COMPLETED"
    assert "locked" not in server_log(urlsplit(server.url).port or 0).read_text()
    print(f"{MANY} tasks in {took:.1f} s")


@pytest.mark.long
def test_an_experiments_flow_gives_the_results_of_the_plain_one_and_runs_each_stage_once(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lean_results: Results
) -> None:
    def cannot_draw(*_: Any) -> None:
        raise RenderingError("pictures are the report's own tests'")

    monkeypatch.setattr("gaitforge.pipeline.report.pictures.draw", cannot_draw)
    out, plan = tmp_path / "flow", tmp_path / "plan.json"
    write_record(plan, to_tree(LEAN))
    run = partial(FLOWS["run"], what=str(plan), out=str(out))
    monkeypatch.setattr(stage, "collect_part", Mock(side_effect=ValueError("no such luck")))
    with pytest.raises(ValueError, match="collect: no such luck"):
        run()
    monkeypatch.undo()
    monkeypatch.setattr("gaitforge.pipeline.report.pictures.draw", cannot_draw)
    with unplotted():
        run()
    assert (out / "report.html").is_file()
    assert results(out) == lean_results
    stages = [run["name"] for run in reversed(server.runs("stage"))]
    assert stages == ["collect", *(each.name for each in stages_of(LEAN, out))]
    assert [run["state_type"] for run in server.runs("run")] == ["COMPLETED", "FAILED"]
    run()
    assert len(server.runs("stage")) == len(stages)


def test_a_killed_flow_process_loses_the_parts_in_work_alone(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    store = tmp_path / "killed.zarr"
    words = command(store, parts=4)
    process = gaitforge(*words)
    soon(part_in_work(store))
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert open_store(store).verify() == []
    assert_completes(words, store, parts=4, capfd=capfd)


@pytest.mark.long
def test_a_killed_server_is_one_line_and_the_command_goes_on(
    server: Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_CLIENT_MAX_RETRIES", "1")
    store = tmp_path / "alone.zarr"
    words = command(store, parts=2)
    process = gaitforge(*words)
    soon(part_in_work(store))
    [own] = [k for k in descendants(process.pid) if is_server(k)]
    os.kill(own, signal.SIGKILL)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 2
    [line] = [line for line in said.splitlines() if "gaitforge: error:" in line]
    assert "was lost" in line
    assert_completes(words, store, parts=2, capfd=capfd)


def test_one_flow_at_a_time_collects_into_a_store(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", server.url)
    store = tmp_path / "both.zarr"
    first, second = (gaitforge(*command(store, parts=3)) for _ in range(2))
    said = [process.communicate(timeout=240) for process in (first, second)]
    assert [first.returncode, second.returncode] == [0, 0], said
    assert sum("another run collects into" in "".join(each) for each in said) == 1
    tasks = [server.tasks(run["id"]) for run in server.runs("collect")[:2]]
    assert sorted(map(len, tasks)) == [0, 3 + len([DESCRIBE])]
    assert open_store(store).verify() == []


def command(store: Path, parts: int) -> list[str | Path]:
    """A collection under Prefect whose parts take a second or more."""
    sizes = ["--set", f"grid.parts={parts}", "--set", "grid.episodes_per_part=60"]
    return ["collect", store, "--runner", "prefect", *TINY, *sizes]


def is_server(pid: int) -> bool:
    return b"prefect.server" in Path(f"/proc/{pid}/cmdline").read_bytes()


def assert_completes(
    words: list[str | Path], store: Path, parts: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same command, in this process, makes the rest; every part is there once, whole."""
    capfd.readouterr()
    code = main([str(word) for word in words])
    out, said = capfd.readouterr()
    assert code == 0, said
    opened = open_store(store)
    assert len(opened.parts()) == parts
    assert opened.verify() == []
    assert len(list((store / "catalog").glob("*.parquet"))) == parts
    assert all(part in out for part in opened.parts())


def test_keys_of_artifacts_are_what_the_server_takes() -> None:
    assert artifact_key("evaluate fcnet_rc (v2)") == "evaluate-fcnet-rc-v2"
