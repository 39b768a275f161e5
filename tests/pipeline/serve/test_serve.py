"""`gaitforge serve`: what it refuses, and a server, a schedule, a kill and the end for real."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prefect.logging.handlers import APILogHandler
from prefect.settings import PREFECT_API_URL, temporary_settings

from gaitforge.datasets import open_store
from gaitforge.datasets.formats.transfer.exporting import export_selection
from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import read_active, records_folder
from gaitforge.flows.runners.artifacts import artifact_key
from gaitforge.flows.stages.collect import collect
from gaitforge.pipeline.cli import deployments
from gaitforge.pipeline.cli.deployments import FLOWS
from gaitforge.pipeline.cli.main import build_parser, main
from gaitforge.pipeline.cli.parsing.entries import added_commands
from gaitforge.pipeline.cli.parsing.forms import command_line, form_fields
from tests.flows.making import COLLECT
from tests.flows.prefect_runs import Server
from tests.flows.processes import ROOT, descendants, gaitforge, is_running, listening, soon

LOOPBACK = "0100007F"
POLL_S = 0.5
SIZES = ["--set", "grid.parts=2", "--set", "grid.episodes_per_part=10"]


def test_a_forms_values_are_the_words_of_its_command() -> None:
    words = [
        "a.zarr",
        "--model=mlp",
        "--out=run",
        "--terrain=flat,rough",
        "--level=0,2",
        "--seed=3",
    ]
    words += ["--where=-return < 3", "--set=config.steps=4", "--set=config.threads=1"]
    parser = command_parser("train")
    values: dict[str, Any] = {"store": "a.zarr", "model": "mlp", "out": "run", "seed": 3}
    values |= {"terrain": ["flat", "rough"], "level": [0, 2], "where": "-return < 3"}
    values |= {"settings": ["config.steps=4", "config.threads=1"], "steps": None, "skill": []}
    line = command_line(form_fields(parser), values)
    assert sorted(line) == sorted(words)
    found = parser.parse_args(line)
    assert (found.terrain, found.level, found.where) == (("flat", "rough"), (0, 2), "-return < 3")
    flags = {"store": "s", "half": True, "privileged": False, "state": False, "robot": ["a,b", "c"]}
    line = command_line(form_fields(command_parser("collect")), flags)
    assert line == ["s", '--robot="a,b",c', "--no-state", "--half"]
    with pytest.raises(ValueError, match="store cannot begin with a dash"):
        command_line(form_fields(parser), {"store": "--out"})


def test_every_command_with_work_is_a_deployment_and_says_each_of_its_parameters() -> None:
    assert FLOWS.keys() >= {"run", "collect", "train", "evaluate", "export", "import"}
    assert FLOWS.keys() >= {"query", "card", "dagger", "compare", "expert-train", "gym-collect"}
    for each in FLOWS.values():
        for name, field in each.parameters.properties.items():
            assert field["description"], (each.name, name)


@pytest.mark.parametrize("name", ["collect", "train", "evaluate", "run"])
def test_a_flow_that_is_written_out_has_the_form_of_its_command(name: str) -> None:
    written = FLOWS[name]
    assert written is getattr(deployments, name)
    made = deployments.flow_of(name)
    assert written.parameters == made.parameters
    assert written.description == made.description


def test_prefect_finds_each_flow_by_its_module_and_name() -> None:
    for each in FLOWS.values():
        assert getattr(deployments, each.fn.__name__) is each
    with pytest.raises(AttributeError, match="no flow frobnicate; there are"):
        deployments.frobnicate  # noqa: B018


@pytest.mark.parametrize("seed", [{"seed": 3}, {"settings": ["grid.seed=0"]}])
def test_the_day_is_the_only_seed_of_a_form(seed: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the day is the seed"):
        deployments.collect.fn(store="x.zarr", new_every_day=True, **seed)


def test_what_keeps_all_cores_busy_runs_alone() -> None:
    assert {"collect", "run", "pipeline", "demo"} <= deployments.ALONE <= FLOWS.keys()
    assert {"train", "evaluate", "card"}.isdisjoint(deployments.ALONE)


def command_parser(name: str) -> Any:
    """The parser of a command."""
    return build_parser()._subparsers._group_actions[0].choices[name]  # type: ignore[union-attr]


def port_before_a_free_one() -> socket.socket:
    """A server on a port; the next one, which pages take, is free."""
    while True:
        taken = socket.create_server(("127.0.0.1", 0))
        try:
            socket.create_server(("127.0.0.1", taken.getsockname()[1] + 1)).close()
            return taken
        except OSError:
            taken.close()


def test_a_taken_port_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with port_before_a_free_one() as taken:
        assert main(["serve", "--port", str(taken.getsockname()[1])]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "Address already in use" in line
    assert "PREFECT_API_URL" in line


@pytest.mark.slow
def test_runs_that_train_nothing_load_no_torch() -> None:
    names = ("flows.runners.slurm.runner", "pipeline.cli.deployments")
    flows = ", ".join(f"gaitforge.{name}" for name in names)
    program = f"import sys, {flows}; print({{'torch', 'numba', 'dask'}} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@dataclass(frozen=True)
class Served:
    """A `gaitforge serve` that runs, its server, and the store of its schedule."""

    process: subprocess.Popen[str]
    server: Server
    store: Path

    def start(self, flow: str, **parameters: Any) -> str:
        """A run of a deployment, by its id."""
        found = self.server.look_up(f"deployments/name/{flow}/gaitforge")
        path = f"deployments/{found['id']}/create_flow_run"
        return self.server.ask(path, parameters=parameters, state={"type": "SCHEDULED"})["id"]

    def state(self, run: str) -> dict[str, Any]:
        """The state of a run."""
        return self.server.look_up(f"flow_runs/{run}")["state"]

    def soon(self, run: str, *types: str) -> dict[str, Any]:
        """The state of a run once it is of one of those types."""

        def look() -> dict[str, Any] | None:
            time.sleep(POLL_S)
            state = self.state(run)
            return state if state["type"] in types else None

        return soon(look, 240)

    def here(self, flow: str, **parameters: Any) -> str:
        """A run of a flow by this process, which imports no more for it, by its id."""
        with temporary_settings({PREFECT_API_URL: self.server.url}):
            FLOWS[flow](**parameters)
            APILogHandler().flush()
        [run] = self.server.runs(flow)[:1]
        return run["id"]

    def completes(self, run: str) -> None:
        """Wait until a run has ended well."""
        end = self.soon(run, "COMPLETED", "FAILED", "CRASHED")
        assert end["type"] == "COMPLETED", self.server.said(run)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Serves a collection at two minutes of every hour; Ctrl-C stops all that was started."""
    home = tmp_path_factory.mktemp("served")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_HOME", str(home / "prefect"))
        patch.setenv("PREFECT_RUNNER_POLL_FREQUENCY", "2")
        patch.delenv("PREFECT_API_URL", raising=False)
        store = home / "data" / "legged.zarr"
        # The second time is for a server that is not up at the first.
        soon_twice = {time.strftime("%M", time.gmtime(time.time() + wait)) for wait in (120, 420)}
        cron = f"{','.join(sorted(soon_twice))} * * * *"
        when = ["--schedule", cron, "--new-every-day", "--port", "0"]
        process = gaitforge("serve", "--store", store, *when, *SIZES)
        assert process.stdout is not None
        first = process.stdout.readline()
        assert first.startswith("Prefect: http://127.0.0.1:"), process.communicate()
        soon(lambda: "Ctrl-C stops" in process.stdout.readline())  # type: ignore[union-attr]
        url = first.split()[1] + "/api"
        soon(lambda: httpx.get(f"{url}/deployments/name/export/gaitforge", timeout=60.0).is_success)
        # Whoever lets the pipes fill up stops the server.
        reader = threading.Thread(target=process.communicate)
        reader.start()
        yield Served(process, Server(url), store)
        started = [process.pid, *descendants(process.pid)]
        process.send_signal(signal.SIGINT)
        process.wait(90)
        reader.join(10)
        assert [pid for pid in started if is_running(pid)] == []


