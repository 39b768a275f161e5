"""Collection as Prefect flows: each part is a task.

`collect` is the legged form; `collect_plan` takes the plan of any task. On a Dask cluster each
Prefect task waits for a Dask task, so workers need neither Prefect nor its server.
"""

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from prefect import State
from prefect.events import emit_event
from prefect.runtime import flow_run
from prefect.states import Completed
from prefect.task_runners import ThreadPoolTaskRunner

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT
from gaitforge.datasets import open_store
from gaitforge.datasets.errors import amount
from gaitforge.flows import forms
from gaitforge.flows.progress import Interrupted, Reporter
from gaitforge.flows.records.part_records import (
    PartCollected,
    collection_rate,
    records_folder,
    records_of_commits,
    store_address,
)
from gaitforge.flows.records.records import held_lock, to_tree
from gaitforge.flows.retrying import Retry
from gaitforge.flows.runners.artifacts import last_name, show_table, show_view, tag_run
from gaitforge.flows.runners.dask import make_part, run_parts
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.flows.runners.gather import gather
from gaitforge.flows.runners.prefect import (
    deployed_flow,
    making,
    named_after,
    retried_task,
    run_from_a_program,
    shown_progress,
)
from gaitforge.flows.runners.prefect_jobs import check_one_place, jobs_do
from gaitforge.flows.runners.slurm.jobs import jobs_folder
from gaitforge.flows.runners.slurm.runner import run_slurm
from gaitforge.flows.runners.slurm.script import SlurmForm
from gaitforge.flows.settings import override_form
from gaitforge.flows.stages import collect as stage
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.legged import LeggedPlan, legged_plan
from gaitforge.flows.tasks.registry import collection_plan

QUEUED_A_WORKER = 2
"""Tasks for every Dask worker: one in work, and the next one."""

COLLECTED = "gaitforge.collected"
"""Prefect's event of a flow that has collected at least one part."""

LOCK = "collecting.lock"
"""Among a store's records; whoever holds it collects as a flow."""


@retried_task("collect", "collect {part}")
def collect_part(
    plan: CollectionPlan, store: Path | str, part: str, threads: int, stopped: threading.Event
) -> PartCollected:
    """Make a part in this process, in one attempt: further ones are the task's."""
    once = Retry(attempts=1)
    return stage.collect_part(plan, store, part, partial(_check, stopped), threads, once)


@retried_task("collect", "collect {part}")
def collect_part_on_dask(
    plan: CollectionPlan, store: Path | str, part: str, client: Any, stopped: threading.Event
) -> PartCollected:
    """Make a part on a worker of a Dask cluster."""
    work = partial(make_part, plan, str(store))
    [record] = run_parts(client, work, [part], partial(_check, stopped))
    return record


def _check(stopped: threading.Event, *_: Any) -> None:
    if stopped.is_set():
        raise Interrupted


def collect_parts(
    plan: CollectionPlan,
    store: Path | str,
    parts: Sequence[str] | None = None,
    dask: DaskSettings | None = None,
) -> list[PartCollected]:
    """Collect the missing parts, each as a task of the calling flow; returns their records.

    A part that fails for good, or an interrupt, stops the others; parts in work commit nothing.
    Another flow that collects into the store is waited for.

    Args:
        parts: None for all.
        dask: the cluster that makes them; None for threads of this process, or for a local cluster
            where the plan needs processes.
    """
    address, reporter = store_address(store), shown_progress()
    with _alone(address, reporter):
        return _collect_missing(stage.prepare(plan, address, parts), dask, reporter)


def _alone(store: Path | str, reporter: Reporter) -> AbstractContextManager[None]:
    """The time in which no other flow collects into a store."""
    # Prefect's slots would stay taken for good where a server dies with its leases, and another
    # server does not know them.
    waiting = f"another run collects into {store}; this one waits for its end"
    return held_lock(records_folder(store) / LOCK, reporter, waiting)


def _collect_by_jobs(
    plan: CollectionPlan, store: str, form: SlurmForm
) -> tuple[list[PartCollected], str | None]:
    """Have Slurm collect the missing parts; their records, and a message where it goes on."""
    address, reporter = store_address(store), shown_progress()
    with _alone(address, reporter):
        collection = stage.prepare(plan, address)
        if not collection.missing:
            return [], None
        submit = partial(run_slurm, plan, address, reporter, None)
        left = jobs_do(jobs_folder(address), "collect", form, submit)
        opened = open_store(address)
        made = records_of_commits(opened, address, collection.missing)
        if not left and (lost := opened.missing(collection.missing)):
            raise ValueError(f"{amount(len(lost), 'part')} are missing, e.g. {lost[0]}; run again")
        collection.finish()
        return made, left


