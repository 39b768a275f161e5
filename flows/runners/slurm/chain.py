"""Stages as Slurm jobs that wait for each other, and commands as jobs.

A stage that collects is an array over its parts where these can be named already; any other stage
is one job, which runs the command line that does it. A failed job's successors are cancelled;
submitting again submits what is neither done nor in a live job.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gaitforge.common.errors import amount, listed
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.commands import TooManyJobs, has_slurm, jobs_left, limits
from gaitforge.flows.runners.slurm.runner import TRAIN_REQUEUES, run_slurm, submit_work
from gaitforge.flows.runners.slurm.script import JobWork, SlurmSettings
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


def run_command_on_slurm(
    words: Sequence[str],
    name: str,
    out: Path,
    settings: SlurmSettings,
    after: Sequence[str] = (),
    stages: Sequence[str] = (),
) -> jobs.Job | str:
    """Submit a command line of gaitforge; returns the job, or with `dry_run` its script.

    Args:
        name: of the work; out: folder of its results; the job's folder lies in its `jobs`.
        after: ids of the jobs that must succeed first; stages: that it does, if several.

    Raises:
        ValueError: no Slurm, or its reason to refuse; nothing is left behind.
    """
    work = JobWork(f"gaitforge-{name.replace(' ', '-')}", 1, False, False, TRAIN_REQUEUES)
    folder = out.absolute() / "jobs"
    target = str(out.absolute())
    draft = jobs.Job(
        folder, "", name, target, 0.0, settings.partition, (), ((),), stages=tuple(stages)
    )
    return submit_work(draft, {jobs.WORDS: list(words)}, work, settings, after=after)


def submit_stages(
    out: Path,
    stages: Sequence[Stage],
    words: Sequence[str],
    settings: SlurmSettings,
    reporter: Reporter | None = None,
    only: Stage | None = None,
) -> list[jobs.Job | str]:
    """Submit what is neither done nor in a live job, each stage after those that it needs.

    Args:
        words: the command line of the stages; of several, it does one with `--stage NAME`.
        only: the one of them to submit; None for all.

    Returns:
        The new jobs, or with `dry_run` their scripts.

    Raises:
        ValueError: no Slurm, or its reason to refuse; then no new job is left. Or `only` needs a
            stage that is neither done nor in a live job.
    """
    _check_request(stages if only is None else (only,), settings)
    reporter = reporter or Silent()
    submission = _Submission(out, stages, words, settings, reporter, only)
    if settings.dry_run:
        return submission.submit(None)
    room = jobs_left(limits())
    reason = ""
    for _ in range(2):
        try:
            return submission.submit(room)
        except TooManyJobs as error:
            # A limit that only sbatch's refusal tells: as many as it took.
            room = submission.taken
            reason = str(error)
            if room == 0:
                break
    raise ValueError(
        f"{reason}; the cluster takes no more jobs of yours now, none of this command is left: "
        "submit again once some have ended, or give a smaller --size, or larger --parts-per-task"
    )


REST = "remaining stages"
"""Kind of a job that does several stages."""


@dataclass
class _Submission:
    """One call of `submit_stages`; `taken`: jobs and tasks that sbatch took in the last try."""

    out: Path
    stages: Sequence[Stage]
    words: Sequence[str]
    settings: SlurmSettings
    reporter: Reporter
    only: Stage | None = None
    taken: int = 0

    def submit(self, room: int | None) -> list[jobs.Job | str]:
        """Submit all; with `room`, in at most so many jobs and tasks. Else none is left."""
        all_new: list[jobs.Job | str] = []
        self.taken = 0
        try:
            self._submit(room, all_new)
        except BaseException:
            for job in all_new:
                if isinstance(job, jobs.Job):
                    self.taken += len(job.tasks)
                    jobs.cancel_job(job)
            raise
        return all_new

    def _submit(self, room: int | None, all_new: list[jobs.Job | str]) -> None:
        ids: dict[str, list[str]] = {}  # of the jobs of each stage that is not done
        live_by_stage = {} if self.settings.dry_run else live_jobs(self.out, self.stages)
        left = [stage for stage in self.stages if not stage.is_done(self.out)]
        wanted = (
            left if self.only is None else [stage for stage in left if stage.name == self.only.name]
        )
        open_stages = [stage for stage in wanted if not live_by_stage.get(stage.name)]
        array_tasks = _array_share(open_stages, left, room)
        for stage in left:
            live = live_by_stage.get(stage.name, [])
            if stage not in wanted:
                ids[stage.name] = [job.id for job in live]
                continue
            if self.only is not None and not self.settings.dry_run:
                _check_needed(stage, ids)
            waits = not ids.keys().isdisjoint(stage.after)
            after = sorted({number for name in stage.after for number in ids.get(name, ())})
            waiting = open_stages[open_stages.index(stage) :] if stage in open_stages else []
            used = sum(len(job.tasks) for job in all_new if isinstance(job, jobs.Job))
            if room is not None and len(waiting) > 1 and room - used <= 1:
                job_ids = sorted({number for group in ids.values() for number in group})
                all_new.append(self._rest(waiting, job_ids))
                return
            if isinstance(stage, CollectionStage) and not waits:
                settings = replace(self.settings, max_tasks=array_tasks)
                new = _array(stage, live, settings, self.reporter)
            elif live:
                new = []
            else:
                several = len(self.stages) > 1
                line = [*self.words, "--stage", stage.name] if several else self.words
                mine = _resources(stage, self.settings)
                new = [run_command_on_slurm(line, stage.name, self.out, mine, after)]
            all_new += new
            ids[stage.name] = [job.id for job in [*live, *new] if isinstance(job, jobs.Job)]

    def _rest(self, waiting: Sequence[Stage], after: Sequence[str]) -> jobs.Job | str:
        """One job for stages that do not fit, after all others; it does what is then left."""
        settings = self.settings
        if any(stage.trains for stage in waiting) and settings.nodes * max(1, settings.gpus) > 1:
            raise TooManyJobs(
                f"{amount(len(waiting), 'stage')} would have to share one job, which trainings of "
                "several processes cannot"
            )
        gpus = max(_resources(stage, settings).gpus for stage in waiting)
        on_one_node = replace(settings, nodes=1, gpus=gpus)
        names = tuple(stage.name for stage in waiting)
        self.reporter.say(f"the cluster takes no more jobs: one does {listed(names)}")
        return run_command_on_slurm(self.words, REST, self.out, on_one_node, after, names)


def _array_share(stages: Sequence[Stage], left: Sequence[Stage], room: int | None) -> int:
    """Most tasks of each array, so that the other stages find room, too; 0 for any number.

    Args:
        left: the stages that are not done; one that waits for none of them can be an array.
    """
    names = {stage.name for stage in left}
    arrays = sum(
        isinstance(stage, CollectionStage) and names.isdisjoint(stage.after) for stage in stages
    )
    if room is None or not arrays:
        return 0
    reserved = min(len(stages) - arrays, max(1, room // 2))
    return max(1, (room - reserved) // arrays)


def _check_needed(stage: Stage, live: Mapping[str, Sequence[str]]) -> None:
    """Raise ValueError if a stage needs one that no job will do.

    Args:
        live: name of each stage that is not done -> its live jobs.
    """
    for name in stage.after:
        if name in live and not live[name]:
            raise ValueError(f"{stage.name} needs {name}, which is neither done nor in a live job")


def _resources(stage: Stage, settings: SlurmSettings) -> SlurmSettings:
    """Resources of a stage: all for processes of torchrun, else one node and at most one GPU."""
    if stage.trains:
        return settings
    return replace(settings, nodes=1, gpus=min(settings.gpus, 0 if stage.device == "cpu" else 1))


def _check_request(stages: Sequence[Stage], settings: SlurmSettings) -> None:
    """Raise ValueError if a request asks for what none of the stages can use."""
    shared = any(stage.trains for stage in stages)
    if settings.nodes > 1 and not shared:
        raise ValueError("only a learner's training uses several nodes: nodes 1")
    if settings.gpus and not (shared or any(stage.device != "cpu" for stage in stages)):
        raise ValueError(
            "only a training with device=cuda, or a simulator on a GPU, uses GPUs: gpus 0"
        )
    arrays = settings.max_parallel or settings.parts_per_task
    if arrays and not any(isinstance(stage, CollectionStage) for stage in stages):
        raise ValueError("only a collection is an array: no --max-parallel or --parts-per-task")


def _array(
    stage: CollectionStage, live: Sequence[jobs.Job], settings: SlurmSettings, reporter: Reporter
) -> list[jobs.Job | str]:
    """An array over the parts of a stage that no live job makes."""
    if not all(job.is_array for job in live):
        return []  # one job makes all of them
    plan = stage.collection()
    one_node = replace(settings, nodes=1, gpus=min(settings.gpus, plan.processor == "cuda"))
    job = run_slurm(plan, stage.place, reporter, stage.parts, one_node)
    return [] if isinstance(job, list) else [job]


def _jobs_of(out: Path, stage: Stage) -> list[jobs.Job]:
    """A stage's jobs, oldest first: those that run its command, and arrays of its parts."""
    stage_jobs = [
        job for job in _jobs_in(out / "jobs") if job.kind == stage.name or stage.name in job.stages
    ]
    if not isinstance(stage, CollectionStage):
        return stage_jobs
    try:
        parts = set(stage.collection().part_ids())
    except ValueError:  # the policy that drives is missing, so no part has a name
        return stage_jobs
    arrays = _jobs_in(jobs.jobs_folder(stage.place))
    stage_jobs += [job for job in arrays if parts & {part for task in job.tasks for part in task}]
    return sorted(stage_jobs, key=lambda job: job.submitted)


