"""Slurm jobs as task runs of a flow.

The job does not need the flow: a flow that waits follows it, and one that is started later with the
same values finds it. Cancelling the flow's run cancels the job; ending its process does not.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import UUID

from prefect import get_run_logger, task
from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import get_client
from prefect.runtime import task_run
from prefect.states import Running

from datasets.errors import amount
from flows.runners.artifacts import NO_SERVER, show_markdown
from flows.runners.prefect import SLURM_JOB, shown_progress
from flows.runners.slurm import jobs
from flows.runners.slurm.script import SlurmForm, SlurmSettings

SITE = "GAITFORGE_SLURM"
"""Environment variable of flows: settings for every job of theirs, the fields of `SlurmSettings` as
JSON. What a form must not choose, such as commands and files, is set here."""

POLL_S = 5.0
TAIL_LINES = 40
MOST_LINES = 20
"""Lines of a job's log that are passed on at a time; the last ones."""


def slurm_settings(form: SlurmForm) -> SlurmSettings:
    """A form's request with the site's settings.

    Raises:
        ValueError: the variable `SITE` holds something else.
    """
    asked = asdict(form)
    del asked["wait"]
    try:
        site: dict[str, Any] = json.loads(os.environ.get(SITE, "{}"))
        lists = {name: tuple(each) for name, each in site.items() if isinstance(each, list)}
        return SlurmSettings(**{**site, **lists, **asked})
    except (AttributeError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(f"{SITE} must hold settings of Slurm jobs as JSON: {error}") from None


def check_one_place(dask: Any, slurm: Any) -> None:
    """Raise ValueError where a form names both a Dask cluster and Slurm."""
    if dask is not None and slurm is not None:
        raise ValueError("give dask or slurm, not both")


def jobs_do(
    place: Path, kind: str, form: SlurmForm, submit: Callable[[SlurmSettings], Any]
) -> str | None:
    """Have jobs do the work of the calling flow: live ones, or else what `submit` makes.

    Args:
        place: the folder of jobs that they are in; kind: of them.

    Returns:
        None once they have ended well; without `form.wait` what was submitted or is in work.

    Raises:
        ValueError: what `submit` raises, or a job did not succeed.
    """
    found = live_jobs(place, kind)
    if not found or kind == "collect":  # which leaves out the parts of live jobs
        made = submit(slurm_settings(form))
        found += [made] if isinstance(made, jobs.Job) else []
    follow_jobs(found, form.wait)
    if form.wait or not found:
        return None
    ids = ", ".join(job.id for job in found)
    return f"{kind} by Slurm, job {ids}: run this again with the same values to see its end"


def follow_jobs(found: Sequence[jobs.Job], wait: bool) -> None:
    """Show jobs as task runs of the calling flow, until they have ended or, without `wait`, once.

    Raises:
        ValueError: with `wait`, a job did not succeed.
    """
    made = [_named(job).submit(job, wait) for job in found]
    for each in made:
        each.result()


def live_jobs(place: Path, kind: str) -> list[jobs.Job]:
    """The jobs of a kind in a folder of jobs that have not ended."""
    found = [job for job in jobs.find_jobs(place) if job.kind == kind] if place.is_dir() else []
    states = [jobs.job_state(tasks) for tasks in jobs.states_of(found)]
    return [job for job, state in zip(found, states, strict=True) if state in jobs.LIVE]


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
    logger, shown, offset, done = get_run_logger(), "", 0, 0
    log = job.folder / jobs.log_name(0)
    with shown_progress().step(f"{job.kind} job {job.id}", len(job.tasks), "task") as advance:
        while True:
            tasks = jobs.task_states(job)
            state, told = jobs.job_state(tasks), _told(tasks)
            if told != shown:
                shown = told
                logger.info(f"job {job.id}: {told}")
                _show_state(state, f"job {job.id}: {told}")
            if not job.is_array:
                lines, offset = _new_lines(log, offset)
                for line in lines[-MOST_LINES:]:
                    logger.info(line)
            ended = sum(each.state in jobs.ENDED for each in tasks)
            advance(ended - done, told)
            done = ended
            if ended == len(tasks) or not wait:
                break
            time.sleep(POLL_S)
    last = _show_tail(job, tasks)
    if wait and state != "done":
        raise ValueError(f"job {job.id}: {told}; the last line of a log: {last}")


def _told(tasks: Sequence[jobs.TaskStatus]) -> str:
    """Of one task its state and host, or why it waits; of an array the number in each state."""
    if len(tasks) == 1:
        [only] = tasks
        where = f" on {only.host}" if only.state == "running" and only.host else ""
        why = f" ({only.why})" if only.state == "waiting" and only.why else ""
        return f"{only.state}{where}{why}"
    states = [each.state for each in tasks]
    known = (*jobs.LIVE, *jobs.ENDED, "unknown")
    return ", ".join(f"{states.count(name)} {name}" for name in known if name in states)


def _show_state(state: str, message: str) -> None:
    """Give the task's run the job's state as its name, e.g. Waiting; its own end overrides it."""
    if state in jobs.LIVE:
        with get_client(sync_client=True) as client, suppress(*NO_SERVER):
            named = Running(name=state.capitalize(), message=message)
            client.set_task_run_state(UUID(task_run.get_id()), named, force=True)


def _new_lines(log: Path, offset: int) -> tuple[list[str], int]:
    """The whole lines of a file after an offset, and the offset after them."""
    try:
        with log.open("rb") as stream:
            stream.seek(offset)
            new = stream.read()
    except FileNotFoundError:
        return [], offset
    whole = new[: new.rfind(b"\n") + 1]
    # A progress bar writes its line again and again; the last state is the one to see.
    lines = [line.rpartition("\r")[2] for line in whole.decode(errors="replace").split("\n")]
    return [line for line in lines if line.strip()], offset + len(whole)


def _show_tail(job: jobs.Job, tasks: Sequence[jobs.TaskStatus]) -> str:
    """Show the end of the log of the first task that failed, or of the first; its last line."""
    bad = [each.task for each in tasks if each.state in ("failed", "lost")] or [0]
    lines, _ = _new_lines(job.folder / jobs.log_name(bad[0]), 0)
    rows = [f"{each.task}: {each.state}, code {each.code}" for each in tasks if each.task in bad]
    text = "\n".join([*rows[:TAIL_LINES], "", "```", *lines[-TAIL_LINES:], "```"])
    title = f"{job.kind} job {job.id}, {amount(len(tasks), 'task')}: the end of a log"
    show_markdown("slurm log", f"{job.folder}\n\n{text}", title, job.folder)
    return lines[-1] if lines else "none"
