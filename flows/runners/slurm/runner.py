"""Collection as a Slurm job, an array over the missing parts; and the submission of any job.

Slurm may repeat any task: committed parts are skipped.
"""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from math import ceil
from pathlib import Path

import gaitforge
from gaitforge.common.errors import amount
from gaitforge.common.locks import file_system_time
from gaitforge.datasets import create_store
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import PartCollected, check_versions, store_address
from gaitforge.flows.records.plans import check_value
from gaitforge.flows.records.records import provenance, to_tree, write_record
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.commands import (
    NOTHING,
    TooManyJobs,
    UnclearSubmission,
    Waits,
    job_environment,
    jobs_left,
    limits,
    submit,
    submit_command,
)
from gaitforge.flows.runners.slurm.drafts import Draft
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings, batch_script
from gaitforge.flows.stages.collect import collect, prepare
from gaitforge.flows.tasks.interface import CollectionPlan
from gaitforge.flows.tasks.registry import collection_plan

COLLECT_REQUEUES = 3
TRAIN_REQUEUES = 100
_NO_ROOM = (
    "the cluster takes no more jobs of yours now, not even one task; see squeue, and submit again "
    "once some have ended"
)


def run_slurm(
    plan: CollectionPlan,
    store_path: Path | str,
    reporter: Reporter,
    parts: Sequence[str] | None = None,
    settings: SlurmSettings | None = None,
) -> jobs.Job | Draft | list[PartCollected]:
    """The runner "slurm": an array over the parts that are neither committed nor in a live job.

    Returns:
        The job; with `dry_run` its draft; an empty list if there is nothing to submit.

    Raises:
        ValueError: no Slurm, or its reason to refuse; nothing is left behind.
    """
    settings = settings or SlurmSettings()
    if settings.nodes > 1 or settings.gpus > (plan.processor == "cuda"):
        raise ValueError(
            "a part is collected on the cores of one node: nodes 1 and gpus 0, or 1 for a "
            "simulator on a GPU"
        )
    store = store_address(store_path)
    folder = jobs.jobs_folder(store)
    missing = _missing(plan, store, parts)
    busy = set() if settings.dry_run else jobs.parts_in_work(folder)
    left = [part for part in missing if part not in busy]
    if not left:
        reason = f"; {amount(len(missing), 'part')} in work in jobs of {folder}" if missing else ""
        reporter.say(f"nothing to submit: no part of {store} is missing{reason}")
        return []
    return _submit_array(plan, store, left, settings, reporter)


def _submit_array(
    plan: CollectionPlan,
    store: Path | str,
    left: Sequence[str],
    settings: SlurmSettings,
    reporter: Reporter,
) -> jobs.Job | Draft:
    """Submit an array over parts, in as few tasks as the cluster's limits ask for.

    Where only sbatch's refusal tells a limit, half as many tasks are tried.
    """
    asked = settings.parts_per_task or settings.cpus
    tasks = ceil(len(left) / asked)
    known = limits(settings.account, settings.qos)
    most = max(1, known.array_tasks)
    free = None if settings.dry_run else jobs_left(known)
    if free is not None and free > 0:
        most = min(most, free)
    if settings.max_tasks:
        most = min(most, settings.max_tasks)
    most = min(most, tasks)
    while True:
        size = max(asked, ceil(len(left) / most))
        parts = tuple(tuple(left[k : k + size]) for k in range(0, len(left), size))
        # A task of more parts may need several runs of the time limit.
        requeues = min(TRAIN_REQUEUES, COLLECT_REQUEUES * ceil(size / asked))
        work = JobWork("gaitforge-collect", len(parts), known.array_tasks > 1, True, requeues)
        draft = jobs.Job(
            jobs.jobs_folder(store),
            "",
            jobs.COLLECT,
            str(store),
            0.0,
            settings.partition,
            (),
            parts,
        )
        task_plan = plan.with_workers(settings.cpus)
        record = {"task": task_plan.kind, "store": str(store), "plan": to_tree(task_plan)}
        prepared = partial(prepare, task_plan, store, left)
        try:
            job = submit_work(draft, record, work, settings, prepared)
        except TooManyJobs as error:
            if len(parts) == 1:
                raise TooManyJobs(f"{error}: {_NO_ROOM}") from None
            most = len(parts) // 2
            continue
        if size > asked:
            reporter.say(
                f"{amount(len(left), 'part')} in {amount(len(parts), 'task')}: the cluster takes "
                f"no more, so a task makes {size}; --parts-per-task sets it"
            )
        return job


def _missing(
    plan: CollectionPlan, store_path: Path | str, parts: Sequence[str] | None
) -> list[str]:
    """The parts that the store lacks; creates no store."""
    names = list(plan.part_ids() if parts is None else parts)
    if not is_bucket_url(store_path) and not Path(store_path).exists():
        return names
    store = create_store(store_path, plan.schema())
    missing = store.missing(names)
    if missing and (simulator := plan.simulator()) is not None:
        check_versions(store, store_path, *simulator)
    return missing


