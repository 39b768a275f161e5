"""Slurm jobs of Prefect's runs, on a real server and a real cluster."""

import os
import random
import re
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.logging.handlers import APILogHandler

from gaitforge.datasets import open_store
from gaitforge.flows.progress import Silent
from gaitforge.flows.runners.artifacts import artifact_key
from gaitforge.flows.runners.prefect import asset_key
from gaitforge.flows.runners.prefect_stages import SITE, slurm_settings
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.script import SlurmForm
from gaitforge.flows.stages import collect as stage
from gaitforge.flows.stages.status import training_status
from gaitforge.flows.tasks.legged import legged_plan
from gaitforge.pipeline.cli.deployments import FLOWS
from gaitforge.pipeline.serve.prefect_server import prefect_api
from tests.flows.prefect_runs import Server
from tests.flows.processes import ROOT, descendants, gaitforge, soon
from tests.flows.slurm_cluster import SlurmCluster, slurm

__all__ = ["slurm"]
CELL = {"terrain": ["flat"], "skill": ["run"], "level": [1]}


def sized(parts: int, episodes: int) -> dict[str, list[Any]]:
    """The parameters of a collection."""
    return {"settings": [f"grid.parts={parts}", f"grid.episodes_per_part={episodes}"], **CELL}


SMALL = sized(2, 12)
SLURM = SlurmForm(cpus=1)
PARTS = int(os.environ.get("GAITFORGE_SLURM_PARTS", "20"))
"""Of the collection whose tasks are killed; the long run of docs/results/speed.md has 1,000."""


