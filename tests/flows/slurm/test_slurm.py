"""Jobs on a real Slurm: what is killed, cancelled or out of time is made once and ends the same."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.records.part_records import read_active, records_folder
from gaitforge.flows.runners.dask_clusters import CONFIG, DaskSettings, dask_client
from gaitforge.flows.runners.slurm.jobs import Job, find_jobs, job_state, task_states
from gaitforge.pipeline.cli.main import main
from tests.flows.processes import ROOT, read_log
from tests.flows.slurm_cluster import PARTITION, SlurmCluster, slurm
from tests.learners.making import make_selection

__all__ = ["slurm"]  # the fixture

SECRET = "hunter2-not-for-any-file"
PATIENCE_S = 120.0
COLLECTION = ["--terrain", "flat", "--skill", "stand,run", "--level", "2", "--robots", "4"]
COLLECTION += ["--set", "grid.episodes_per_part=16"]
JOBS = ["--cpus", "1", "--max-parallel", "2"]
MODEL = '{"hidden_dim":16,"decoder_dim":8,"n_layers":1,"n_modes":2,"context_len":8}'
TRAINING = {
    "model_overrides": MODEL,
    "steps": 200,
    "batch_size": 4,
    "window_len": 16,
    "checkpoint_every": 70,
    "validation_every": 100,
    "history_every": 10,
    "held_out_fraction": 0.3,
    "threads": 1,
}
TRAIN = [word for name, value in TRAINING.items() for word in ("--set", f"config.{name}={value}")]


@pytest.fixture
def cluster(slurm: SlurmCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlurmCluster]:
    """The cluster, asked by this process too; no job of a test outlives it."""
    for name, value in slurm.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    yield slurm
    slurm.call("scancel", "--user", slurm.call("id", "-un"))
    until(lambda: not slurm.call("squeue", "--noheader"), "the queue is empty")


def until(reached: Callable[[], Any], what: str, job: Job | None = None) -> Any:
    """The first true value of `reached`; a failure tells what the job says of itself."""
    deadline = time.monotonic() + PATIENCE_S
    while not (value := reached()):
        if time.monotonic() > deadline:
            told = f"; {states(job)}\n{written(job.folder)}" if job else ""
            pytest.fail(f"never came: {what}{told}")
        time.sleep(0.02)
    return value


def gaitforge(*arguments: str | Path) -> int:
    """`main` in this process, as a shell would see it end."""
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as end:
        return int(end.code or 0)


def collect(store: Path, parts: int, *more: str) -> int:
    """Submit a collection of some parts."""
    plan = [*COLLECTION, *JOBS, "--set", f"grid.parts={parts}"]
    return gaitforge("collect", store, "--runner", "slurm", *plan, *more)


def only_job(place: Path) -> Job:
    """The one job of a store or run."""
    (job,) = find_jobs(place)
    return job


def states(job: Job) -> list[str]:
    return [task.state for task in task_states(job)]


def worker(store: Path, part: str) -> int:
    """The process that makes a part, as soon as there is one."""

    def pid() -> int:
        beats = read_active(records_folder(store))
        return next((beat.pid for beat in beats if beat.part == part), 0)

    return until(pid, f"a process makes {part}")


def finish(cluster: SlurmCluster, job: Job, *requeued: int) -> None:
    """Start the requeued tasks at once and wait for the whole job."""
    for task in requeued:
        until(lambda task=task: states(job)[task] == "waiting", f"task {task} waits", job)
        cluster.start_soon(f"{job.id}_{task}" if job.is_array else job.id)
    until(lambda: job_state(task_states(job)) not in ("waiting", "running"), "the job ends", job)


def written(folder: Path) -> str:
    """All that a job folder holds."""
    return "".join(path.read_text() for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
def test_dasks_workers_are_jobs_that_come_and_go_with_the_work(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store = tmp_path / "legged.zarr"
    workers = ["--dask-jobqueue", "slurm", "--workers", "2", "--adaptive"]
    plan = [*COLLECTION, "--worker-memory", "1GB", "--set", "grid.parts=3"]
    assert gaitforge("collect", store, "--runner", "dask", *workers, *plan) == 0
    assert len(open_store(store).parts()) == 3
    until(lambda: not cluster.call("squeue", "--noheader"), "the workers' jobs end")


@pytest.mark.slow
def test_dasks_worker_whose_job_ended_is_replaced(
    cluster: SlurmCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(CONFIG, "distributed.deploy.lost-worker-timeout", "1s")
    with dask_client(DaskSettings(workers=1, jobqueue="slurm", memory="1GB")) as client:
        client.wait_for_workers(1, timeout=60)
        cluster.call("scancel", "--me")
        until(lambda: not client.ncores(), "the worker leaves")
        assert client.submit(abs, -1).result(timeout=60) == 1


@pytest.mark.slow
def test_a_killed_part_is_queued_again_and_every_part_is_committed_once(
    cluster: SlurmCluster, tmp_path: Path
) -> None:
    store = tmp_path / "legged.zarr"
    assert collect(store, 3) == 0
    job = only_job(store)
    assert [len(parts) for parts in job.tasks] == [1, 1, 1]
    ((part,)) = job.tasks[1]
    pid = worker(store, part)
    seen = Path(f"/proc/{pid}/environ").read_text()
    os.kill(pid, signal.SIGKILL)
    finish(cluster, job, 1)

    tasks = task_states(job)
    assert [task.state for task in tasks] == ["done"] * 3
    assert [task.restarts for task in tasks] == [0, 1, 0]
    first = json.loads((job.folder / "exit" / "1-0.json").read_text())
    assert (first["code"], first["restarts"]) == (137, 0)
    made = open_store(store)
    assert sorted(made.parts()) == sorted(part for parts in job.tasks for part in parts)
    assert made.verify() == []
    for name in made.parts():
        events = [line for line in log_lines(store) if line.get("part") == name]
        assert [line["event"] for line in events].count("part committed") == 1, name

    assert SECRET not in seen
    assert SECRET not in written(job.folder) + written(records_folder(store))
    assert f"PATH={os.environ['PATH']}" in seen
    # Nothing is left to do, and nothing is submitted.
    assert collect(store, 3) == 0
    assert only_job(store).id == job.id


APPTAINER = """#!/bin/sh
echo "apptainer $* by $LAB with $TOKEN"
while [ "$1" != python ]; do shift; done
shift
PYTHONPATH={root} exec {python} "$@"
"""


@pytest.mark.slow
def test_a_task_runs_in_the_environment_that_was_asked_for(
    cluster: SlurmCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    program = tmp_path / "bin" / "apptainer"  # a stand-in for the real one, which is not here
    program.parent.mkdir()
    program.write_text(APPTAINER.format(root=ROOT, python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    secret = tmp_path / "lab.env"
    secret.write_text("TOKEN='of the lab'\n")
    store, run = tmp_path / "legged.zarr", tmp_path / "run"
    words = ["--setup", "export LAB=arm", "--env-file", str(secret), "--mail", "me@lab.example"]
    assert collect(store, 1, *words, "--container", "apptainer:lab.sif") == 0
    job = only_job(store)
    after = ["--runner", "slurm", "--after", str(store), "--setup", "echo no; false"]
    assert train(store, run, *after) == 0, "its data are still to be collected"
    assert task_states(only_job(run))[0].why == "Dependency"

    until(lambda: states(job) == ["running"], "it runs", job)
    capfd.readouterr()
    assert gaitforge("jobs", "list", store, "--json") == 0
    [record] = json.loads(capfd.readouterr().out)
    assert record["tasks"][0]["host"]
    assert time.time() - record["tasks"][0]["started"] < PATIENCE_S
    finish(cluster, job)
    log = (job.folder / "task-0.log").read_text()
    mount = f'--mount type=bind,"src={tmp_path}","dst={tmp_path}"'
    assert f"apptainer exec {mount} lab.sif python -m gaitforge" in log
    assert "by arm with of the lab" in log
    assert "of the lab" not in written(job.folder).replace(log, "")
    assert states(job) == ["done"]
    assert "mail-user=me@lab.example" in (job.folder / "script.sh").read_text()

    failed = only_job(run)
    finish(cluster, failed)
    assert gaitforge("jobs", "cancel", run) == 0
    [task] = task_states(failed)
    assert (task.state, task.code) == ("failed", 1), "a cancel later changes nothing"
    assert "--setup failed" in (failed.folder / "task-0.log").read_text()
    capfd.readouterr()
    assert train(store, tmp_path / "next", "--runner", "slurm", "--after", str(run)) == 2
    assert "its last job is failed" in capfd.readouterr().err


def log_lines(store: Path) -> list[dict[str, Any]]:
    return read_log(records_folder(store))


@pytest.mark.slow
def test_after_a_killed_step_and_a_cancelled_job_the_same_command_makes_the_rest(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "legged.zarr"
    assert collect(store, 3) == 0
    job = only_job(store)
    collector = worker(store, job.tasks[0][0])
    # Both: this Slurm does not find processes whose parent is gone.
    for pid in (parent(collector), collector):
        os.kill(pid, signal.SIGKILL)
    until(lambda: states(job)[0] == "failed", "the killed step has failed")
    assert not (job.folder / "exit" / "0.json").exists(), "nobody was left to write a record"

    worker(store, job.tasks[2][0])
    assert gaitforge("jobs", "cancel", job.folder) == 0
    assert states(job)[2] == "cancelled"
    ended = json.loads((job.folder / "exit" / "2.json").read_text())
    assert (ended["code"], ended["told"]) == (143, "end")
    torn = open_store(store)
    assert torn.verify() == []
    assert len(torn.parts()) < 3

    capfd.readouterr()
    assert collect(store, 3, "--json") == 0
    record = json.loads(capfd.readouterr().out)
    again = find_jobs(store)[-1]
    assert record["id"] == again.id
    given = {part for parts in again.tasks for part in parts}
    assert given == {part for parts in job.tasks for part in parts} - set(torn.parts())
    # While it works, nobody else is given the same parts.
    assert collect(store, 3) == 0
    assert find_jobs(store)[-1].id == again.id
    assert gaitforge("jobs", "follow", again.folder) == 0
    followed = capfd.readouterr().out
    assert f"job {again.id}: done" in followed
    assert "[0] collect" in followed
    assert len(open_store(store).parts()) == 3
    assert open_store(store).verify() == []


def parent(pid: int) -> int:
    """The process that started another one."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[1])


