"""Stages as Slurm jobs that wait for each other: their jobs and states, to follow and to cancel."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.commands import has_slurm
from gaitforge.flows.stages.stage import CollectionStage, CommandStage, Stage
from gaitforge.flows.stages.status import TrainingStatus, has_begun, status

POLL_S = 2.0
PROGRESS_S = 30.0
"""Seconds between two lines of a running stage's progress."""
_LIVE = (*jobs.LIVE, "unknown")


@dataclass(frozen=True)
class StageState:
    """How far a stage is.

    Attributes:
        state: "done", the state of its last job, "working" where it trains or collects without
            a job, or "missing".
        job: its last job.
    """

    stage: Stage
    state: str
    job: jobs.Job | None = None

    @property
    def job_id(self) -> str:
        """The id of its job, or of its task of an array as ID_TASK; empty without one."""
        task = None if self.job is None else self.job.task_of(self.stage.name)
        number = "" if self.job is None else self.job.id
        return number if task is None else f"{number}_{task}"


def _jobs_by_stage(out: Path, stages: Sequence[Stage]) -> dict[str, list[jobs.Job]]:
    """The jobs of every stage, oldest first: those that do it, and arrays of its parts."""
    here = _jobs_in(out / "jobs")
    by_stage: dict[str, list[jobs.Job]] = {}
    for stage in stages:
        name = stage.name
        by_stage[name] = [
            job
            for job in here
            if job.kind == name or name in job.stages or job.task_of(name) is not None
        ]
        if isinstance(stage, CollectionStage):
            both = [*by_stage[name], *_arrays_of_parts(stage)]
            by_stage[name] = sorted(both, key=lambda job: job.submitted)
    return by_stage


def _arrays_of_parts(stage: CollectionStage) -> list[jobs.Job]:
    """The arrays that make parts of a stage's plan."""
    try:
        parts = set(stage.collection().part_ids())
    except ValueError:  # the policy that drives is missing, so no part has a name
        return []
    arrays = _jobs_in(jobs.jobs_folder(stage.place))
    return [job for job in arrays if parts & {part for task in job.tasks for part in task}]


def _jobs_in(folder: Path) -> list[jobs.Job]:
    return jobs.find_jobs(folder) if folder.is_dir() else []


def distinct_jobs(groups: Iterable[Sequence[jobs.Job]]) -> list[jobs.Job]:
    """The jobs of several stages, each once."""
    return list({job.folder: job for group in groups for job in group}.values())


def _state_for(stage: Stage, job: jobs.Job, tasks: Sequence[jobs.TaskStatus]) -> str:
    """The state of a stage's job, or of its task of an array."""
    task = job.task_of(stage.name)
    return jobs.job_state(tasks if task is None else [tasks[task]])


def live_jobs(out: Path, stages: Sequence[Stage]) -> dict[str, list[jobs.Job]]:
    """The live jobs of every stage, with one call of Slurm."""
    by_stage = _jobs_by_stage(out, stages)
    tasks = {job.folder: tasks for job, tasks in jobs.settled(distinct_jobs(by_stage.values()))}
    return {
        stage.name: [
            job
            for job in by_stage[stage.name]
            if _state_for(stage, job, tasks[job.folder]) in _LIVE
        ]
        for stage in stages
    }


def stage_states(out: Path, stages: Sequence[Stage]) -> list[StageState]:
    """How far every stage is, with one call of Slurm where there are jobs."""
    by_stage = _jobs_by_stage(out, stages)
    try:
        seen = jobs.states_of(distinct_jobs(by_stage.values()))
    except ValueError:  # the controller does not answer just now
        seen = []
    tasks = {job.folder: tasks for job, tasks in seen}
    states = []
    for stage in stages:
        group = by_stage[stage.name]
        known = {
            job.folder: _state_for(stage, job, tasks[job.folder]) if tasks else "unknown"
            for job in group
        }
        states.append(_stage_state(out, stage, group, known))
    return states


