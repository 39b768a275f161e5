"""`gaitforge jobs`: Slurm jobs of stores and runs."""

import argparse
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import cast

from gaitforge.common.interrupts import STOPPED, stop_signals
from gaitforge.flows.records.plans import check_value
from gaitforge.flows.records.records import prepare_folder, to_tree, write_file
from gaitforge.flows.runners.slurm import jobs as slurm
from gaitforge.flows.runners.slurm.drafts import Draft, estimates
from gaitforge.flows.runners.slurm.script import own_lines
from gaitforge.pipeline.cli.parsing.options import JSON, TRUST, option
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.runners import run_here
from gaitforge.pipeline.cli.parsing.values import uses, whole
from gaitforge.pipeline.terminal import fields_of, own_reporter, show, show_one, show_result

_SETTLE_S = 15.0
"""How long to wait for a cancelled job to end before showing it."""


_JOB = "a job's folder or id, a store, a run, or a folder that holds them"


@command(
    "gaitforge jobs list runs/fcnet",
    option("job", _JOB, default=".", nargs="?", metavar="FOLDER|JOB"),
    JSON,
)
def _list(arguments: argparse.Namespace) -> None:
    """List jobs, or the tasks of one."""
    name = arguments.job
    jobs = [slurm.find_job(name)] if slurm.is_number(name) else slurm.find_jobs(Path(name))
    seen = slurm.states_of(jobs)
    if arguments.json:
        show([_record(job, tasks) for job, tasks in seen], as_json=True)
    elif len(seen) == 1:
        show_one(job_row(*seen[0]), as_json=False)
        print()
        show([_task_row(task) for task in seen[0][1]], as_json=False)
    else:
        rows = [job_row(job, tasks) for job, tasks in seen]
        show(rows, as_json=False, empty=f"no jobs of {name}")


@command("gaitforge jobs follow 1234", option("job", _JOB, metavar="FOLDER|JOB"))
def _follow(arguments: argparse.Namespace) -> int:
    """Print a job's log until the job ends; exit 1 if it failed."""
    job = slurm.find_job(arguments.job)
    for task, line in slurm.follow(job):
        print(f"[{task}] {line}" if job.is_array else line, flush=True)
    state = slurm.job_state(slurm.task_states(job))
    print(f"job {job.id}: {state}")
    return 0 if state == "done" else 1


@command("gaitforge jobs cancel 1234", option("job", _JOB, metavar="FOLDER|JOB"), JSON)
def _cancel(arguments: argparse.Namespace) -> None:
    """Cancel a job, or one task of an array (1234_5); what it has saved stays."""
    job = slurm.find_job(arguments.job)
    task = _asked_task(arguments.job, job)
    slurm.cancel_job(job, task)
    deadline = time.monotonic() + _SETTLE_S
    while True:
        tasks = slurm.task_states(job)
        ending = tasks if task is None else [tasks[task]]
        if slurm.job_state(ending) not in slurm.LIVE or time.monotonic() >= deadline:
            break
        time.sleep(0.2)
    show_one(_record(job, tasks) if arguments.json else job_row(job, tasks), arguments.json)


def _asked_task(name: str, job: slurm.Job) -> int | None:
    """The task that a name such as 1234_5 asks for; None for all of the job.

    Raises:
        ValueError: the job has no such task.
    """
    number = name.partition("_")[2] if slurm.is_number(name) else ""
    if not number:
        return None
    if not job.is_array:
        raise ValueError(f"job {job.id} is no array and has no task {number}; give {job.id}")
    if int(number) >= len(job.tasks):
        raise ValueError(f"job {job.id} has tasks 0-{len(job.tasks) - 1}, not {number}")
    return int(number)