def _collect_missing(
    collection: stage.Collection, dask: DaskSettings | None, reporter: Reporter
) -> list[PartCollected]:
    plan = collection.plan
    if dask is None and plan.parallelism == "processes" and plan.workers > 1:
        dask = DaskSettings(workers=plan.workers)
    missing = len(collection.missing)
    with collection.progress(reporter) as advance:
        if not missing:
            return []
        follow = collection.followed(advance)
        if dask is None:
            workers = min(plan.workers, missing)
            here = {"threads": plan.workers // workers}
            made = _in_tasks(collection, collect_part, here, workers, follow)
        else:
            with dask_client(dask, missing) as client:
                threads: Any = client.nthreads()
                at_work = max(sum(threads.values()), dask.workers)
                at_once = QUEUED_A_WORKER * (at_work or len(os.sched_getaffinity(0)))
                on_dask = {"client": client}
                made = _in_tasks(collection, collect_part_on_dask, on_dask, at_once, follow)
    collection.finish()
    return made


def _in_tasks(
    collection: stage.Collection,
    task: Any,
    arguments: dict[str, Any],
    at_once: int,
    follow: Callable[[list[PartCollected]], None],
) -> list[PartCollected]:
    stopped = threading.Event()
    arguments = {"plan": collection.plan, "store": collection.store, **arguments}
    with ThreadPoolTaskRunner(max_workers=at_once) as runner:
        try:
            futures = {
                runner.submit(task, {"part": part, "stopped": stopped, **arguments}): part
                for part in collection.missing
            }
            return gather(futures, lambda future, part: future.result(), follow)
        except BaseException:
            stopped.set()
            raise


@deployed_flow("collect", named_after("collect into", "store", "terrains", "skills"))
def collect(  # noqa: PLR0913, the fields of a form
    store: forms.Place,
    preset: forms.Preset = "demo",
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    parts: forms.Parts = 0,
    episodes_per_part: forms.Episodes = 0,
    seed: forms.Seed = 0,
    new_every_day: bool = False,
    expert: str = DEFAULT_EXPERT,
    threads: forms.Threads = 2,
    settings: forms.Settings = forms.NONE,
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
    """Collect legged data: the missing parts of a preset, one task each.

    Args:
        store: a folder, or s3://bucket/prefix; created if absent.
        preset: the plan that the other values change.
        terrains: empty for the preset's.
        skills: empty for the preset's.
        levels: of the terrain; empty for the preset's.
        parts: of the plan; 0 for the preset's.
        episodes_per_part: 0 for the preset's.
        seed: random seed.
        new_every_day: use the day of the scheduled start, as yyyymmdd, as the seed: every day's
            runs add parts of their own, and a run that died is resumed within the day.
        expert: a name, or the path of a file.
        threads: parallel simulators.
        settings: any other settings of the plan, NAME=VALUE.
        dask: a cluster that makes the parts; none for this machine.
        slurm: jobs that make the parts; none for this machine.
    """
    check_one_place(dask, slurm)
    day = int(flow_run.scheduled_start_time.strftime("%Y%m%d")) if new_every_day else seed
    sizes = {"parts": parts, "episodes_per_part": episodes_per_part, "seed": day}
    grid = forms.grid_values(terrains, skills, levels, **sizes)
    top = {"expert": expert, "threads": threads}
    chosen = {f"grid.{name}": value for name, value in grid.items()} | top
    if not day:
        del chosen["grid.seed"]  # 0 is what the form has unless something is chosen
    plan = override_form(legged_plan(preset, grid, top, []), settings, chosen)
    tag_run(store=last_name(store), terrain=terrains)
    if slurm is None:
        made, left = collect_parts(plan, store, dask=dask), None
    else:
        made, left = _collect_by_jobs(plan, store, slurm)
    _show(store, made, plan.kind)
    if left:
        return Completed(message=left)
    there = plan.grid.parts - len(made)
    return Completed(message=f"{amount(len(made), 'part')} collected, {there} already stored")


@deployed_flow("collect-plan", named_after("collect into", "store"))
def collect_plan(
    store: forms.Place,
    task: forms.Task,
    plan: dict[str, Any],
    parts: list[str] | None = None,
    dask: DaskSettings | None = None,
) -> list[PartCollected]:
    """Collect the missing parts of any task's plan, one task each.

    Args:
        store: a folder, or s3://bucket/prefix; created if absent.
        task: whose plan it is.
        plan: as its record beside a store has it; absent fields have their defaults.
        parts: names; none for all.
        dask: the cluster that makes the parts; none for this machine.
    """
    made = collect_parts(collection_plan(task, plan), store, parts, dask)
    _show(store, made, task)
    return made


def run_prefect(
    plan: CollectionPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: DaskSettings | None = None,
) -> list[PartCollected]:
    """The runner "prefect": one run of `collect_plan`; returns what was collected now.

    The server is the one that PREFECT_API_URL names, or one on loopback for the time of the run.

    Args:
        settings: of a Dask cluster that makes the parts; None for this machine.

    Raises:
        ValueError: no server, or what a part's `collect_part` raised.
    """
    wanted = None if parts is None else list(parts)
    with run_from_a_program(reporter):
        return collect_plan(str(store_path), plan.kind, to_tree(plan), wanted, settings)


@retried_task("describe", "describe what was collected")
def describe_collected(store: Path | str, parts: list[str]) -> list[dict[str, Any]]:
    """The episodes of some parts by terrain and skill."""
    return open_store(store).select().of_parts(parts).describe()


def _show(store: str, made: Sequence[PartCollected], task: str) -> None:
    rows = [
        {"part": r.part, "episodes": r.episodes, "steps": r.steps, "seconds": r.ended - r.started}
        for r in made
    ]
    if rows:
        address, rate = store_address(store), f"{collection_rate(made):,.0f} steps/s"
        groups = making(describe_collected, address)(address, [r.part for r in made])
        show_table("collected", groups, "episodes collected now", address)
        show_table("parts", rows, f"parts collected now, at {rate}", address)
        emit_event(COLLECTED, {"prefect.resource.id": f"gaitforge.store.{last_name(store)}"})
    if task == LeggedPlan.kind:
        show_view(store_address(store))
