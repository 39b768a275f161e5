"""Job folders: what a Slurm job needs and what it leaves.

    <store>.jobs/<name>/ or <run>/jobs/<name>/
      plan.json           the frozen plan, its task (legged, gym, …), and each job task's parts
      script.sh           what Slurm runs
      job.json            the job's id (none until sbatch gives it), how and when it was submitted
      task-<k>.log        output of task k, over all its runs
      exit/<k>.json       how task k ended
      exit/<k>-<n>.json   how its run n (from 0) ended, before it was queued again
      cancelled.json      there if `cancel_job` cancelled it; cancelled-<k>.json: task k alone

A task's state is Slurm's while Slurm knows it (for minutes), then that of its exit record.
"""

import math
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gaitforge.common.locks import file_system_time
from gaitforge.datasets.catalog.catalog import json_sha256
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.records.plans import read_fields
from gaitforge.flows.records.records import read_record, to_tree, write_record
from gaitforge.flows.runners.slurm.commands import (
    QueueEntry,
    cancel,
    find_submitted,
    has_slurm,
    queue,
)

PLAN = "plan.json"
SCRIPT = "script.sh"
JOB = "job.json"
EXIT = "exit"
CANCELLED = "cancelled.json"
COLLECT = "collect"
"""Kind of a job whose tasks make parts."""
WORDS = "words"
"""Key of the command line in the plan.json of a job that runs a command."""
_WORK = ("kind", "target", "tasks", WORDS, "task", "store", "plan")
"""Keys of a job's plan.json that decide what the job does."""
_ID = re.compile(r"\d{1,18}|")
_NUMBER = re.compile(r"\d+(_\d+)?")
_CLUSTER = re.compile(r"(?!-)[\w.-]{0,80}", re.ASCII)
POLL_S = 0.5
_QUEUE_PERIOD_S = 2.0
_LISTED_S = 60.0  # in which a new job may be missing in the queue, which some sites cache
_SEARCH_DEPTH = 4
_TAIL_LINES = 20

LIVE = ("waiting", "running")
ENDED = ("done", "failed", "cancelled", "lost")
"""Final task states. "lost": unknown to Slurm and without an exit record; "unknown": the same where
there is no Slurm or sbatch gave no id."""


@dataclass(frozen=True)
class Job:
    """A submitted job.

    Attributes:
        folder: of the job; id: sbatch's, or empty.
        kind: "collect" of parts, the name of a stage, or of an array of stages their first word.
        target: the store or run that it makes; submitted: seconds since the epoch; command: the
            call of sbatch.
        tasks: the parts of each task, or the stage of each task of an array of stages; else one
            empty task.
        cluster: empty for this machine's own.
        stages: of a job that does several, one after another.
    """

    folder: Path
    id: str
    kind: str
    target: str
    submitted: float
    partition: str
    command: tuple[str, ...]
    tasks: tuple[tuple[str, ...], ...]
    cluster: str = ""
    stages: tuple[str, ...] = ()

    @property
    def makes_parts(self) -> bool:
        """Whether its tasks make parts of a store."""
        return self.kind == COLLECT

    @property
    def is_array(self) -> bool:
        """Whether its tasks are those of an array."""
        return self.makes_parts or len(self.tasks) > 1

    def task_of(self, stage: str) -> int | None:
        """The task that does a stage, of an array of stages; else None."""
        names = [] if self.makes_parts else list(self.tasks)
        return names.index((stage,)) if (stage,) in names else None


@dataclass(frozen=True)
class TaskStatus:
    """The state of one task of a job.

    Attributes:
        state: "waiting", "running", "unknown" or one of `ENDED`; why: Slurm's reason or state.
        code: exit code of its last run, if that left a record; restarts: runs before that one.
        started, ended: of that run, seconds since the epoch.
    """

    task: int
    state: str
    why: str = ""
    code: int | None = None
    restarts: int = 0
    host: str = ""
    started: int | None = None
    ended: int | None = None
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Exit:
    """How a run of a task ended, as its script writes it.

    Attributes:
        told: the signal that told it to end; note: why it was not queued again.
    """

    code: int
    restarts: int
    host: str
    started: int
    ended: int
    told: str = ""
    note: str = ""