def history(run: Path) -> list[tuple[Any, ...]]:
    """Steps and losses of a run, without its times."""
    lines = map(json.loads, (run / "history.jsonl").read_text().splitlines())
    return [(line["step"], line["loss"], line["validation_loss"], line["lr"]) for line in lines]


def train(store: Path, run: Path, *more: str) -> int:
    return gaitforge("train", store, "--out", run, "--model", "fcnet", *TRAIN, *more)


@pytest.fixture(scope="module")
def walks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store to train on."""
    path = tmp_path_factory.mktemp("walks") / "walks.zarr"
    make_selection(path)
    return path


@pytest.fixture(scope="module")
def uninterrupted(walks: Path) -> list[tuple[Any, ...]]:
    """The history of the training in this process, without Slurm."""
    run = walks.parent / "whole"
    assert train(walks, run) == 0
    return history(run)


def until_trained(run: Path, steps: int) -> None:
    lines = run / "history.jsonl"
    every = TRAINING["history_every"]
    until(lambda: lines.exists() and lines.read_text().count("\n") * every >= steps, "it trains")


def trainers(cluster: SlurmCluster, job: Job, steps: int) -> list[int]:
    """The training processes of a job, once it has made some steps."""
    until_trained(Path(job.target), steps)
    commands = {pid: command_line(pid) for pid in cluster.pids()}
    # torchrun and srun name the program too.
    starters = (b"torch.distributed.run", b"srun")
    return [
        pid
        for pid, words in commands.items()
        if b"-m\0gaitforge\0" in words and not any(starter in words for starter in starters)
    ]


def until_told(pid: int, job: Job) -> None:
    """Wait for SIGTERM at a process that SIGSTOP holds, and let it go on."""

    def pending() -> bool:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        (mask,) = [line.split()[1] for line in lines if line.startswith("ShdPnd:")]
        return bool(int(mask, 16) & 1 << (signal.SIGTERM - 1))

    until(pending, f"SIGTERM at {pid}", job)
    os.kill(pid, signal.SIGCONT)


def tell_of_limit(cluster: SlurmCluster, job: Job, pid: int) -> None:
    """Slurm's signal before the limit; held meanwhile, the training cannot end before it comes."""
    os.kill(pid, signal.SIGSTOP)
    cluster.call("scancel", "--signal=USR2", "--batch", job.id)
    until_told(pid, job)