@pytest.mark.slow
def test_nothing_listens_beyond_loopback(served: Served) -> None:
    assert listening(served.process.pid) == {LOOPBACK}


@pytest.mark.slow
def test_the_deployments_work_one_after_the_other(served: Served, tmp_path: Path) -> None:
    store, run, policy = (str(tmp_path / name) for name in ("a.zarr", "mlp", "policy"))
    collect(COLLECT, Path(store), Silent())
    selection = open_store(store).select()
    export_selection("d4rl", selection, tmp_path / "a.hdf5")
    card = served.start("card", store=store)
    trained = served.start("train", store=store, out=run, model="mlp", steps=4)
    words = {"format": "d4rl", "source": str(tmp_path / "a.hdf5")}
    served.here("import", store=str(tmp_path / "b.zarr"), **words)
    asked = served.here("query", store=store, where="return > 0", list=True, limit=3)
    for started in (card, trained):
        served.completes(started)
    again = open_store(tmp_path / "b.zarr").select()
    ours = ["part", "start"]  # which part an episode lies in is the store's own
    assert again.episodes().drop_columns(ours).equals(selection.episodes().drop_columns(ours))
    np.testing.assert_array_equal(again.read("obs"), selection.read("obs"))
    markdown = served.server.artifacts(card)[artifact_key("card", store)]
    assert markdown["data"] == (tmp_path / "a.zarr.card" / "card.md").read_text()

    rows = served.server.artifacts(asked)[artifact_key("query", store)]["data"]
    assert len(json.loads(rows)) == 3
    history = json.loads(served.server.artifacts(trained)[artifact_key("training", run)]["data"])
    assert (history[0]["step"], history[0]["of"], history[0]["minutes left"]) == (4, 4, 0)
    assert set(served.server.look_up(f"flow_runs/{trained}")["tags"]) >= {
        "model:mlp",
        "store:a.zarr",
    }

    cell = {"terrain": ["flat"], "skill": ["stand"], "episodes": 2}
    evaluated = served.start("evaluate", policy=run, **cell)
    served.here("export", places=[run, policy], formats=["pt2"])
    served.completes(evaluated)
    [row] = json.loads(served.server.artifacts(evaluated)[artifact_key("evaluation", run)]["data"])
    assert (row["terrain"], row["skill"], row["episodes"]) == ("flat", "stand", 2)
    assert list(Path(policy).glob("*.pt2"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({"robots": -3}, "-3"),
        ({"terrain": ["moon"]}, "moon"),
        ({"level": [12]}, "level"),
        ({"threads": "many"}, "'many' is not"),
    ],
)
def test_a_wrong_parameter_is_refused_before_a_run_is_made(
    served: Served, parameters: dict[str, Any], complaint: str
) -> None:
    before = asked_for(served)
    with pytest.raises(httpx.HTTPStatusError) as refusal:
        served.start("collect", **parameters)
    assert refusal.value.response.status_code == 409
    assert complaint in refusal.value.response.json()["detail"]
    assert asked_for(served) == before


