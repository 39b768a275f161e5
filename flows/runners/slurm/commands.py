"""Slurm's commands as functions: `sbatch`, `squeue`, `scancel`.

`sacct` is not used: many clusters have no accounting.
"""

import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

TIMEOUT_S = 120.0
_PREFIX = re.compile(r"^\w+: (error|fatal): ")
LIVE = (
    {"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "RESIZING"}
    | {"SIGNALING", "STAGE_OUT", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD"}
    | {"SPECIAL_EXIT"}
)
"""States of a task that has not ended; squeue(1), "job state codes"."""

PASSED_ON = (
    {"HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LOGNAME", "MUJOCO_GL", "OMP_NUM_THREADS"}
    | {"PATH", "SLURM_CONF", "TZ", "USER", "XDG_CACHE_HOME", "AWS_CONFIG_FILE"}
    | {"AWS_ENDPOINT_URL", "AWS_PROFILE", "AWS_REGION", "AWS_SHARED_CREDENTIALS_FILE"}
)
"""The submitter's variables that a job gets, beside those named; no secret."""


@dataclass(frozen=True)
class QueueEntry:
    """A job, or one task of an array, as the controller knows it.

    Attributes:
        job: the id that sbatch gave; task: index in the array, 0 for a job that is none.
        state: Slurm's word, e.g. RUNNING; reason: why it waits.
        host: its first node; started: seconds since the epoch; of a task that runs.
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


def has_slurm() -> bool:
    """Whether this machine has Slurm's commands."""
    return shutil.which("squeue") is not None


def job_environment(names: Sequence[str] = (), **values: str) -> dict[str, str]:
    """The environment of a job: `PASSED_ON`, further names, and given values.

    Raises:
        ValueError: a further name that is not set here.
    """
    absent = [name for name in names if name not in os.environ]
    if absent:
        raise ValueError(f"environment variable {absent[0]} is to be passed on but is not set here")
    wanted = {*PASSED_ON, *names}
    return {name: value for name, value in os.environ.items() if name in wanted} | values


def submit_command(script: Path, output: Path, after: Sequence[str] = ()) -> list[str]:
    """The command that submits a script.

    Args:
        output: file of what it prints; its name may hold %a, the task's index in the array.
        after: ids of jobs; it waits until all have succeeded, and is cancelled once one failed.
    """
    # In the folder's path a % stands for itself.
    log = output.with_name("x").as_posix().replace("%", "%%")[:-1] + output.name
    options = ["--parsable", "--export=ALL", f"--chdir={Path.cwd()}", f"--output={log}"]
    if after:
        options += [f"--dependency=afterok:{':'.join(after)}", "--kill-on-invalid-dep=yes"]
    return ["sbatch", *options, str(script)]


def submit(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Run a submit command; returns the job's id.

    sbatch runs in `environment` and exports all of it. With the names in `--export` instead, every
    task would load the user's login environment first, which is slow and fails on some clusters.

    Raises:
        ValueError: no Slurm here, or sbatch's own reason in one line; nothing was submitted.
    """
    # What a site or user sets for sbatch itself, such as SBATCH_ACCOUNT, holds here as well.
    own = {name: value for name, value in os.environ.items() if name.startswith("SBATCH_")}
    return _call(command, {**own, **environment}).split(";")[0]


def queue(jobs: Iterable[str]) -> list[QueueEntry]:
    """The controller's entries of the jobs' tasks; forgotten ones are left out.

    Raises:
        ValueError: no Slurm here, or the controller does not answer.
    """
    ids = ",".join(jobs)
    if not ids:
        return []
    words = ["squeue", "--noheader", "--array", "--states=all", f"--jobs={ids}"]
    try:
        lines = _call([*words, "--format=%F|%K|%T|%B|%S|%r"]).splitlines()
    except ValueError as error:
        if "Invalid job id" in str(error):  # said of a single job; of several they are left out
            return []
        raise
    found = []
    for line in lines:
        job, index, state, host, start, reason = line.split("|", 5)
        task = int(index) if index.isdigit() else 0
        reason = "" if reason == "None" else reason
        started = int(datetime.fromisoformat(start).timestamp()) if start[:1].isdigit() else None
        found.append(QueueEntry(job, task, state, reason, "" if host == "n/a" else host, started))
    return found


def cancel(job: str) -> None:
    """Cancel a job and all tasks of its array; one that has ended stays as it is.

    Raises:
        ValueError: no Slurm here, or scancel's own reason.
    """
    try:
        _call(["scancel", job])
    except ValueError as error:
        if "Invalid job id" not in str(error):
            raise


def _call(words: Sequence[str], environment: Mapping[str, str] | None = None) -> str:
    if shutil.which(words[0]) is None:
        raise ValueError(
            f"{words[0]} is not on this machine's PATH; run on a login node, or use --runner local"
        )
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, env=environment, timeout=TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise ValueError(
            f"{words[0]} gave no answer in {TIMEOUT_S:.0f} s; is the controller up?"
        ) from None
    if done.returncode:
        reasons = [_PREFIX.sub("", line) for line in done.stderr.splitlines() if line.strip()]
        why = "; ".join(reasons) or f"exit code {done.returncode}"
        raise ValueError(f"{words[0]}: {why}")
    return done.stdout.strip()