def log_name(task: int | str) -> str:
    """The file of a task's output in a job folder."""
    return f"task-{task}.log"


def new_folder(place: Path, kind: str) -> Path:
    """Make the folder of a new job under `place`, named after kind and time.

    Raises:
        ValueError: the folder cannot be made.
    """
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}"
    for number in range(1000):
        folder = place.absolute() / (f"{name}-{number}" if number else name)
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise ValueError(f"cannot make the job folder {folder}: {error.strerror}") from None
    raise ValueError(f"{place} holds a thousand jobs of this second")


def work_sha256(plan: Mapping[str, Any]) -> str:
    """SHA-256 of what a job's plan.json says to do, whatever commit and time it records."""
    return json_sha256(to_tree({name: plan[name] for name in _WORK if name in plan}))


def read_work(folder: Path, sha256: str) -> dict[str, Any]:
    """A job's plan.json: data, which may name any command, so its hash has to come from elsewhere.

    Args:
        sha256: `work_sha256` of the plan, as the script has it that the submission wrote.

    Raises:
        ValueError: no job folder, or a plan of another hash.
    """
    plan = read_record(folder / PLAN)
    if not isinstance(plan, dict) or not {"kind", "target", "tasks"} <= plan.keys():
        raise ValueError(f"{folder} is no job folder: it holds no {PLAN} of a job")
    if work_sha256(plan) != sha256:
        raise ValueError(
            f"{folder / PLAN} is not what was submitted: a job is run by the script that its "
            f"submission wrote, with --sha256 of its plan, got {sha256 or 'none'}"
        )
    return plan


def write_job(job: Job) -> None:
    """Keep the record of a job that was submitted."""
    record = {name: value for name, value in vars(job).items() if name != "folder"}
    write_record(job.folder / JOB, record)


def read_job(folder: Path) -> Job:
    """The job of a folder; an id that sbatch did not give is looked for in the queue.

    Raises:
        ValueError: there is none.
    """
    record = read_record(folder / JOB)
    if record is None:
        raise ValueError(f"{folder} is no job folder: it holds no {JOB}")
    job = read_fields(Job, record, folder / JOB, folder=folder)
    if not job.tasks or not job.command or not math.isfinite(job.submitted):
        raise ValueError(f"{folder / JOB} is damaged: it needs tasks, a command, and a time")
    # They become arguments of squeue and scancel, which must not be options.
    if not _ID.fullmatch(job.id) or not _CLUSTER.fullmatch(job.cluster):
        raise ValueError(
            f"{folder / JOB} is damaged: job {job.id[:40]!r} of cluster {job.cluster[:40]!r}"
        )
    if not job.id and has_slurm():
        with suppress(ValueError):  # the controller does not answer, or another user asks
            job = replace(job, id=find_submitted(job.command[-1]))
            if job.id:
                write_job(job)
    return job


def jobs_folder(store_path: Path | str) -> Path:
    """The folder of a store's jobs: beside it, or beside a remote store's mirror."""
    records = records_folder(store_path)
    return records.with_name(records.name.removesuffix(".records") + ".jobs")


def find_jobs(place: Path) -> list[Job]:
    """The jobs below a folder, or those of a store or run, oldest first.

    Raises:
        ValueError: no such folder.
    """
    address = place
    place = place.absolute()
    if (place / JOB).is_file():
        return [read_job(place)]
    beside = place.with_name(f"{place.name}.jobs")
    if not place.is_dir() and not beside.is_dir():
        raise ValueError(f"no folder {address}; give a store, a run, or the folder of a job")
    folders = [folder for top in (place, beside) for folder in _job_folders(top)]
    return sorted((read_job(folder) for folder in folders), key=lambda job: job.submitted)


