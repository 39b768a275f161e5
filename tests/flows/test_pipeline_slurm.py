"""Stages as jobs of a real Slurm: they wait for each other, fail visibly, and go on."""

import json
import os
import re
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.records import read_record, write_record
from gaitforge.flows.runners.slurm import chain as stages
from gaitforge.flows.runners.slurm.jobs import find_jobs, task_states
from gaitforge.flows.stages.collect import collect
from tests.flows.making import CLAIM, COLLECT, DEMO, plain_results, results
from tests.flows.processes import gaitforge as process
from tests.flows.slurm_cluster import SlurmCluster, slurm
from tests.flows.test_slurm import cluster, command_line, gaitforge, until

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
    cluster: SlurmCluster, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    plan, out = tmp_path / "given.json", tmp_path / "run"
    write_record(plan, CLAIM)
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
    assert states(out, capfd)["train bot"] == "cancelled"

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
    assert results(out) == plain_results(tmp_path / "plain")

    assert gaitforge("evaluate", out / "train" / "fcnet", *HERE, "--episodes", "1") == 0
    kept = out / "train" / "fcnet" / "evaluation.json"
    until(kept.exists, "the evaluation is there")
    assert json.loads(kept.read_text())["policy"] == "fcnet"


def test_a_collection_that_is_queued_again_keeps_its_successors_waiting(
    cluster: SlurmCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stages, "PROGRESS_S", 0.0)
    plan, out = tmp_path / "given.json", tmp_path / "run"
    small = {name: DEMO.learners[name] for name in ("fcnet",)}
    alone = replace(DEMO, corrections=None, learners=small)
    write_record(plan, replace(CLAIM, experiment=alone))
    assert gaitforge("pipeline", out, "--plan", plan, *HERE) == 0
    [array, *_] = find_jobs(out)
    kill(cluster, b"/collect-")
    record = until(lambda: list((array.folder / "exit").glob("?-0.json")), "it is queued again")
    task = int(record[0].stem.split("-")[0])
    until(lambda: task_states(array)[task].state == "waiting", "it waits")
    cluster.start_soon(f"{array.id}_{task}")
    assert states(out, capfd)["train fcnet"] == "waiting"
    assert gaitforge("pipeline", out, *HERE, "--follow") == 0
    told = capfd.readouterr().err
    assert re.search(r"collect: running, job \d+, \d of \d parts", told), told
    assert set(states(out, capfd).values()) == {"done"}


def compared(store: Path) -> tuple[list[Any], tuple[str, ...]]:
    """A comparison of models on legged robots, and what its rows have that is no time."""
    collect(COLLECT, store, Silent())
    small = {"batch_size": 4, "window_len": 8, "held_out_fraction": 0.4, "threads": 1}
    words = ["compare", store, "--models", "mlp", "--seeds", "0,1", "--steps", "3"]
    words += ["--terrain", "flat", "--skill", "run", "--episodes", "2"]
    settings = [f"settings.{name}={value}" for name, value in small.items()]
    words += [word for setting in settings for word in ("--set", setting)]
    return words, ("learner", "seed", "return", "success", "test_mse")


@pytest.mark.long
@pytest.mark.parametrize(
    ("runner", "has_jobs"),
    [(["--runner", "dask", "--workers", "2"], False), ([*HERE, "--follow"], True)],
)
def test_a_comparison_on_dask_and_on_slurm_has_the_rows_of_one_process(
    runner: list[str],
    has_jobs: bool,
    cluster: SlurmCluster,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    words, measured = compared(tmp_path / "store.zarr")

    def rows(name: str, *more: str) -> list[dict[str, Any]]:
        capfd.readouterr()
        assert gaitforge(*words, "--out", tmp_path / name, "--json", *more) == 0
        record = json.loads(capfd.readouterr().out)
        return [{each: row[each] for each in measured} for row in record["runs"]]

    assert rows("there", *runner) == rows("here")
    assert bool(find_jobs(tmp_path / "there")) == has_jobs