@pytest.fixture(scope="module")
def server(slurm: SlurmCluster) -> Iterator[Server]:
    """A server, which the flows of this process report to; their jobs go to the cluster."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in slurm.environment.items():
            patch.setenv(name, value)
        patch.setattr("gaitforge.flows.runners.prefect_stages.POLL_S", 0.5)
        patch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "2")
        with prefect_api(port=0) as url:
            patch.setenv("PREFECT_API_URL", url)
            yield Server(url)
            APILogHandler().flush()


def test_the_nightly_collection_of_prefect_yaml_can_ask_for_jobs() -> None:
    text = (ROOT / "prefect.yaml").read_text()
    lines = re.sub(r"^( *)# (?=slurm:| )", r"\1", text, flags=re.M)
    [parameters] = [
        entry["parameters"]
        for entry in yaml.safe_load(lines)["deployments"]
        if entry["name"] == "nightly"
    ]
    form = SlurmForm(**parameters["slurm"])
    assert (form.partition, form.cpus, form.time, form.wait) == ("cpu", 8, "04:00:00", True)


def test_a_site_says_what_a_form_must_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SITE, '{"setup": ["module load cuda"], "cpus": 9, "mail": "me@lab.org"}')
    settings = slurm_settings(SlurmForm(partition="gpu", cpus=3))
    assert (settings.partition, settings.cpus) == ("gpu", 3)
    assert slurm_settings(SlurmForm()).cpus == 9
    assert (settings.setup, settings.mail) == (("module load cuda",), "me@lab.org")
    assert not {"setup", "env_file", "container", "options"} & asdict(SlurmForm()).keys()
    for wrong in ("[]", '{"colour": "blue"}', "{"):
        monkeypatch.setenv(SITE, wrong)
        with pytest.raises(ValueError, match=SITE):
            slurm_settings(SlurmForm())


@pytest.mark.slow
def test_collected_trained_and_evaluated_by_jobs_that_are_tasks(
    server: Server, tmp_path: Path
) -> None:
    store, run = tmp_path / "a.zarr", tmp_path / "mlp"
    FLOWS["collect"](store=str(store), **SMALL, slurm=SLURM)
    grid = {f"{name}s": tuple(value) for name, value in CELL.items()}
    plan = legged_plan("demo", {**grid, "parts": 2, "episodes_per_part": 12})
    stage.collect(plan, tmp_path / "plain.zarr", Silent())
    assert open_store(store).info().hash == open_store(tmp_path / "plain.zarr").info().hash

    FLOWS["train"](store=str(store), out=str(run), model="mlp", steps=4, slurm=SLURM)
    assert training_status(run).state == "complete"
    FLOWS["evaluate"](policy=str(run), **CELL, episodes=2, slurm=SLURM)
    for flow, kind, place in (
        ("collect", "collect", jobs.jobs_folder(store)),
        ("train", "train", run / "jobs"),
        ("evaluate", "evaluate", run / "jobs"),
    ):
        [job] = [job for job in jobs.find_jobs(place) if job.kind == kind]
        made = server.runs(flow)[0]  # this process may have had others before
        soon(lambda made=made: "COMPLETED" in server.tasks(made["id"]).values())
        assert server.tasks(made["id"])[f"{kind} job {job.id}"] == "COMPLETED"
        log = server.artifacts(made["id"])[artifact_key("slurm log", job.folder)]
        assert "done, code 0" in log["data"]
        end = re.compile(rf"job {job.id}: (2 )?done")
        soon(lambda made=made, end=end: end.search(server.said(made["id"])))
    tags = set(server.runs("train")[0]["tags"])
    assert {"store:a.zarr", "model:mlp"} <= tags
    table = server.artifacts(server.runs("collect")[0]["id"])[artifact_key("collected", store)]
    assert '"terrain": "flat"' in table["data"]
    assert '"episodes": 24' in table["data"]

    materialised = "prefect.asset.materialization.succeeded"

    def materialised_now() -> set[str]:
        filters = {"event": {"name": [materialised]}}
        found = server.ask("events/filter", filter=filters, limit=50)["events"]
        return {event["resource"]["prefect.resource.id"] for event in found}

    assets = {asset_key(place) for place in (store, run, run / "evaluation.json")}
    soon(lambda: assets <= materialised_now())

    before = len(jobs.find_jobs(run / "jobs"))
    FLOWS["train"](store=str(store), out=str(run), model="mlp", steps=4, slurm=SLURM)
    FLOWS["evaluate"](policy=str(run), **CELL, episodes=2, slurm=SLURM)
    assert len(jobs.find_jobs(run / "jobs")) == before


@pytest.mark.slow
def test_a_later_run_picks_up_what_one_that_did_not_wait_has_submitted(
    server: Server, tmp_path: Path
) -> None:
    store = tmp_path / "later.zarr"
    FLOWS["collect"](store=str(store), **SMALL, slurm=replace(SLURM, wait=False))
    [job] = jobs.find_jobs(jobs.jobs_folder(store))
    message = server.runs("collect")[0]["state"]["message"]
    assert f"job {job.id}" in message
    FLOWS["collect"](store=str(store), **SMALL, slurm=SLURM)
    assert jobs.find_jobs(jobs.jobs_folder(store)) == [job]
    assert len(open_store(store).parts()) == 2


@pytest.mark.long
def test_a_cancelled_run_cancels_its_job_and_a_killed_one_leaves_it_to_a_later_run(
    server: Server, tmp_path: Path
) -> None:
    store = tmp_path / "scheduled.zarr"
    when = ["--store", store, "--schedule", "0 0 1 1 *", "--cpus", "1"]
    serving = gaitforge("serve", "--setup", "echo this is the site", *when)
    assert serving.stdout is not None
    soon(lambda: "Ctrl-C" in serving.stdout.readline())  # type: ignore[union-attr]
    found = soon(lambda: server.deployment("collect"))
    assert found["parameters"]["slurm"] == {"cpus": 1}, "so runs of the schedule are jobs, too"
    long = sized(2, 800)

    def started(name: str) -> tuple[str, jobs.Job]:
        store = str(tmp_path / name)
        run = server.ask(
            f"deployments/{found['id']}/create_flow_run",
            parameters={**long, "store": store},
            state={"type": "SCHEDULED"},
        )["id"]
        [job] = soon(lambda: submitted(store))
        soon(lambda: server.tasks(run).get(f"collect job {job.id}") == "RUNNING")
        soon(lambda: jobs.job_state(jobs.task_states(job)) == "running")
        return run, job

    try:
        run, job = started("cancelled.zarr")
        server.ask(f"flow_runs/{run}/set_state", state={"type": "CANCELLING"}, force=True)
        soon(lambda: server.look_up(f"flow_runs/{run}")["state"]["type"] == "CANCELLED")
        soon(lambda: jobs.job_state(jobs.task_states(job)) == "cancelled")
        soon(lambda: server.tasks(run) == {f"collect job {job.id}": "CANCELLED"})

        run, job = started("killed.zarr")
        [process] = [pid for pid in descendants(serving.pid) if is_flow(pid)]
        os.kill(process, signal.SIGKILL)
        soon(lambda: server.look_up(f"flow_runs/{run}")["state"]["type"] == "CRASHED")
        assert jobs.job_state(jobs.task_states(job)) == "running"
        assert "this is the site" in (job.folder / jobs.log_name(0)).read_text()
        again, same = started("killed.zarr")
        assert same == job
        server.ask(f"flow_runs/{again}/set_state", state={"type": "CANCELLING"}, force=True)
        soon(lambda: jobs.job_state(jobs.task_states(job)) == "cancelled")
    finally:
        serving.send_signal(signal.SIGINT)
        serving.communicate(timeout=90)


def submitted(store: Path | str) -> list[jobs.Job]:
    """The jobs of a store that Slurm has taken and that have not ended."""
    with suppress(ValueError):  # while `sbatch` runs, a job has no id yet
        return jobs.live_jobs(jobs.jobs_folder(store), "collect")
    return []


def is_flow(pid: int) -> bool:
    """Whether a process runs a flow: `python -m prefect…engine`."""
    return b"engine" in Path(f"/proc/{pid}/cmdline").read_bytes()


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_no_part_is_lost_or_made_twice_where_a_tenth_of_the_tasks_are_killed(
    server: Server, slurm: SlurmCluster, tmp_path: Path
) -> None:
    store = tmp_path / "killed.zarr"
    tasks = PARTS // 4
    victims = set(random.Random(0).sample(range(tasks), max(1, tasks // 10)))
    wanted, killed, missed = sorted(victims), [], []
    form = SlurmForm(cpus=1, parts_per_task=4)

    def killer() -> None:
        [job] = soon(lambda: submitted(store))
        while victims:
            for status in jobs.task_states(job):
                if status.task in victims and status.state == "running":
                    slurm.call("scancel", "--signal=KILL", "--full", f"{job.id}_{status.task}")
                    victims.discard(status.task)
                    killed.append(status.task)
                elif status.task in victims and status.state in jobs.ENDED:
                    victims.discard(status.task)
                    missed.append(status.task)
            time.sleep(0.1)

    thread = threading.Thread(target=killer)
    thread.start()
    runs = 0
    while not store.exists() or len(open_store(store).parts()) < PARTS:
        runs += 1
        assert runs < 5
        with suppress(ValueError):  # a task that is killed too often fails its job
            FLOWS["collect"](store=str(store), **sized(PARTS, 1), slurm=form)
    thread.join()
    opened = open_store(store)
    print(f"{PARTS} parts, {tasks} tasks, {len(killed)} killed, {runs} runs")
    # Some may end between two looks; most are killed.
    assert sorted([*killed, *missed]) == wanted
    assert len(killed) > len(missed)
    assert len(opened.parts()) == PARTS
    assert len(list((store / "catalog").glob("*.parquet"))) == PARTS
    assert opened.info().episodes == PARTS
    assert opened.verify() == []
