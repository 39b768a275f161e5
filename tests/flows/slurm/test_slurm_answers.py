"""What Slurm's commands answer where a site wraps them or an environment changes their form."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.flows.runners.slurm import commands
from gaitforge.flows.runners.slurm.commands import QueueEntry, cancel, queue, submit
from gaitforge.flows.runners.slurm.jobs import Job, find_jobs, task_states, write_job
from gaitforge.pipeline.cli.main import main

Commands = Callable[..., Path]
COLLECT = ["--set", "grid.parts=2", "--set", "grid.episodes_per_part=2", "--runner", "slurm"]
BANNER = "-----\n  Welcome to machine 3\n-----\n\nNo reservation for this job\n"
STARTED = "2026-01-31T12:00:00"


@pytest.fixture
def slurm_commands(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch):
    """Makes commands by their lines of bash; each call's words are a line of <name>.calls."""
    folder = tmp_path_factory.mktemp("bin")
    monkeypatch.setenv("PATH", str(folder), prepend=":")

    def make(**lines: str) -> Path:
        for name, text in lines.items():
            (folder / name).write_text(f'#!/bin/bash\necho "$*" >> {folder}/{name}.calls\n{text}\n')
            (folder / name).chmod(0o755)
        return folder

    make(sbatch="echo 1", squeue="", scancel="")
    return make


def calls(folder: Path, name: str) -> list[str]:
    path = folder / f"{name}.calls"
    return path.read_text().splitlines() if path.exists() else []


def gaitforge(*words: str | Path) -> int:
    return main([str(word) for word in words])


def printed(text: str) -> str:
    return f"printf '%b' {json.dumps(text)}"


@pytest.mark.parametrize(
    ("answer", "job"),
    [
        ("4242\n", ("4242", "")),
        ("4242;nautilus\n", ("4242", "nautilus")),
        ("4242;\n", ("4242", "")),
        (f"{BANNER}--> Verifying valid jobname...OK\n4243\n", ("4243", "")),
        ("Sun Jul  7 03:08:22 2019 [INFO4] auks_api: cred added\n4244;c\n", ("4244", "c")),
        ("Submitted batch job 4245\n", ("4245", "")),
        ("Submitted batch job 4245 on cluster nautilus\n", ("4245", "nautilus")),
        ("2026\n  77;c \\r\n\n bye\n", ("77", "c")),
        ("caf\\xe9\n5\n", ("5", "")),
    ],
)
def test_the_id_is_the_last_line_that_is_one(
    slurm_commands: Commands, answer: str, job: tuple[str, str]
) -> None:
    slurm_commands(sbatch=f"{printed(answer)}; echo 'sbatch: warning: 99' >&2")
    assert submit(["sbatch"], {"PATH": os.environ["PATH"]}) == job


UNCLEAR = {
    "empty": "",
    "a banner alone": printed(BANNER),
    "id on standard error": "echo 12 >&2",
    "an id and a failure": "echo 12; echo 'post-processing failed' >&2; exit 1",
    "a time-out": "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1",
    "killed": "kill -9 $$",
    "killed below a wrapper": "exit 137",
}


@pytest.mark.parametrize("sbatch", UNCLEAR.values(), ids=UNCLEAR)
def test_what_may_be_queued_is_not_submitted_again_until_the_user_says_so(
    slurm_commands: Commands, tmp_path: Path, capfd: pytest.CaptureFixture[str], sbatch: str
) -> None:
    store, folder = tmp_path / "legged.zarr", slurm_commands(sbatch=sbatch)
    assert gaitforge("collect", store, *COLLECT) == 2
    error = capfd.readouterr().err
    assert "a job may be queued, but sbatch gave no id" in error
    assert error.count("\n") == 1
    [job] = find_jobs(store)

    slurm_commands(sbatch="echo 13")
    assert gaitforge("collect", store, *COLLECT) == 2
    assert f"gaitforge jobs cancel {job.folder}" in capfd.readouterr().err
    assert len(calls(folder, "sbatch")) == 1
    assert gaitforge("jobs", "list", store) == 0
    assert "sbatch gave no id" in capfd.readouterr().out
    assert gaitforge("status", tmp_path / "legged.zarr") == 2, "there is no store yet"

    assert gaitforge("jobs", "cancel", job.folder) == 0
    assert gaitforge("collect", store, *COLLECT) == 0
    assert [job.id for job in find_jobs(store)] == ["", "13"]
    assert calls(folder, "scancel") == []