@command(
    "gaitforge jobs run data/legged.zarr.jobs/collect-20260131-120000 --task 3 --sha256 9f86d0",
    option("folder", "folder of the job", Path),
    option("--task", "array task", whole, 0),
    option("--sha256", "hash of what the job does, as its script has it", metavar="HEX"),
    TRUST,
)
def _run(arguments: argparse.Namespace) -> int | None:
    """Do a job's work in this process, as its script does."""
    from gaitforge.flows.runners.slurm.runner import run_task
    from gaitforge.pipeline.cli.main import parsed

    uses(arguments, "task")  # the job's script names it, also where there is only one
    work = slurm.read_work(arguments.folder, arguments.sha256 or "")
    words = work.get(slurm.WORDS)
    if words is not None:
        check_value(tuple[str, ...], words, f"{arguments.folder / slurm.PLAN}: {slurm.WORDS}")
        words = [*words, *_stage_option(arguments.folder, work["tasks"], arguments.task)]
    # An exception lets a part that is being written clean up. The trainer sets its own handler
    # while it trains.
    with stop_signals(signal.SIGTERM, error=lambda _: SystemExit(STOPPED)):
        if words is None:
            run_task(arguments.folder, arguments.task, own_reporter(), arguments.sha256)
            return None
        asked = parsed(words)
        run_here(asked)
        return asked.run(asked)


def _stage_option(folder: Path, tasks: object, task: int) -> list[str]:
    """The words that say which stage a task of an array of stages does; none for other jobs."""
    check_value(tuple[tuple[str, ...], ...], tasks, f"{folder / slurm.PLAN}: tasks")
    stages = [list(names) for names in cast("list[list[str]]", tasks)]
    if not 0 <= task < len(stages):
        raise ValueError(f"{folder} has tasks 0-{len(stages) - 1}, not {task}")
    return ["--stage", *stages[task]] if len(stages) > 1 else []


def show_drafts(drafts: Sequence[Draft], scripts: Path | None, as_json: bool) -> None:
    """Show what a dry run would submit: jobs, sizes, hours and a script.

    Args:
        scripts: folder that all scripts are written to.
    """
    files = [f"{k:02d}-{draft.kind.replace(' ', '-')}.sh" for k, draft in enumerate(drafts, 1)]
    if scripts is not None:
        prepare_folder(scripts)
        for name, draft in zip(files, drafts, strict=True):
            write_file(scripts / name, draft.script.encode())
    if as_json:
        show([draft.record() for draft in drafts], as_json)
        return
    if not drafts:
        print("nothing to submit")
        return
    sample = max(drafts, key=lambda draft: len(draft.tasks))
    lines, hidden = own_lines(sample.script)
    where = "--scripts FOLDER writes all" if scripts is None else f"all are in {scripts}"
    end = f"# and {hidden} lines that all scripts share, for signals and requeues; {where}"
    title = f"the script of {sample.kind}:"
    rows = [draft.row() for draft in drafts]
    show_result(None, rows, as_json, "", *estimates(drafts), "", title, "", *lines, end)


def show_submitted(job: slurm.Job, as_json: bool) -> None:
    """Show a submitted job."""
    waiting = [
        slurm.TaskStatus(task, "waiting", parts=parts) for task, parts in enumerate(job.tasks)
    ]
    show_one(_record(job, waiting) if as_json else job_row(job, waiting), as_json)


def job_row(job: slurm.Job, tasks: list[slurm.TaskStatus]) -> dict[str, object]:
    """A job as a row of a table."""
    states = [task.state for task in tasks]
    return {
        "job": job.id,
        "kind": job.kind,
        "state": slurm.job_state(tasks),
        "tasks": len(tasks),
        **{state: states.count(state) for state in ("waiting", "running", "done", "failed")},
        "submitted": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.submitted)),
        "folder": os.path.relpath(job.folder),
    }


def _task_row(task: slurm.TaskStatus) -> dict[str, object]:
    row = fields_of(task, "task", "state", "why", "code", "restarts", "host")
    seconds = None
    if task.started is not None and (task.ended is not None or task.state == "running"):
        # The node's clock may be ahead of this one's, or have jumped back.
        seconds = max(0, (task.ended or round(time.time())) - task.started)
    return row | {"seconds": seconds, "parts": " ".join(task.parts)}


def _record(job: slurm.Job, tasks: list[slurm.TaskStatus]) -> dict[str, object]:
    return to_tree({**vars(job), "state": slurm.job_state(tasks), "tasks": tasks})


jobs_command = actions(
    "jobs", "gaitforge jobs list data/legged.zarr", _list, _follow, _cancel, _run
)
