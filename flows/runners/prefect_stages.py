"""Stages in a Prefect run, and Slurm jobs as its task runs.

Each part of a collection is a task, and so is any other stage. On a Dask cluster each Prefect task
waits for a Dask task, so workers need neither Prefect nor its server.

A Slurm job does not need the flow: a flow that waits follows it, and one that is started later with
the same values finds it. Cancelling the flow's run cancels the job; ending its process does not.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect import flow, get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.events import emit_event
from prefect.runtime import task_run
from prefect.states import Running
from prefect.task_runners import ThreadPoolTaskRunner

from gaitforge.common.errors import amount
from gaitforge.common.interrupts import stop_when
from gaitforge.common.machine import usable_cores
from gaitforge.datasets import DatasetError, open_store
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import (
    PartCollected,
    collection_rate,
    records_folder,
    records_of_commits,
    store_address,
)
from gaitforge.flows.records.records import held_lock
from gaitforge.flows.runners.artifacts import (
    NO_SERVER,
    TrainingTable,
    last_name,
    show_markdown,
    show_table,
)
from gaitforge.flows.runners.dask import gather, make_part, run_parts, run_ready
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.flows.runners.prefect import (
    FLOW_OPTIONS,
    SLURM_JOB,
    making,
    retried_task,
    run_from_a_program,
    shown_progress,
)
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.chain import distinct_jobs, live_jobs
from gaitforge.flows.runners.slurm.script import SlurmForm, SlurmSettings
from gaitforge.flows.runners.slurm.submission import submit_stages
from gaitforge.flows.stages import collect as stage_collect
from gaitforge.flows.stages.collect import Retry
from gaitforge.flows.stages.stage import (
    CollectionStage,
    CommandStage,
    Stage,
    at_work,
    left_stages,
    run_stage,
)
from gaitforge.flows.tasks.interface import CollectionPlan

if TYPE_CHECKING:
    from distributed import Client


# Slurm jobs as task runs of a flow.
SITE = "GAITFORGE_SLURM"
"""Environment variable of flows: settings for every job of theirs, the fields of `SlurmSettings` as
JSON. What a form must not choose, such as commands and files, is set here."""

POLL_S = 5.0
MOST_LINES = 20
"""Lines of a job's log that are passed on at a time; the last ones."""

MOST_TASKS = 40
"""Most tasks that the artifact lists of those that did not end well."""


