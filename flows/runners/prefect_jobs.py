"""Slurm jobs as task runs of a flow.

The job does not need the flow: a flow that waits follows it, and one that is started later with the
same values finds it. Cancelling the flow's run cancels the job; ending its process does not.
"""

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Any
from uuid import UUID

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.runtime import task_run
from prefect.states import Running

from gaitforge.common.errors import amount
from gaitforge.flows.runners.artifacts import NO_SERVER, show_markdown
from gaitforge.flows.runners.prefect import SLURM_JOB, shown_progress
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.script import SlurmForm, SlurmSettings

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