def asked_for(served: Served) -> set[str]:
    """Runs of collect but those of the schedule."""
    runs = served.server.runs("collect")
    return {run["id"] for run in runs if "auto-scheduled" not in run["tags"]}


@pytest.mark.slow
def test_wrong_input_beyond_the_form_is_one_line(served: Served, tmp_path: Path) -> None:
    run = served.start("evaluate", policy=str(tmp_path / "nowhere"))
    assert served.soon(run, "FAILED", "COMPLETED")["type"] == "FAILED"
    said = soon(lambda: text if "nowhere" in (text := served.server.said(run)) else None)
    assert "Traceback" not in said
    with pytest.raises(ValueError, match="give dask or slurm, not both"):
        served.here("collect", store=str(tmp_path / "x.zarr"), dask={}, slurm={})


@pytest.mark.slow
def test_a_second_collection_waits_and_one_is_cancelled(served: Served, tmp_path: Path) -> None:
    places = [tmp_path / f"{k}.zarr" for k in (1, 2)]
    sizes = ["grid.parts=3", "grid.episodes_per_part=80"]
    size = {"terrain": ["flat"], "settings": sizes}
    runs = [served.start("collect", store=str(place), **size) for place in places]

    def one_waits() -> dict[str, int] | None:
        time.sleep(POLL_S)
        found = {served.state(run)["name"]: k for k, run in enumerate(runs)}
        return found if found.keys() == {"AwaitingConcurrencySlot", "Running"} else None

    found = soon(one_waits, 240)
    waiting, running = found["AwaitingConcurrencySlot"], found["Running"]
    place = places[running]
    beat = soon(lambda: next(iter(read_active(records_folder(place))), None))
    assert not places[waiting].exists()
    cancel(served, runs[waiting], "CANCELLED")
    cancel(served, runs[running], "CANCELLING")
    soon(lambda: not is_running(beat.pid))
    soon(lambda: {*served.server.tasks(runs[running]).values()} <= {"CANCELLED", "COMPLETED"})
    assert "Traceback" not in served.server.said(runs[running])
    assert open_store(place).verify() == []

    served.completes(served.start("collect", store=str(place), **size))
    store = open_store(place)
    assert len(store.parts()) == 3
    assert len(list((place / "catalog").glob("*.parquet"))) == 3
    assert store.verify() == []