def _jobs_in(folder: Path) -> list[jobs.Job]:
    return jobs.find_jobs(folder) if folder.is_dir() else []


def live_jobs(out: Path, stages: Sequence[Stage]) -> dict[str, list[jobs.Job]]:
    """The live jobs of every stage, with one call of Slurm."""
    by_stage = {stage.name: _jobs_of(out, stage) for stage in stages}
    every = [job for group in by_stage.values() for job in group]
    live = {job.folder for job, tasks in jobs.settled(every) if jobs.job_state(tasks) in _LIVE}
    return {name: [job for job in group if job.folder in live] for name, group in by_stage.items()}


def stage_states(out: Path, stages: Sequence[Stage]) -> list[StageState]:
    """How far every stage is, with one call of Slurm where there are jobs."""
    by_stage = [_jobs_of(out, stage) for stage in stages]
    every = [job for group in by_stage for job in group]
    try:
        states = {job.folder: jobs.job_state(tasks) for job, tasks in jobs.states_of(every)}
    except ValueError:  # the controller does not answer just now
        states = {job.folder: "unknown" for job in every}
    return [_stage_state(out, *pair, states) for pair in zip(stages, by_stage, strict=True)]


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
    if job and state == "lost" and not any(job.folder.glob("*.log")):
        state = "cancelled"  # a job before it failed, and Slurm has forgotten both
    if live or stage.place is None or not has_begun(stage.place):
        return StageState(stage, "missing" if state == "done" else state, job)
    works = status(stage.place).state == "working"
    return StageState(stage, "working" if works else "missing" if state == "done" else state, job)