def command_line(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.long
def test_a_training_that_reaches_its_limit_saves_and_ends_as_if_never_stopped(
    cluster: SlurmCluster,
    tmp_path: Path,
    walks: Path,
    uninterrupted: list[tuple[Any, ...]],
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = tmp_path / "run"
    # Slurm's shortest limit, at which it looks every 30 s: the signal comes after 20 to 50.
    limits = ["--cpus", "1", "--nodes", "1", "--gpus", "0", "--time", "1", "--grace", "10"]
    assert train(walks, run, "--runner", "slurm", *limits) == 0
    job = only_job(run)
    (pid,) = trainers(cluster, job, steps=50)
    os.kill(pid, signal.SIGSTOP)  # a node that does nothing until the limit is near
    assert train(walks, run, "--runner", "slurm") == 0, "one job a run"
    assert "nothing to submit" in capfd.readouterr().err
    assert find_jobs(run) == [job]
    until_told(pid, job)
    until(lambda: states(job) == ["waiting"], "it waits", job)
    cluster.call("scontrol", "update", f"JobId={job.id}", "TimeLimit=30")
    finish(cluster, job, 0)

    (task,) = task_states(job)
    assert (task.state, task.restarts, task.code) == ("done", 1, 0)
    first = json.loads((job.folder / "exit" / "0-0.json").read_text())
    assert (first["code"], first["told"]) == (143, "limit")
    assert history(run) == uninterrupted


@pytest.mark.long
def test_processes_on_two_nodes_stop_and_go_on_together(
    cluster: SlurmCluster, tmp_path: Path, walks: Path, uninterrupted: list[tuple[Any, ...]]
) -> None:
    run = tmp_path / "run"
    assert train(walks, run, "--runner", "slurm", "--cpus", "1", "--nodes", "2") == 0
    job = only_job(run)
    one, _ = trainers(cluster, job, steps=50)
    tell_of_limit(cluster, job, one)
    finish(cluster, job, 0)
    (task,) = task_states(job)
    assert (task.state, task.restarts) == ("done", 1)
    mine, alone = history(run), uninterrupted
    assert [line[0] for line in mine] == [line[0] for line in alone]
    # Two processes add up the same numbers in another order.
    assert [line[1] for line in mine] == pytest.approx([line[1] for line in alone], rel=1e-4)
    assert mine[-1][2] == pytest.approx(alone[-1][2], rel=1e-4)


@pytest.mark.slow
def test_a_training_that_fails_is_not_queued_again(
    cluster: SlurmCluster, tmp_path: Path, walks: Path
) -> None:
    run = tmp_path / "run"
    assert train(walks, run, "--runner", "slurm", "--cpus", "1") == 0
    job = only_job(run)
    (pid,) = trainers(cluster, job, steps=10)
    os.kill(pid, signal.SIGKILL)
    finish(cluster, job)
    (task,) = task_states(job)
    assert (task.state, task.code, task.restarts) == ("failed", 137, 0)


def test_sbatchs_own_reason_is_told_in_one_line_and_nothing_is_left(
    cluster: SlurmCluster, tmp_path: Path, walks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store, run = tmp_path / "legged.zarr", tmp_path / "runs" / "run"
    for submit in (
        lambda: collect(store, 2, "--partition", "nowhere"),
        lambda: train(walks, run, "--runner", "slurm", "--partition", "nowhere"),
    ):
        assert submit() == 2
        error = capfd.readouterr().err
        assert "invalid partition specified: nowhere" in error
        assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
    assert cluster.call("squeue", "--noheader") == ""


def test_a_job_that_waits_is_listed_and_cancelled(
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "legged.zarr"
    held = ["--sbatch", "hold", "--partition", PARTITION]
    assert collect(store, 5, "--parts-per-task", "2", *held) == 0
    capfd.readouterr()
    assert gaitforge("jobs", "list", tmp_path, "--json") == 0
    (record,) = json.loads(capfd.readouterr().out)
    assert [len(task["parts"]) for task in record["tasks"]] == [2, 2, 1]
    assert (record["state"], record["partition"]) == ("waiting", PARTITION)
    assert gaitforge("jobs", "cancel", store) == 0
    assert gaitforge("jobs", "list", store) == 0
    assert "cancelled" in capfd.readouterr().out
    assert open_store(store).parts() == []