def slurm_settings(form: SlurmForm) -> SlurmSettings:
    """A form's request with the site's settings, which hold where the form keeps its defaults.

    Raises:
        ValueError: the variable `SITE` holds something else.
    """
    usual = asdict(SlurmForm())
    asked = {k: v for k, v in asdict(form).items() if k != "wait" and v != usual[k]}
    try:
        site: dict[str, Any] = json.loads(os.environ.get(SITE, "{}"))
        lists = {name: tuple(value) for name, value in site.items() if isinstance(value, list)}
        return SlurmSettings(**{**site, **lists, **asked})
    except (AttributeError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{SITE} must hold settings of Slurm jobs as JSON: {error}") from None


def follow_jobs(group: Sequence[jobs.Job], wait: bool) -> None:
    """Show jobs as task runs of the calling flow, one after the other, until they have ended.

    Without `wait` they are looked at once.

    Raises:
        ValueError: with `wait`, a job did not succeed.
    """
    for job in group:
        # In this thread, which a cancel interrupts: one of a pool would be waited for.
        _named(job)(job, wait)


def _named(job: jobs.Job) -> Any:
    """The task that follows a job, with its id in the run's name and its folder among the tags."""
    return follow_job.with_options(
        task_run_name=f"{job.kind} job {job.id}", tags=[f"{SLURM_JOB}{job.folder}"]
    )


@task(name="slurm job", cache_policy=NO_CACHE, persist_result=False)
def follow_job(job: jobs.Job, wait: bool) -> None:
    """Show a job's state and the growth of its log; the end of the log becomes an artifact.

    Raises:
        ValueError: with `wait`, the job did not succeed.
    """
    logger = get_run_logger()
    shown = ""
    offset = 0
    done = 0
    log = job.folder / jobs.log_name(0)
    with shown_progress().step(f"{job.kind} job {job.id}", len(job.tasks), "task") as advance:
        while True:
            try:
                tasks = jobs.task_states(job)
            except ValueError as error:  # the controller does not answer; the job goes on
                logger.warning(f"job {job.id}: {error}; asking again")
                time.sleep(POLL_S)
                continue
            state = jobs.job_state(tasks)
            note = _note(tasks)
            if note != shown:
                shown = note
                logger.info(f"job {job.id}: {note}")
                _show_state(state, f"job {job.id}: {note}")
            if not job.is_array:
                lines, offset = jobs.new_lines(log, offset)
                for line in lines[-MOST_LINES:]:
                    logger.info(_last_state(line))
            ended = sum(status.state in jobs.ENDED for status in tasks)
            advance(ended - done, note)
            done = ended
            if ended == len(tasks) or not wait:
                break
            time.sleep(POLL_S)
    last = _show_end(job, tasks)
    if wait and state != "done":
        raise ValueError(f"job {job.id}: {note}; the last line of a log: {last}")


def _note(tasks: Sequence[jobs.TaskStatus]) -> str:
    """A task's state and host, or why it waits; of an array the number of tasks in each state."""
    if len(tasks) == 1:
        [only] = tasks
        where = f" on {only.host}" if only.state == "running" and only.host else ""
        why = f" ({only.why})" if only.state == "waiting" and only.why else ""
        return f"{only.state}{where}{why}"
    states = [status.state for status in tasks]
    names = (*jobs.LIVE, *jobs.ENDED, "unknown")
    return ", ".join(f"{states.count(name)} {name}" for name in names if name in states)


def _show_state(state: str, message: str) -> None:
    """Give the task's run the job's state as its name, e.g. Waiting; its own end overrides it."""
    if state in jobs.LIVE:
        with get_client(sync_client=True) as client, suppress(*NO_SERVER):
            named = Running(name=state.capitalize(), message=message)
            client.set_task_run_state(UUID(task_run.get_id()), named, force=True)


def _show_end(job: jobs.Job, tasks: Sequence[jobs.TaskStatus]) -> str:
    """Show how the tasks ended, and the end of a log; returns its last line."""
    log, lines = jobs.log_end(job, tasks)
    bad = [status for status in tasks if status.state != "done"] or tasks[:1]
    rows = [f"{status.task}: {status.state}, code {status.code}" for status in bad[:MOST_TASKS]]
    text = "\n".join([f"{log}\n", *rows, "", "```", *map(_last_state, lines), "```"])
    title = f"{job.kind} job {job.id}, {amount(len(tasks), 'task')}: the end of a log"
    show_markdown("slurm log", text, title, job.folder)
    return _last_state(lines[-1]) if lines else "none"


def _last_state(line: str) -> str:
    """The last state of a line that a progress bar has rewritten."""
    return line.rpartition("\r")[2]


# Stages in a Prefect run.
QUEUED_A_WORKER = 2
"""Tasks for every Dask worker: one in work, and the next one."""

COLLECTED = "gaitforge.collected"
"""Prefect's event of a run that has collected at least one part."""

LOCK = "collecting.lock"
"""Lock file among a store's records; the flow that collects holds it."""


def run_as_flow(
    name: str,
    out: Path,
    stages: Sequence[Stage],
    reporter: Reporter,
    dask: DaskSettings | None = None,
) -> Any:
    """Do what is left of stages as one run of a flow, for a program.

    The server is the one that PREFECT_API_URL names, or one on loopback for the time of the run.

    Args:
        name: of the flow; out: folder of the stages' records.
        dask: a cluster that does the work; None for this machine.

    Raises:
        ValueError: no server, or what a stage raises.
    """
    target = next((stage.place for stage in reversed(stages) if stage.place), out)

    @flow(name=name, flow_run_name=f"{name} {last_name(str(target))}", **FLOW_OPTIONS)
    def program() -> Any:
        return run_in_flow(out, stages, dask)

    with run_from_a_program(reporter):
        return program()


def run_in_flow(out: Path, stages: Sequence[Stage], dask: DaskSettings | None = None) -> Any:
    """Do what is left of stages in the calling flow; of several, each is a flow of its own.

    Returns:
        What the last stage returns, see `run_stage`.
    """
    undone = left_stages(out, stages)
    left = [stage for stage in stages if not stage.key or stage in undone]
    result = None
    most = None if any(isinstance(stage, CollectionStage) for stage in left) else 1
    cluster = dask_client(dask, most) if dask and left else nullcontext()
    with at_work(out, left), cluster as client:
        for stage in left:
            if len(stages) == 1:
                result = _do(out, stage, client)
            else:
                named = flow(name="stage", flow_run_name=stage.name, **FLOW_OPTIONS)
                named(_do)(out, stage, client)
    return result


def _do(out: Path, stage: Stage, client: Any) -> Any:
    if isinstance(stage, CollectionStage):
        return run_stage(out, stage, shown_progress(), partial(_collect_and_show, client))
    product = stage.place if stage.reads else None
    task = do_stage if product is None else making(do_stage, product, *stage.reads)
    return task(out, stage, client)


@retried_task("stage", "{stage.name}")
def do_stage(out: Path, stage: Stage, client: Any) -> Any:
    """Do what is left of a stage on this machine, or on a worker of a Dask cluster."""
    reporter = shown_progress()
    if client is not None:
        return run_ready(client, out, {stage.name: stage}, reporter)
    if stage.trains and stage.place is not None:
        reporter = TrainingTable(reporter, Path(stage.place))
    return run_stage(out, stage, reporter)


def run_by_jobs(
    out: Path, stages: Sequence[Stage], words: Sequence[str], form: SlurmForm
) -> str | None:
    """Have Slurm do what is left of stages, in the calling flow; jobs that live are followed.

    Args:
        words: the command line of the stages, see `submit_stages`.

    Returns:
        None once all is done; without `form.wait` what was submitted or is in work.

    Raises:
        ValueError: Slurm's reason to refuse, or a job did not succeed.
    """
    left = left_stages(out, stages)
    stores = {stage.place for stage in left if isinstance(stage, CollectionStage)}
    with ExitStack() as alone:
        for store in stores:
            alone.enter_context(_collecting(store, shown_progress()))
        before = {store: _committed(store) for store in stores}
        submit_stages(out, stages, words, slurm_settings(form), shown_progress())
        jobs = distinct_jobs(live_jobs(out, left).values())
        follow_jobs(jobs, form.wait)
    for store, parts in before.items():
        new = sorted(_committed(store) - parts)
        _show_collected(store, records_of_commits(open_store(store), store, new) if new else [])
    if not form.wait and jobs:
        ids = ", ".join(job.id for job in jobs)
        return f"by Slurm, job {ids}: run this again with the same values to see its end"
    lost = [s.name for s in left if not isinstance(s, CommandStage) and not s.is_done(out)]
    if lost:
        raise ValueError(f"not done: {', '.join(lost)}; run this again to do the rest")
    for stage in left:
        if stage.place is not None and stage.reads:
            making(made_by_job, stage.place, *stage.reads)(stage.name)
    return None


@retried_task("made by a job", "{stage} was made by a job")
def made_by_job(stage: str) -> None:
    """Tells Prefect's assets what a job made and read."""


def _committed(store: Path | str) -> set[str]:
    """The parts of a store; none where there is no store yet."""
    with suppress(DatasetError):
        return set(open_store(store).parts())
    return set()


@retried_task("collect", "collect {part}")
def collect_part(
    plan: CollectionPlan,
    store: Path | str,
    part: str,
    client: Any,
    threads: int,
    stopped: threading.Event,
) -> PartCollected:
    """Make a part on a worker of a Dask cluster, or else in this process.

    Here in one attempt: further ones are the task's.
    """
    stop = stop_when(stopped.is_set)
    if client is None:
        return stage_collect.collect_part(plan, store, part, stop, threads, Retry(attempts=1))
    return run_parts(client, partial(make_part, plan, str(store)), [part], stop)[0]


def collect_parts(
    plan: CollectionPlan,
    store: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    client: "Client | None" = None,
) -> list[PartCollected]:
    """Collect the missing parts, each as a task of the calling flow; returns their records.

    A part that fails for good, or an interrupt, stops the others; parts in work commit nothing.
    Another flow that collects into the store is waited for.

    Args:
        parts: None for all.
        client: of the cluster that makes them; None for threads of this process, or for a local
            cluster where the plan needs processes.
    """
    address = store_address(store)
    if plan.parallelism == "processes" and not getattr(plan, plan.parallelism):
        plan = plan.with_workers(1)  # a cluster of its own only where asked for
    with _collecting(address, reporter), ExitStack() as stack:
        collection = stage_collect.prepare(plan, address, parts)
        missing = len(collection.missing)
        records = list[PartCollected]()
        if client is None and missing and plan.parallelism == "processes" and plan.workers > 1:
            client = stack.enter_context(dask_client(DaskSettings(workers=plan.workers), missing))
        with collection.progress(reporter) as advance:
            if missing:
                records = _in_tasks(collection, client, collection.followed(advance))
        collection.finish()
    return records


def _collect_and_show(
    client: Any,
    plan: CollectionPlan,
    store: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None,
) -> list[PartCollected]:
    records = collect_parts(plan, store, reporter, parts, client)
    _show_collected(store_address(store), records)
    return records


def _show_collected(store: Path | str, records: Sequence[PartCollected]) -> None:
    """Show what was collected now, as tables and as an event."""
    if not records:
        return
    rows = [
        {"part": r.part, "episodes": r.episodes, "steps": r.steps, "seconds": r.ended - r.started}
        for r in records
    ]
    groups = making(describe_collected, store)(store, [record.part for record in records])
    show_table("collected", groups, "episodes collected now", store)
    rate = f"{collection_rate(records):,.0f} steps/s"
    show_table("parts", rows, f"parts collected now, at {rate}", store)
    emit_event(COLLECTED, {"prefect.resource.id": f"gaitforge.store.{last_name(str(store))}"})


@retried_task("describe", "describe what was collected")
def describe_collected(store: Path | str, parts: list[str]) -> list[dict[str, Any]]:
    """The episodes of some parts by terrain and skill."""
    return open_store(store).select().of_parts(parts).describe()


def _collecting(store: Path | str, reporter: Reporter) -> AbstractContextManager[None]:
    """A lock: while it is held, no other flow collects into the store."""
    # Prefect's slots would stay taken for good where a server dies with its leases, and another
    # server does not know them.
    waiting = f"another run collects into {store}; this one waits for its end"
    return held_lock(records_folder(store) / LOCK, reporter, waiting)


def _in_tasks(
    collection: stage_collect.Collection, client: Any, follow: Callable[[list[PartCollected]], None]
) -> list[PartCollected]:
    stopped = threading.Event()
    plan = collection.plan
    at_once = min(plan.workers, len(collection.missing))
    shared = {"client": client, "threads": plan.workers // at_once, "stopped": stopped}
    if client is not None:
        cores = sum(client.nthreads().values()) or usable_cores()
        at_once = QUEUED_A_WORKER * cores
    shared |= {"plan": plan, "store": collection.store}
    with ThreadPoolTaskRunner(max_workers=at_once) as runner:
        try:
            futures = {
                runner.submit(collect_part, {"part": part, **shared}): part
                for part in collection.missing
            }
            return gather(futures, lambda future, part: future.result(), follow)
        except BaseException:
            stopped.set()
            raise