def submit_work(
    draft: jobs.Job,
    record: dict[str, object],
    work: JobWork,
    settings: SlurmSettings,
    afterwards: Callable[[], object] = lambda: None,
    waits: Waits = NOTHING,
) -> jobs.Job | Draft:
    """Write a job's folder and submit its script; where sbatch refuses, nothing is left.

    Args:
        draft: the job without an id; its folder is that of all jobs of the store or run.
        record: what the job's plan.json holds beside kind, target and tasks.
        afterwards: called once it is submitted; waits: what it waits for.
    """
    jobs_folder = draft.folder
    whole = {"kind": draft.kind, "target": draft.target, "tasks": draft.tasks, **record}
    sha256 = jobs.work_sha256(whole)
    if settings.dry_run:
        script = batch_script(jobs_folder / draft.kind, work, settings, sha256)
        return Draft(draft.kind, draft.tasks, settings, work.array, script)
    environment = _environment(draft, settings)
    waits = replace(waits, all_of=(*waits.all_of, *_awaited(settings.after)))
    if settings.env_file:
        settings = replace(settings, env_file=str(Path(settings.env_file).absolute()))
        if not Path(settings.env_file).is_file():
            raise ValueError(f"no file {settings.env_file}")
    new_folders = [folder for folder in (jobs_folder, *jobs_folder.parents) if not folder.exists()]
    folder = jobs.new_folder(jobs_folder, draft.kind.replace(" ", "-"))
    log = folder / jobs.log_name("%a" if work.array else 0)
    try:
        command = tuple(submit_command(folder / jobs.SCRIPT, log, waits))
        job = replace(draft, folder=folder, submitted=file_system_time(folder), command=command)
        write_record(folder / jobs.PLAN, whole | provenance())
        (folder / jobs.SCRIPT).write_text(batch_script(folder, work, settings, sha256))
        jobs.write_job(job)
        number, cluster = submit(command, environment)
        job = replace(job, id=number, cluster=cluster)
    except UnclearSubmission as error:
        if not (job := jobs.read_job(folder)).id:
            raise ValueError(f"{error}; its folder is {folder}") from None
    except BaseException as error:
        # An interrupted sbatch may have submitted.
        if isinstance(error, Exception) or not (folder / jobs.JOB).exists():
            shutil.rmtree(folder, ignore_errors=True)
            for empty in new_folders:
                with suppress(OSError):
                    empty.rmdir()
        raise
    try:
        jobs.write_job(job)
        afterwards()
    except BaseException:
        jobs.cancel_job(job)
        raise
    return job


def _environment(draft: jobs.Job, settings: SlurmSettings) -> dict[str, str]:
    """The variables of a job."""
    # For the job to run the same program.
    root = str(Path(gaitforge.__file__).resolve().parent.parent)
    values = {"PYTHONPATH": os.pathsep.join([root, os.environ.get("PYTHONPATH", "")]).strip(":")}
    if not draft.makes_parts:
        # torch would use all cores of the node, not only the job's.
        values["OMP_NUM_THREADS"] = os.environ.get("OMP_NUM_THREADS", str(settings.cpus))
    return job_environment(settings.pass_env, **values)


def run_task(folder: Path, task: int, reporter: Reporter, sha256: str) -> None:
    """Make the parts of one task of a collection's job folder here; committed ones are skipped.

    Args:
        sha256: of what the job does, see `jobs.read_work`.

    Raises:
        ValueError: no such task, another plan than was submitted, or what the collection raises.
    """
    tree = jobs.read_work(folder, sha256)
    if not {"task", "store", "plan"} <= tree.keys():
        raise ValueError(f"{folder} is no job folder: it holds no {jobs.PLAN} of a job")
    check_value(tuple[tuple[str, ...], ...], tree["tasks"], f"{folder / jobs.PLAN}: tasks")
    check_value(str, tree["store"], f"{folder / jobs.PLAN}: store")
    check_value(str, tree["task"], f"{folder / jobs.PLAN}: task")
    if not 0 <= task < len(tree["tasks"]):
        raise ValueError(f"{folder} has tasks 0-{len(tree['tasks']) - 1}, not {task}")
    plan = collection_plan(tree["task"], tree["plan"])
    collect(plan, store_address(tree["store"]), reporter, tree["tasks"][task])


def _awaited(names: Sequence[str]) -> list[str]:
    """The ids of the unfinished jobs of these ids, stores and runs; the others succeeded.

    Raises:
        ValueError: no such job, or none is left and the last one did not succeed.
    """
    ids = []
    for name in names:
        group = [jobs.find_job(name)] if name.isdigit() else jobs.find_jobs(Path(name))
        states = [(job.id, jobs.job_state(tasks)) for job, tasks in jobs.settled(group)]
        live = [number for number, state in states if state in jobs.LIVE]
        if not live and (not states or states[-1][1] != "done"):
            last = f"its last job is {states[-1][1]}" if states else "it has no job"
            raise ValueError(f"cannot wait for {name}: {last}")
        ids += live
    return ids
