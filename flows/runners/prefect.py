"""Collection and the whole road under Prefect: a part, or a stage, a task.

Parts are made by threads of this process or, with Dask's settings, on a Dask cluster: there each
task waits for its part's Dask task. Workers then talk to Dask alone, need neither Prefect nor a way
to its server, and the cluster keeps its own keys; prefect-dask's runner would have every worker
report to the server.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from prefect import flow
from prefect.task_runners import ThreadPoolTaskRunner

from datasets.storage.s3.bucket import is_bucket_url
from flows.progress import Interrupted, Reporter
from flows.records.following import FollowedParts
from flows.records.part_records import PartCollected, records_folder
from flows.records.records import to_tree
from flows.runners.dask import make_part as make_on_worker
from flows.runners.dask import run_parts
from flows.runners.dask_clusters import DaskSettings, dask_client
from flows.runners.prefect_tasks import (
    ProgressArtifacts,
    make_task,
    prefect_server,
    run_stage,
    show_file,
    show_table,
)
from flows.runners.retrying import Retry
from flows.stages.collect import CollectPlan, collect_part, prepare, steps_at_most
from flows.stages.demo import DemoPlan, run_demo

POLL_S = 1.0
QUEUED_A_WORKER = 2
"""Tasks for every Dask worker: one in work, and one at hand when that is ready."""

Stop = Callable[[], None]
"""Raises `Interrupted` once the work is told to stop."""

MakePart = Callable[[str, Stop], PartCollected]


def run_prefect(
    plan: CollectPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: DaskSettings | None = None,
) -> list[PartCollected]:
    """Collect the parts that the store lacks as one flow run, a part a task.

    The server is the one that PREFECT_API_URL names, or one on loopback for the time of the run.

    Args:
        settings: of a Dask cluster that makes the parts; None for the plan's threads.

    Returns:
        The records of what was collected now.

    Raises:
        ValueError: no server, or what a part's `collect_part` raised.
    """

    @flow(
        name="collect",
        flow_run_name=f"collect into {Path(store_path).name}",
        persist_result=False,
        validate_parameters=False,
    )
    def collect(store: str, plan: Any, parts: list[str] | None) -> list[PartCollected]:
        return work()

    def work() -> list[PartCollected]:
        return collect_in_tasks(plan, store_path, reporter, parts, settings)

    with prefect_server():
        return collect(str(store_path), to_tree(plan), None if parts is None else list(parts))


def collect_in_tasks(
    plan: CollectPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: DaskSettings | None = None,
) -> list[PartCollected]:
    """The body of a collecting flow; arguments, result and errors as `run_prefect`."""
    address = store_path if is_bucket_url(store_path) else Path(store_path).absolute()
    wanted, missing = prepare(plan, address, parts)
    per_part = steps_at_most(plan)
    done = (len(wanted) - len(missing)) * per_part
    shown = ProgressArtifacts(reporter)
    with shown.step("collect", len(wanted) * per_part, "step", done) as advance:
        if not missing:
            return []
        follow = FollowedParts(records_folder(address), set(missing), advance)
        with _makers(plan, address, settings, len(missing)) as (make, at_once):
            return make_in_tasks(make, missing, at_once, follow)


def make_in_tasks(
    make: MakePart,
    parts: Sequence[str],
    at_once: int,
    follow: Callable[[list[PartCollected]], None],
) -> list[PartCollected]:
    """The records of `make(part, stop)` for all parts, in the order in which they are ready.

    A part that fails for good, or an interrupt, stops the others; parts in work commit nothing.

    Args:
        at_once: tasks in work; follow: told about every second of the records that came since.
    """
    told = threading.Event()

    def stop() -> None:
        if told.is_set():
            raise Interrupted

    def make_part(part: str) -> PartCollected:
        return make(part, stop)

    part_task = make_task(make_part, "collect", "collect {part}")
    records: list[PartCollected] = []
    with ThreadPoolTaskRunner(max_workers=at_once) as runner:
        try:
            futures = [runner.submit(part_task, {"part": part}) for part in parts]
            tasks = {future.wrapped_future: future for future in futures}
            waiting = set(tasks)
            while waiting:
                ready, waiting = wait(waiting, POLL_S, FIRST_COMPLETED)
                new = [tasks[future].result() for future in ready]
                records += new
                follow(new)
        except BaseException:
            told.set()
            raise
    return records


@contextmanager
def _makers(
    plan: CollectPlan, address: Path | str, settings: DaskSettings | None, missing: int
) -> Iterator[tuple[MakePart, int]]:
    """Who makes a part, and how many at once."""
    if settings is None:
        workers = max(1, min(plan.threads, missing))
        yield partial(_make_here, plan, address, plan.threads // workers), workers
        return
    with dask_client(settings, missing) as client:
        threads: Any = client.nthreads()
        at_work = max(sum(threads.values()), settings.workers)
        at_once = QUEUED_A_WORKER * (at_work or len(os.sched_getaffinity(0)))

        def make_there(part: str, stop: Stop) -> PartCollected:
            work = partial(make_on_worker, plan, str(address))
            [record] = run_parts(client, work, [part], lambda new: stop())
            return record

        yield make_there, at_once


def _make_here(
    plan: CollectPlan, address: Path | str, threads: int, part: str, stop: Stop
) -> PartCollected:
    # One attempt: further ones are the task's, where they can be seen.
    return collect_part(plan, address, part, lambda n, note: stop(), threads, Retry(attempts=1))


def run_demo_flow(
    plan: DemoPlan, out: Path, reporter: Reporter, finish: Callable[[Reporter], Path]
) -> tuple[dict[str, Any], Path]:
    """`flows.stages.demo.run_demo` as one flow run; see `demo_in_tasks`.

    Raises:
        ValueError: no server, and what the demo raises.
    """

    @flow(
        name="demo",
        flow_run_name=f"demo in {out.name}",
        persist_result=False,
        validate_parameters=False,
    )
    def demo(out: str, plan: Any) -> tuple[dict[str, Any], Path]:
        return work()

    def work() -> tuple[dict[str, Any], Path]:
        return demo_in_tasks(plan, out, reporter, finish)

    with prefect_server():
        return demo(str(out), to_tree(plan))


def demo_in_tasks(
    plan: DemoPlan, out: Path, reporter: Reporter, finish: Callable[[Reporter], Path]
) -> tuple[dict[str, Any], Path]:
    """The body of the demo's flow: every stage a task, and in the collection every part.

    Args:
        finish: the last stage; it returns the report.

    Returns:
        The summary and the report. The run has the policies as a table artifact, and a link to the
        report.
    """
    shown = ProgressArtifacts(reporter)

    def collecting(plan: CollectPlan, store: Path, _: Reporter) -> list[PartCollected]:
        return collect_in_tasks(plan, store, reporter)

    summary = run_demo(plan, out, shown, run_stage, collecting)
    rows = [{"policy": name, **record} for name, record in summary["policies"].items()]
    show_table(f"policies {out.name}", rows, "closed-loop evaluation")
    report = run_stage("report", partial(finish, shown))
    show_file(f"report {out.name}", report, "the report of the run")
    return summary, report