def is_number(name: str) -> bool:
    """Whether a name is an id, or a task's ID_TASK, and not a folder."""
    return _NUMBER.fullmatch(name) is not None and not Path(name).exists()


def find_job(name: str, below: Path = Path()) -> Job:
    """The job of a folder, or of an id, or of a task's ID_TASK, among those below a folder.

    Raises:
        ValueError: there is none.
    """
    if is_number(name):
        matches = [job for job in find_jobs(below) if job.id == name.partition("_")[0]]
        if not matches:
            raise ValueError(f"no job {name} below {below.absolute()}; give its folder")
        return matches[-1]
    jobs = find_jobs(Path(name))
    if len(jobs) != 1:
        names = ", ".join(job.folder.name for job in jobs) or "none"
        raise ValueError(f"{name} is not one job but has {len(jobs)}: {names}")
    return jobs[0]


def _job_folders(top: Path) -> Iterator[Path]:
    depth = len(top.parts)
    for folder, names, files in os.walk(top):
        if JOB in files:
            names.clear()
            yield Path(folder)
        elif "zarr.json" in files or len(Path(folder).parts) - depth >= _SEARCH_DEPTH:
            names.clear()
        else:
            names[:] = sorted(name for name in names if not name.startswith("."))


def task_states(job: Job) -> list[TaskStatus]:
    """The states of the job's tasks, in order; see `states_of`."""
    return states_of([job])[0][1]


def states_of(jobs: Sequence[Job]) -> list[tuple[Job, list[TaskStatus]]]:
    """Every job with the states of its tasks, in order, with one call of Slurm for each cluster.

    Raises:
        ValueError: Slurm is here but does not answer.
    """
    entries = {
        (cluster, entry.job, entry.task): entry
        for cluster in ({job.cluster for job in jobs} if has_slurm() else ())
        for entry in queue((job.id for job in jobs if job.cluster == cluster), cluster)
    }
    tasks = ([_task_state(job, task, entries) for task in range(len(job.tasks))] for job in jobs)
    return list(zip(jobs, tasks, strict=True))


def settled(jobs: Sequence[Job]) -> list[tuple[Job, list[TaskStatus]]]:
    """States as `states_of`; ValueError where a job without an id may be queued."""
    for job, tasks in (pairs := states_of(jobs)):
        if not job.id and job_state(tasks) == "unknown":
            forget = f"gaitforge jobs cancel {shlex.quote(str(job.folder))}"
            raise ValueError(f"a job without an id may be queued: see squeue, then `{forget}`")
    return pairs


def _task_state(
    job: Job, task: int, entries: Mapping[tuple[str, str, int], QueueEntry]
) -> TaskStatus:
    entry = entries.get((job.cluster, job.id, task))
    ended = _read_exit(job.folder / EXIT / f"{task}.json")
    age_s = file_system_time(job.folder) - job.submitted  # not by this host's clock
    state = "waiting" if age_s < _LISTED_S else "lost"
    state, why = (state, "") if job.id else ("unknown", "sbatch gave no id")
    status = TaskStatus(task, state if has_slurm() else "unknown", why, parts=job.tasks[task])
    record = ended or _last_restart(job.folder, task)
    if record is not None:
        names = ("code", "restarts", "host", "started", "ended")
        status = replace(status, **{name: getattr(record, name) for name in names})
    slurms = "" if entry is None else entry.state
    if entry is not None and entry.live:
        waits = slurms in ("PENDING", "CONFIGURING") or slurms.startswith("REQUEUE")
        state, why = ("waiting", entry.reason) if waits else ("running", slurms)
        now = {"host": entry.host, "started": entry.started, "ended": None}
        return replace(status, state=state, why=why, **({} if waits else now))
    if ended is not None and ended.code == 0:
        return replace(status, state="done")
    note = "" if ended is None else ended.note
    # What failed before it was told to end has failed, whatever was cancelled later.
    if ended is not None and not ended.told:
        return replace(status, state="failed", why=note)
    cancelled = (job.folder / CANCELLED, job.folder / _cancelled_task(task))
    if slurms == "CANCELLED" or any(path.exists() for path in cancelled):
        return replace(status, state="cancelled", why=note)
    if ended is not None or entry is not None:  # without a record, its script was killed
        return replace(status, state="failed", why=note or ("" if ended else slurms))
    return status