@pytest.mark.parametrize(
    ("sbatch", "code"), [("kill -INT $PPID; sleep 2; echo 7", 130), ("sleep 5; echo 7", 2)]
)
def test_an_sbatch_without_an_answer_may_have_submitted(
    slurm_commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sbatch: str,
    code: int,
) -> None:
    monkeypatch.setattr(commands, "TIMEOUT_S", 1.0)
    store, folder = tmp_path / "legged.zarr", slurm_commands(sbatch=sbatch)
    assert gaitforge("collect", store, *COLLECT) == code
    assert gaitforge("collect", store, *COLLECT) == 2
    assert len(calls(folder, "sbatch")) == 1


def test_a_job_without_an_id_is_found_in_the_queue_by_its_script(
    slurm_commands: Commands, tmp_path: Path
) -> None:
    store, folder = tmp_path / "legged.zarr", slurm_commands(sbatch="")
    script = f"$(tail -n 1 {folder}/sbatch.calls | sed 's/.* //')"
    slurm_commands(squeue=f'echo banner; echo "5|other"; echo "31|{script}"')
    assert gaitforge("collect", store, *COLLECT) == 0
    assert [job.id for job in find_jobs(store)] == ["31"]

    slurm_commands(squeue="exit 1")  # and later, once the controller answers
    other = tmp_path / "other.zarr"
    assert gaitforge("collect", other, *COLLECT) == 2
    slurm_commands(squeue=f'echo "32|{script}"')
    assert gaitforge("jobs", "cancel", other) == 0
    assert calls(folder, "scancel") == ["32"]


@pytest.mark.parametrize("code", [1, 127])
def test_what_sbatch_refuses_leaves_nothing(
    slurm_commands: Commands, tmp_path: Path, capfd: pytest.CaptureFixture[str], code: int
) -> None:
    lines = "sbatch: error: QOSMax\\nsbatch: error: Batch job submission failed\\n"
    slurm_commands(sbatch=f"{printed(BANNER)}; {printed(lines)} >&2; exit {code}")
    assert gaitforge("collect", tmp_path / "runs" / "legged.zarr", *COLLECT) == 2
    expected = "gaitforge: error: sbatch: QOSMax; Batch job submission failed\n"
    assert capfd.readouterr().err == expected
    assert list(tmp_path.iterdir()) == []


