"""Slurm's commands as functions: `sbatch`, `squeue`, `scancel`.

Accounting (`sacctmgr`) is asked for limits alone: many clusters have none. Sites wrap these
commands, so other lines may stand around their answers.
"""

import getpass
import os
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path

from gaitforge.flows.records.logs import short

TIMEOUT_S = 120.0
_PREFIX = re.compile(r"^\w+: (error|fatal): ")
_SUBMITTED = re.compile(r"(?:Submitted batch job )?(\d+)(?:(?:;| on cluster )(\S*))?")
_ROW = re.compile(r"(\d+)\|([^|]*)\|([A-Z_]+)\|([^|]*)\|([^|]*)\|(.*)")
# Errors of sbatch after which the controller may have the job; slurm_strerror(3).
_UNCLEAR = re.compile("timed out|Zero Bytes were transmitted", re.IGNORECASE)
# Refusals because of the number of jobs that this user, account or cluster has.
_TOO_MANY = re.compile(
    "job submit limit|MaxSubmitJob|SubmitJobLimit|MaxJobs|Slurm temporarily unable to accept job",
    re.IGNORECASE,
)
_FULL = re.compile("Slurm temporarily unable to accept job", re.IGNORECASE)
_MAX_TASKS = re.compile(r"max_array_tasks=(\d+)")
# Variables that change the commands' answers, but not those that name the controller.
_SETS_ANSWERS = re.compile("(SQUEUE|SCANCEL|SLURM(?!_CONF|_JWT))_")
_SITE = re.compile("SBATCH_(?!(ARRAY_INX|NO_REQUEUE|OPEN_MODE|SIGNAL|WAIT)$)")
LIVE = (
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"}
    | {"SIGNALING", "STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
    | {"SPECIAL_EXIT"}
)
"""States of a task that has not ended; squeue(1), "job state codes"."""

PASSED_ON = (
    {"HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "MUJOCO_GL", "OMP_NUM_THREADS"}
    | {"PATH", "SLURM_CONF", "TZ", "USER", "XDG_CACHE_HOME", "XDG_CONFIG_HOME"}
    | {
        "AWS_CONFIG_FILE",
        "AWS_ENDPOINT_URL",
        "AWS_PROFILE",
        "AWS_REGION",
        "AWS_SHARED_CREDENTIALS_FILE",
    }
)
"""The submitter's variables that a job gets, beside those named; no secret."""


@dataclass(frozen=True)
class QueueEntry:
    """A job, or one task of an array, as the controller knows it.

    Attributes:
        job: the id that sbatch gave; task: index in the array, 0 for a job that is none.
        state: Slurm's word, e.g. RUNNING; reason: why it waits.
        host, started: first node and start, in seconds since the epoch, of a task that runs.
    """

    job: str
    task: int
    state: str
    reason: str
    host: str = ""
    started: int | None = None

    @property
    def live(self) -> bool:
        """Whether it has not ended."""
        return self.state in LIVE


class UnclearSubmission(ValueError):
    """sbatch gave neither an id nor a refusal."""


class TooManyJobs(ValueError):
    """Slurm takes no more jobs, or tasks, of this user for now; nothing was submitted."""


@dataclass(frozen=True)
class Waits:
    """The jobs that a job waits for, by their ids.

    Attributes:
        all_of: jobs, and tasks of arrays as ID_TASK, that must all succeed first.
        task_by_task: arrays; each task waits for the one of the same number.
    """

    all_of: tuple[str, ...] = ()
    task_by_task: tuple[str, ...] = ()


NOTHING = Waits()


@dataclass(frozen=True)
class Limits:
    """What the controller's configuration and its accounting say about numbers of jobs.

    Attributes:
        array_tasks: most tasks of an array; below 2, there are no arrays.
        jobs: most jobs that the controller keeps, tasks of arrays and ended ones included; 0 for
            unknown.
        submitted: most jobs and tasks of this user that wait or run; 0 for unknown.
    """

    array_tasks: int = 1000
    jobs: int = 0
    submitted: int = 0


def limits(account: str = "", qos: str = "") -> Limits:
    """The cluster's limits, or Slurm's own defaults where it does not tell.

    Args:
        account, qos: of the jobs; empty for the user's own.
    """
    if shutil.which("scontrol") is None:
        return Limits()
    try:
        lines = _call("scontrol", "", "show", "config")
    except ValueError:  # sbatch will say what is wrong
        return Limits()
    values = {name.strip(): value.strip() for name, _, value in (x.partition("=") for x in lines)}
    sizes = [Limits().array_tasks]
    if values.get("MaxArraySize", "").isdigit():
        sizes = [int(values["MaxArraySize"])]
    # slurm.conf(5), SchedulerParameters: a lower limit than the largest index.
    if fewer := _MAX_TASKS.search(values.get("SchedulerParameters", "")):
        sizes.append(int(fewer[1]))
    most = values.get("MaxJobCount", "")
    accounting = values.get("AccountingStorageType", "").startswith("accounting_storage/slurmdb")
    submitted = _most_submitted(account, qos) if accounting else 0
    return Limits(min(sizes), int(most) if most.isdigit() else 0, submitted)


def _most_submitted(account: str, qos: str) -> int:
    """Most jobs of this user that may wait or run, as the accounting has it; 0 for unknown.

    Of several accounts the largest limit holds: which one Slurm charges is not asked.
    """
    user = getpass.getuser()
    mine = [f"account={account}"] if account else []
    answers = [_answers("assoc", "MaxSubmitJobs", f"user={user}", *mine)]
    if qos:
        answers.append(_answers("qos", "MaxSubmitJobsPerUser", f"name={qos}"))
    known = [max(map(int, rows)) for rows in answers if rows and all(map(str.isdigit, rows))]
    return min(known, default=0)


def _answers(kind: str, column: str, *where: str) -> list[str]:
    """A column of the accounting's records, "" where no limit is set; none without an answer."""
    if shutil.which("sacctmgr") is None:
        return []
    words = ["--noheader", "--parsable2", "show", kind, "where", *where, f"format={column}"]
    try:
        return _call("sacctmgr", "", *words)
    except ValueError:
        return []


def jobs_left(known: Limits) -> int | None:
    """How many more jobs the controller takes now; None where it does not tell."""
    left = []
    if known.jobs and (entries := _entries("--states=all")) is not None:
        left.append(known.jobs - 1 - entries)
    if known.submitted and (entries := _entries(f"--user={getpass.getuser()}")) is not None:
        left.append(known.submitted - entries)
    return max(0, min(left)) if left else None


def _entries(which: str) -> int | None:
    """How many jobs and tasks the queue has; None without an answer."""
    try:
        return len(_call("squeue", "", "--noheader", "--array", which, "--format=%i"))
    except ValueError:
        return None


def has_slurm() -> bool:
    """Whether this machine has Slurm's commands."""
    return shutil.which("squeue") is not None


def job_environment(names: Sequence[str] = (), **values: str) -> dict[str, str]:
    """The environment of a job: `PASSED_ON`, further names, and `values`.

    Raises:
        ValueError: a further name that is not set here.
    """
    absent = [name for name in names if name not in os.environ]
    if absent:
        raise ValueError(f"environment variable {absent[0]} is to be passed on but is not set here")
    kept = {*PASSED_ON, *names}
    return {name: value for name, value in os.environ.items() if name in kept} | values


def submit_command(script: Path, output: Path, waits: Waits = NOTHING) -> list[str]:
    """The command that submits a script; ValueError if Slurm could not write `output`.

    Args:
        output: file of what it prints; its name may hold %a, the task's index in the array.
        waits: what it waits for; a job or task is cancelled once one that it waits for has failed.
    """
    if "\\" in str(output):
        raise ValueError(f"Slurm cannot write logs to {output.parent}: rename what has a backslash")
    # In the folder's path a % stands for itself.
    log = output.with_name("x").as_posix().replace("%", "%%")[:-1] + output.name
    options = ["--parsable", "--export=ALL", f"--chdir={Path.cwd()}", f"--output={log}"]
    conditions = [f"afterok:{':'.join(waits.all_of)}"] if waits.all_of else []
    if waits.task_by_task:
        conditions.append(f"aftercorr:{':'.join(waits.task_by_task)}")
    if conditions:
        options += [f"--dependency={','.join(conditions)}", "--kill-on-invalid-dep=yes"]
    return ["sbatch", *options, str(script)]


def submit(command: Sequence[str], environment: Mapping[str, str]) -> tuple[str, str]:
    """Run a submit command; returns the job's id, and its cluster where sbatch names one.

    sbatch runs in `environment` and exports all of it. With the names in `--export` instead, every
    task would load the user's login environment first, which is slow and fails on some clusters.

    Raises:
        TooManyJobs: a limit of the number of jobs; nothing was submitted.
        ValueError: no Slurm here, or sbatch's own reason in one line; nothing was submitted.
        UnclearSubmission: neither an id nor a refusal; a job may be queued.
    """
    # What a site or user sets for sbatch itself holds here too, but not against the script.
    site_variables = {name: value for name, value in os.environ.items() if _SITE.match(name)}
    done = _submitted(command, {**site_variables, **environment})
    lines = map(str.strip, done.stdout.splitlines())
    ids = list(filter(None, map(_SUBMITTED.fullmatch, lines)))
    if ids and not done.returncode:
        return ids[-1][1], ids[-1][2] or ""
    if not ids and done.returncode and _TOO_MANY.search(done.stderr):
        raise TooManyJobs(_reason(done))
    # From 128 on a signal ended it.
    if not ids and 0 < done.returncode < 128 and not _UNCLEAR.search(done.stderr):
        raise ValueError(_reason(done))
    answer = short(f"{done.stdout} {_reason(done)}")
    raise UnclearSubmission(f"a job may be queued, but sbatch gave no id: {answer}")


def queue(jobs: Iterable[str], cluster: str = "") -> list[QueueEntry]:
    """The controller's entries of the jobs' tasks on a cluster; forgotten ones are left out.

    Raises:
        ValueError: no Slurm here, or the controller does not answer.
    """
    ids = ",".join(filter(None, jobs))
    if not ids:
        return []
    entries = []
    options = ["--noheader", "--array", "--states=all", f"--jobs={ids}"]
    lines = _call("squeue", cluster, *options, "--format=%F|%K|%T|%B|%S|%r")
    for row in filter(None, map(_ROW.fullmatch, lines)):
        job, index, state, host, start, reason = row.groups()
        task = int(index) if index.isdigit() else 0
        reason = "" if reason == "None" else reason
        started = None
        with suppress(ValueError):  # it has none
            started = int(datetime.fromisoformat(start).timestamp())
        entries.append(QueueEntry(job, task, state, reason, "" if host == "n/a" else host, started))
    return entries


def find_submitted(script: str) -> str:
    """The id of the job in the queue that runs a script, or empty; raises as `queue`."""
    rows = _call("squeue", "", "--noheader", "--states=all", "--format=%F|%o")
    return next((row.partition("|")[0] for row in rows if row.partition("|")[2] == script), "")


def cancel(job: str, cluster: str = "") -> None:
    """Cancel a job and all tasks of its array; one that has ended stays as it is.

    Raises:
        ValueError: no Slurm here, or scancel's own reason.
    """
    _call("scancel", cluster, job)


def _call(command: str, cluster: str, *options: str) -> list[str]:
    """The lines that a command prints; none of a single job that the controller has forgotten."""
    kept = {name: value for name, value in os.environ.items() if not _SETS_ANSWERS.match(name)}
    where = [f"--clusters={cluster}"] if cluster else []
    done = _run([command, *where, *options], {**kept, "SLURM_TIME_FORMAT": "standard"})
    if done.returncode and "Invalid job id" not in done.stderr:
        raise ValueError(_reason(done))
    return [line.strip() for line in done.stdout.splitlines()]


def _run(words: Sequence[str], environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    if shutil.which(words[0]) is None:
        raise ValueError(
            f"{words[0]} is not on this machine's PATH; run on a login node, or use --runner local"
        )
    try:
        return subprocess.run(
            words,
            check=False,
            env=environment,
            timeout=TIMEOUT_S,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        reason = f"no answer in {TIMEOUT_S:.0f} s; is the controller up?"
        return subprocess.CompletedProcess(words, -signal.SIGKILL, "", reason)


def _submitted(
    words: Sequence[str], environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """As `_run`, but ended once sbatch waits for the controller to take more jobs.

    It would try again for two minutes, in silence for us. Between its tries nothing is on the way.
    """
    if shutil.which(words[0]) is None:
        return _run(words, environment)  # raises
    process = subprocess.Popen(
        words,
        env=dict(environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # a site's wrapper is ended with the sbatch below it
    )
    kill = partial(os.killpg, process.pid, signal.SIGKILL)
    timer = threading.Timer(TIMEOUT_S, kill)
    timer.start()
    said: list[str] = []
    full = False
    output = ""
    assert process.stderr is not None
    assert process.stdout is not None
    try:
        for line in process.stderr:
            said.append(line)
            full = _FULL.search(line) is not None
            if full:
                kill()
                break
        output = "" if full else process.stdout.read()
        code = process.wait()
    except BaseException:
        kill()
        raise
    finally:
        late = timer.finished.is_set()
        timer.cancel()
        process.stdout.close()
        process.stderr.close()
    if full:
        return subprocess.CompletedProcess(words, 1, "", "".join(said))
    if late:
        said = [f"no answer in {TIMEOUT_S:.0f} s; is the controller up?"]
    return subprocess.CompletedProcess(words, code, output, "".join(said))


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    reasons = [_PREFIX.sub("", line) for line in done.stderr.splitlines() if line.strip()]
    return f"{done.args[0]}: {'; '.join(reasons) or f'exit code {done.returncode}'}"