def cancel(served: Served, run: str, state: str) -> None:
    """Have a run cancelled; a running one by whoever runs it."""
    served.server.ask(f"flow_runs/{run}/set_state", state={"type": state}, force=True)
    served.soon(run, "CANCELLED")


@pytest.mark.slow
def test_prefect_takes_the_deployments_of_prefect_yaml(served: Served) -> None:
    served.server.ask("work_pools/", name="gaitforge", type="process")
    subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"],
        cwd=ROOT,
        env=os.environ | {"PREFECT_API_URL": served.server.url, "PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        timeout=300,
    )
    found = served.server.look_up("deployments/name/collect/nightly")
    assert found["schedules"][0]["schedule"]["cron"] == "0 2 * * *"
    assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert found["global_concurrency_limit"]["limit"] == 1
    assert found["parameters"]["new_every_day"] is True


@pytest.mark.slow
def test_the_schedule_fires_and_nothing_is_done_twice(served: Served) -> None:
    def completed() -> list[str]:
        time.sleep(POLL_S)
        runs = served.server.runs("collect", state={"type": {"any_": ["COMPLETED"]}})
        return [run["state"]["message"] for run in runs if "auto-scheduled" in run["tags"]]

    said = soon(completed, 480)
    assert said.count("2 parts collected, 0 already stored") == 1
    assert {*said} <= {"2 parts collected, 0 already stored", "0 parts collected, 2 already stored"}
    again = served.start("collect")
    served.completes(again)
    assert served.state(again)["message"] == "0 parts collected, 2 already stored"
    store = open_store(served.store)
    assert len(store.parts()) == 2
    assert store.verify() == []
    if "view" not in added_commands():
        return  # no plug-in plays episodes
    link = served.server.artifacts(again)[artifact_key("episodes", served.store)]["data"]
    address = re.search(r"http://127[^)]*/view/[^)]*", link)
    assert address is not None
    page = soon(lambda: text if 'equiv="refresh' not in (text := get_text(address[0])) else None)
    assert 'id="canvas"' in page or "not built" in page


def get_text(address: str) -> str:
    """A page of the server of pages."""
    time.sleep(POLL_S)
    return httpx.get(address, timeout=60.0).raise_for_status().text
