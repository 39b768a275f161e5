"""Stages as jobs of a real Slurm: they wait for each other, fail visibly, and go on."""

import json
import os
import re
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.flows.records.records import read_record, write_record
from gaitforge.flows.runners.slurm import chain as stages
from gaitforge.flows.runners.slurm.jobs import find_jobs, task_states
from tests.flows.making import LEAN, Results, results
from tests.flows.processes import gaitforge as process
from tests.flows.slurm.test_slurm import cluster, command_line, gaitforge, until
from tests.flows.slurm_cluster import SlurmCluster, slurm

__all__ = ["cluster", "slurm"]  # the fixtures

pytestmark = pytest.mark.slow

HERE = ["--runner", "slurm", "--cpus", "1"]


@pytest.fixture(autouse=True)
def no_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenGL takes seconds to start; jobs get this variable and that of the threads."""
    monkeypatch.setenv("MUJOCO_GL", "disabled")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def states(out: Path, capfd: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Stage -> state, as `gaitforge status` knows it."""
    capfd.readouterr()
    assert gaitforge("status", out, "--json") == 0
    rows = json.loads(capfd.readouterr().out)["stages"]
    return {row["stage"]: row["state"] for row in rows}


def kill(cluster: SlurmCluster, words: bytes) -> None:
    """Kill a process of a job whose command line has these words."""

    def find() -> int:
        for pid in cluster.pids():
            line = command_line(pid)
            if b"gaitforge" in line.split(b"\0") and words in line:
                return pid
        return 0

    os.kill(until(find, f"a process of {words!r}"), signal.SIGKILL)


@pytest.mark.long
def test_a_chain_that_is_cancelled_killed_and_submitted_again_gives_the_plain_results(
    cluster: SlurmCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    lean_results: Results,
) -> None:
    plan, out = tmp_path / "given.json", tmp_path / "run"
    write_record(plan, LEAN)
    assert gaitforge("pipeline", out, "--plan", plan, *HERE, "--dry-run") == 0
    assert not out.exists()
    assert gaitforge("pipeline", out, "--plan", plan, *HERE) == 0
    first = {job.kind: job.id for job in find_jobs(out)}
    until(lambda: states(out, capfd)["collect"] == "running", "it collects")
    assert states(out, capfd)["report"] == "waiting"
    assert gaitforge("pipeline", out, *HERE) == 0, "nothing to submit"
    assert {job.kind: job.id for job in find_jobs(out)} == first
    assert gaitforge("pipeline", out, "--runner", "slurm", "--cancel") == 0
    until(lambda: "running" not in (found := states(out, capfd).values()) and found, "it ended")
    assert states(out, capfd)["train fcnet"] == "cancelled"

    follower = process("pipeline", out, *HERE, "--follow")
    kill(cluster, b"/train-first-")
    _, told = follower.communicate(timeout=180)
    assert follower.returncode == 1
    assert "collect: done" in told
    assert "train first: failed, job" in told
    assert "task-0.log:" in told, "the end of the log"
    found = states(out, capfd)
    assert (found["collect"], found["train first"], found["report"]) == (
        "done",
        "failed",
        "cancelled",
    )

    follower = process("pipeline", out, *HERE, "--follow", "--json")
    answer, told = follower.communicate(timeout=300)
    assert follower.returncode == 0, told
    assert json.loads(answer) == read_record(out / "summary.json")
    assert set(states(out, capfd).values()) == {"done"}
    assert results(out) == lean_results

    assert gaitforge("evaluate", out / "train" / "fcnet", *HERE, "--episodes", "1") == 0
    kept = out / "train" / "fcnet" / "evaluation.json"
    until(kept.exists, "the evaluation is there")
    assert json.loads(kept.read_text())["policy"] == "fcnet"


def test_a_task_that_is_queued_again_is_waited_for_and_one_that_failed_stops_no_sibling(
    cluster: SlurmCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "PROGRESS_S", 0.0)
    plan, out = tmp_path / "given.json", tmp_path / "run"
    experiment = replace(LEAN.experiment, corrections=None, seeds=(0, 1))
    write_record(plan, replace(LEAN, experiment=experiment))
    one_at_a_time = [*HERE, "--max-parallel", "1"]
    assert gaitforge("pipeline", out, "--plan", plan, *one_at_a_time) == 0
    [array, *_] = find_jobs(out)
    kill(cluster, b"/collect-")
    record = until(lambda: list((array.folder / "exit").glob("?-0.json")), "it is queued again")
    task = int(record[0].stem.split("-")[0])
    until(lambda: task_states(array)[task].state == "waiting", "it waits")
    cluster.start_soon(f"{array.id}_{task}")
    assert states(out, capfd)["train fcnet-seed-0"] == "waiting"
    killer = threading.Thread(target=kill, args=(cluster, b"/train-"))
    killer.start()
    assert gaitforge("pipeline", out, *one_at_a_time, "--follow") == 1
    killer.join()
    told = capfd.readouterr().err
    assert re.search(r"collect: running, job \d+, \d of \d parts", told), told
    assert re.search(r"train fcnet-seed-0: failed, job \d+_0\n", told), told
    now = states(out, capfd)
    names = [f"{verb} fcnet-seed-{k}" for k in (0, 1) for verb in ("train", "evaluate")]
    assert [now[name] for name in names] == ["failed", "cancelled", "done", "done"]
    assert now["report"] == "cancelled"

    assert gaitforge("pipeline", out, *one_at_a_time, "--follow") == 0
    assert set(states(out, capfd).values()) == {"done"}
    trainings = [job for job in find_jobs(out) if job.kind.startswith("train")]
    assert [len(job.tasks) for job in trainings] == [2, 1], "only what failed was submitted again"