def _stage_state(
    out: Path, stage: Stage, stage_jobs: Sequence[jobs.Job], states: Mapping[Path, str]
) -> StageState:
    live = [job for job in stage_jobs if states[job.folder] in _LIVE]
    job = (live or stage_jobs or [None])[-1]
    if stage.is_done(out):
        return StageState(stage, "done", job)
    state = states[job.folder] if job else "missing"
    if state == "done" and isinstance(stage, CommandStage):
        return StageState(stage, "done", job)  # no file says so
    if job and state == "lost" and not _has_log(job, stage):
        state = "cancelled"  # a job before it failed, and Slurm has forgotten both
    if live or stage.place is None or not has_begun(stage.place):
        return StageState(stage, "missing" if state == "done" else state, job)
    works = status(stage.place).state == "working"
    return StageState(stage, "working" if works else "missing" if state == "done" else state, job)


def _has_log(job: jobs.Job, stage: Stage) -> bool:
    """Whether the job, or the stage's task of it, has written anything."""
    task = job.task_of(stage.name)
    return any(job.folder.glob("*.log" if task is None else jobs.log_name(task)))


def stage_rows(out: Path, stages: Sequence[Stage]) -> list[dict[str, str]]:
    """{"stage", "state", "job", "progress"} of every stage; empty where there is nothing to say."""
    return [
        {
            "stage": entry.stage.name,
            "state": entry.state,
            "job": entry.job_id,
            "progress": "" if entry.state == "done" else _progress(entry.stage),
        }
        for entry in stage_states(out, stages)
    ]


def _progress(stage: Stage) -> str:
    """Parts or optimiser steps done, where the stage has begun."""
    if stage.place is None or not has_begun(stage.place):
        return ""
    progress = status(stage.place)
    if isinstance(progress, TrainingStatus):
        return f"{progress.step:,} of {progress.steps:,} steps"
    return f"{progress.done:,} of {progress.planned:,} parts"


def cancel_stages(out: Path, stages: Sequence[Stage]) -> list[jobs.Job]:
    """Cancel the live jobs of all stages, the last stages first; returns them.

    Of an array with other stages, only the tasks of these are cancelled.

    Raises:
        ValueError: no Slurm, or its reason.
    """
    by_stage = live_jobs(out, stages)
    names = {stage.name for stage in stages}
    live = distinct_jobs(by_stage[stage.name] for stage in reversed(stages))
    for job in live:
        of_stages = [] if job.makes_parts else [task[0] for task in job.tasks if task]
        if names.issuperset(of_stages):
            jobs.cancel_job(job)
            continue
        for stage in stages:
            if job in by_stage[stage.name]:
                jobs.cancel_job(job, job.task_of(stage.name))
    return live


def follow_stages(out: Path, stages: Sequence[Stage], say: Callable[[str], object]) -> bool:
    """Say every change of a stage's state until no job is live; whether all stages are done.

    Running stages also say their progress; a failure is followed by the end of the stage's log.
    """
    shown: dict[str, str] = {}
    said_s: dict[str, float] = {}
    while True:
        states = stage_states(out, stages)
        for entry in states:
            name = entry.stage.name
            now = time.monotonic()
            text = f"{name}: {entry.state}" + (f", job {entry.job_id}" if entry.job else "")
            if shown.get(name) != text:
                shown[name] = text
                said_s[name] = now
                say(text)
                if entry.job is not None and entry.state in ("failed", "lost"):
                    task = entry.job.task_of(name)
                    tasks = jobs.task_states(entry.job)
                    log, lines = jobs.log_end(entry.job, tasks if task is None else [tasks[task]])
                    for line in (f"{log}:", *lines):
                        say(f"  {line}")
            elif entry.state == "running" and now - said_s[name] >= PROGRESS_S:
                said_s[name] = now
                if progress := _progress(entry.stage):
                    say(f"{text}, {progress}")
        if not any(entry.state in _LIVE for entry in states) or not has_slurm():
            return all(entry.state == "done" for entry in states)
        time.sleep(POLL_S)