def _read_exit(path: Path) -> _Exit | None:
    """The record of how a run of a task ended; ValueError if it is damaged."""
    record = read_record(path)
    return None if record is None else read_fields(_Exit, record, path)


def _last_restart(folder: Path, task: int) -> _Exit | None:
    records = [_read_exit(path) for path in (folder / EXIT).glob(f"{task}-*.json")]
    return max((r for r in records if r), key=lambda record: record.restarts, default=None)


def job_state(tasks: Sequence[TaskStatus]) -> str:
    """A job's state: the first in the order below that any task has."""
    states = {task.state for task in tasks}
    order = ("running", "waiting", "unknown", "lost", "failed", "cancelled", "done")
    return next(state for state in order if state in states)


def cancel_job(job: Job, task: int | None = None) -> None:
    """Cancel a job and record that; one without an id is only recorded as cancelled.

    Args:
        task: of an array, the only one to cancel.

    Raises:
        ValueError: no Slurm here, or its reason.
    """
    if job.id:
        cancel(job.id if task is None else f"{job.id}_{task}", job.cluster)
    name = CANCELLED if task is None else _cancelled_task(task)
    write_record(job.folder / name, {"time": time.time()})


def _cancelled_task(task: int) -> str:
    """The name of the file that says that one task was cancelled."""
    return f"cancelled-{task}.json"


def live_jobs(place: Path, kind: str) -> list[Job]:
    """The jobs of a kind in a folder of jobs that have not ended."""
    group = [job for job in find_jobs(place) if job.kind == kind] if place.is_dir() else []
    return [job for job, tasks in settled(group) if job_state(tasks) in LIVE]


def parts_in_work(place: Path) -> set[str]:
    """The parts of the live tasks of a folder's jobs."""
    if not place.is_dir():
        return set()
    tasks = [task for _, states in settled(find_jobs(place)) for task in states]
    return {part for task in tasks if task.state in LIVE for part in task.parts}


def follow(job: Job) -> Iterator[tuple[int, str]]:
    """The lines of the job's logs as they grow, each with its task, until all tasks have ended."""
    offsets = [0] * len(job.tasks)
    ended = False
    asked = -_QUEUE_PERIOD_S
    while not ended:
        if time.monotonic() - asked >= _QUEUE_PERIOD_S:
            asked = time.monotonic()
            ended = all(task.state in ENDED for task in task_states(job))
        for task, offset in enumerate(offsets):
            lines, offsets[task] = new_lines(job.folder / log_name(task), offset, ended)
            for line in lines:
                yield task, line
        if not ended:
            time.sleep(POLL_S)


def new_lines(log: Path, offset: int, ended: bool = False) -> tuple[list[str], int]:
    """The lines of a log after an offset, and the offset after them; none without the file.

    A line without its end is left for later unless the work has ended.
    """
    try:
        with log.open("rb") as stream:
            stream.seek(offset)
            new = stream.read()
    except FileNotFoundError:
        return [], offset
    size = len(new) if ended else new.rfind(b"\n") + 1
    lines = new[:size].removesuffix(b"\n").split(b"\n") if size else []
    return [line.decode(errors="replace") for line in lines], offset + size


def log_end(job: Job, tasks: Sequence[TaskStatus]) -> tuple[Path, list[str]]:
    """The log of the first of a job's tasks that failed, or else of the first; its last lines."""
    failed = [task.task for task in tasks if task.state in ("failed", "lost")]
    log = job.folder / log_name([*failed, tasks[0].task][0])
    return log, new_lines(log, 0, ended=True)[0][-_TAIL_LINES:]
