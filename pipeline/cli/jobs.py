"""`gaitforge jobs`: list, follow, cancel and run Slurm jobs."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from flows.progress import Silent
from flows.records.records import to_tree
from flows.runners.slurm.jobs import (
    Job,
    TaskStatus,
    cancel_job,
    find_job,
    find_jobs,
    follow,
    job_state,
    states_of,
    task_states,
)
from flows.runners.slurm.script import STOPPED
from pipeline.cli.arguments import Parser, add_actions, option, whole
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one

_SETTLE_S = 15.0
"""How long to wait for a cancelled job to end before showing it."""


_JOB = "a job's folder or id, a store, a run, or a folder that holds them"


def add_jobs(parser: Parser) -> None:
    """`gaitforge jobs ACTION`."""
    table = {
        "list": (_add_list, "list jobs, or the tasks of one"),
        "follow": (_add_follow, "print a job's log until the job ends; exit 1 if it failed"),
        "cancel": (_add_cancel, "cancel a job; what it has saved stays"),
        "run": (_add_run, "do a job's work in this process, as its script does"),
    }
    add_actions(parser, "gaitforge jobs list data/legged.zarr", table)


def _add_list(parser: Parser) -> None:
    option(parser, "job", _JOB, default=".", nargs="?", metavar="FOLDER|JOB")
    parser.take("--json")
    parser.runs(_list, "gaitforge jobs list runs/fcnet")


def _list(arguments: argparse.Namespace) -> int:
    name = arguments.job
    jobs = [find_job(name)] if name.isdigit() else find_jobs(Path(name))
    seen = list(zip(jobs, states_of(jobs), strict=True))
    if arguments.json:
        show([_record(job, tasks) for job, tasks in seen], as_json=True)
    elif len(seen) == 1:
        show_one(_row(*seen[0]), as_json=False)
        print()
        show([_task_row(task) for task in seen[0][1]], as_json=False)
    else:
        show([_row(job, tasks) for job, tasks in seen], as_json=False)
    return 0


def _add_follow(parser: Parser) -> None:
    option(parser, "job", _JOB, metavar="FOLDER|JOB")
    parser.runs(_follow, "gaitforge jobs follow 1234")


def _follow(arguments: argparse.Namespace) -> int:
    job = find_job(arguments.job)
    for task, line in follow(job):
        print(f"[{task}] {line}" if job.is_array else line, flush=True)
    state = job_state(task_states(job))
    print(f"job {job.id}: {state}")
    return 0 if state == "done" else 1


def _add_cancel(parser: Parser) -> None:
    option(parser, "job", _JOB, metavar="FOLDER|JOB")
    parser.take("--json")
    parser.runs(_cancel, "gaitforge jobs cancel 1234")


def _cancel(arguments: argparse.Namespace) -> int:
    job = find_job(arguments.job)
    cancel_job(job)
    deadline = time.monotonic() + _SETTLE_S
    while job_state(task_states(job)) in ("running", "waiting") and time.monotonic() < deadline:
        time.sleep(0.2)
    tasks = task_states(job)
    show_one(_record(job, tasks) if arguments.json else _row(job, tasks), arguments.json)
    return 0


def _add_run(parser: Parser) -> None:
    option(parser, "folder", "folder of the job", Path)
    option(parser, "--task", "array task", whole, 0)
    parser.runs(_run, "gaitforge jobs run data/legged.zarr.jobs/collect-20260131-120000 --task 3")


def _run(arguments: argparse.Namespace) -> int:
    from flows.runners.slurm.runner import run_task

    # Of several processes of one training, the first speaks.
    reporter = TerminalReporter() if os.environ.get("RANK", "0") == "0" else Silent()
    # An exception lets a part that is being written clean up. The trainer sets its own handler
    # while it trains.
    former = signal.signal(signal.SIGTERM, _leave)
    try:
        run_task(arguments.folder, arguments.task, reporter)
    finally:
        signal.signal(signal.SIGTERM, former)
    return 0


def _leave(number: int, frame: FrameType | None) -> NoReturn:
    sys.exit(STOPPED)


def show_submitted(job: Job | str, as_json: bool) -> None:
    """Show a submitted job, or the script of a dry run."""
    if isinstance(job, str):
        print(job)
        return
    waiting = [TaskStatus(task, "waiting", parts=parts) for task, parts in enumerate(job.tasks)]
    show_one(_record(job, waiting) if as_json else _row(job, waiting), as_json)


def _row(job: Job, tasks: list[TaskStatus]) -> dict[str, Any]:
    states = [task.state for task in tasks]
    return {
        "job": job.id,
        "kind": job.kind,
        "state": job_state(tasks),
        "tasks": len(tasks),
        **{state: states.count(state) for state in ("waiting", "running", "done", "failed")},
        "submitted": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(job.submitted)),
        "folder": os.path.relpath(job.folder),
    }


def _task_row(task: TaskStatus) -> dict[str, Any]:
    seconds = None
    if task.ended is not None and task.started is not None:
        seconds = task.ended - task.started
    return {
        "task": task.task,
        "state": task.state,
        "why": task.why or None,
        "code": task.code,
        "restarts": task.restarts,
        "host": task.host or None,
        "seconds": seconds,
        "parts": " ".join(task.parts) or None,
    }


def _record(job: Job, tasks: list[TaskStatus]) -> dict[str, Any]:
    return to_tree(job) | {"state": job_state(tasks), "tasks": [asdict(task) for task in tasks]}