def stage_rows(out: Path, stages: Sequence[Stage]) -> list[dict[str, str]]:
    """{"stage", "state", "job", "progress"} of every stage; empty where there is nothing to say."""
    return [
        {
            "stage": entry.stage.name,
            "state": entry.state,
            "job": entry.job.id if entry.job else "",
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

    Raises:
        ValueError: no Slurm, or its reason.
    """
    by_stage = live_jobs(out, stages)
    every = [job for stage in reversed(stages) for job in by_stage[stage.name]]
    live = list({job.folder: job for job in every}.values())  # one may do several stages
    for job in live:
        jobs.cancel_job(job)
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
            text = f"{name}: {entry.state}" + (f", job {entry.job.id}" if entry.job else "")
            if shown.get(name) != text:
                shown[name] = text
                said_s[name] = now
                say(text)
                if entry.job is not None and entry.state in ("failed", "lost"):
                    log, lines = jobs.log_end(entry.job, jobs.task_states(entry.job))
                    for line in (f"{log}:", *lines):
                        say(f"  {line}")
            elif entry.state == "running" and now - said_s[name] >= PROGRESS_S:
                said_s[name] = now
                if progress := _progress(entry.stage):
                    say(f"{text}, {progress}")
        if not any(entry.state in _LIVE for entry in states) or not has_slurm():
            return all(entry.state == "done" for entry in states)
        time.sleep(POLL_S)