def test_sbatch_gets_a_sites_variables_but_none_that_override_the_script(
    slurm_commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = slurm_commands(sbatch=f"env > {tmp_path}/seen; echo 1")
    for name in ("ACCOUNT", "WAIT", "ARRAY_INX", "SIGNAL", "CLUSTERS"):
        monkeypatch.setenv(f"SBATCH_{name}", "x")
    submit(["sbatch"], {"PATH": f"{folder}:/usr/bin:/bin"})
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert {name for name in seen if name.startswith("SBATCH_")} == {
        "SBATCH_ACCOUNT",
        "SBATCH_CLUSTERS",
    }


# As squeue(1) has it: heading lines with clusters, and variables that change what is printed.
SQUEUE = f"""
echo "Welcome to the machine; it is 12:00|noon"
for word in "$@"; do [[ "$word" == --clusters=* ]] && echo "CLUSTER: ${{word#*=}}"; done
[ -z "$SQUEUE_FORMAT$SQUEUE_FORMAT2$SQUEUE_STATES$SLURM_CLUSTERS" ] || exit 3
case "$SLURM_TIME_FORMAT" in ""|standard) start={STARTED};; *) start="Tomorr 05:00";; esac
echo "JOBID|TASK|STATE|EXEC_HOST|START_TIME|REASON"
printf '%s\\n' "7|0|RUNNING|n0|$start|None" "7|1|PENDING|n/a|N/A|Resources|or Priority" ""
"""


@pytest.mark.parametrize("cluster", ["", "nautilus"])
def test_the_queue_is_read_whatever_the_environment_and_what_stands_around_its_rows(
    slurm_commands: Commands, monkeypatch: pytest.MonkeyPatch, cluster: str
) -> None:
    folder = slurm_commands(squeue=SQUEUE)
    for name in ("SQUEUE_FORMAT", "SQUEUE_FORMAT2", "SQUEUE_STATES", "SLURM_CLUSTERS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("SLURM_TIME_FORMAT", "relative")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm/here.conf")
    started = int(time.mktime(time.strptime(STARTED, "%Y-%m-%dT%H:%M:%S")))
    assert queue(["7"], cluster) == [
        QueueEntry("7", 0, "RUNNING", "", "n0", started),
        QueueEntry("7", 1, "PENDING", "Resources|or Priority"),
    ]
    cancel("7", cluster)
    where = ["--clusters=nautilus"] if cluster else []
    assert calls(folder, "scancel") == [" ".join([*where, "7"])]


def test_jobs_with_one_id_on_two_clusters_are_two(
    slurm_commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = slurm_commands(
        squeue=f'[[ "$*" == *--clusters=b* ]] && echo "7|0|RUNNING|n0|{STARTED}|None" || '
        f'echo "7|0|PENDING|n/a|N/A|None"'
    )
    draft = Job(tmp_path, "7", "collect", "", 1.7e9, "", ("sbatch",), (("p",),))
    for name in ("", "b"):
        write_job(replace(draft, folder=tmp_path / f"in-{name}", cluster=name))
    assert gaitforge("jobs", "list", tmp_path, "--json") == 0
    states = {job["cluster"]: job["state"] for job in json.loads(capfd.readouterr().out)}
    assert states == {"": "waiting", "b": "running"}
    monkeypatch.setattr("gaitforge.pipeline.cli.jobs._SETTLE_S", 0.0)
    assert gaitforge("jobs", "cancel", tmp_path / "in-b") == 0
    assert calls(folder, "scancel") == ["--clusters=b 7"]


@pytest.mark.parametrize(
    ("kind", "tasks", "name", "complaint"),
    [
        ("train", (("train a",), ("train b",)), "7_2", "job 7 has tasks 0-1, not 2"),
        ("compare", ((),), "7_0", "job 7 is no array and has no task 0; give 7"),
    ],
)
def test_a_task_that_a_job_has_not_is_not_cancelled(
    slurm_commands: Commands,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    kind: str,
    tasks: tuple[tuple[str, ...], ...],
    name: str,
    complaint: str,
) -> None:
    folder = slurm_commands()
    write_job(Job(tmp_path / "in", "7", kind, "", 1.7e9, "", ("sbatch",), tasks))
    monkeypatch.chdir(tmp_path)
    assert gaitforge("jobs", "cancel", name) == 2
    error = capfd.readouterr().err
    assert complaint in error
    assert error.count("\n") == 1
    assert calls(folder, "scancel") == []
    assert [path.name for path in (tmp_path / "in").iterdir()] == ["job.json"]


def test_a_job_that_a_cached_queue_does_not_list_yet_is_not_lost(
    slurm_commands: Commands, tmp_path: Path
) -> None:
    slurm_commands(squeue="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    old = Job(tmp_path, "7", "train", "", time.time() - 3600, "", ("sbatch",), ((),))
    assert task_states(old)[0].state == "lost"
    assert task_states(replace(old, submitted=time.time()))[0].state == "waiting"
