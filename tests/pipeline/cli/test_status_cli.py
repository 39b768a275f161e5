"""`gaitforge status` and `--runner` on the command line."""

import json
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.flows.progress import Silent
from gaitforge.flows.records.part_records import PartActivity, records_folder
from gaitforge.flows.runners.slurm.jobs import Job, jobs_folder, write_job
from gaitforge.flows.stages.collect import collect
from gaitforge.pipeline.cli.main import main
from tests.flows.making import COLLECT, GRID
from tests.flows.processes import gaitforge

PLAN = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4), threads=1)
TINY = ["--set", "grid.parts=1", "--set", "grid.episodes_per_part=4", "--robots", "4"]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of one of two parts, and its records."""
    folder = tmp_path_factory.mktemp("status")
    collect(PLAN, folder / "legged.zarr", Silent(), PLAN.part_ids()[:1])
    return folder


@pytest.fixture
def store(begun: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(begun, tmp_path / "begun")) / "legged.zarr"


def test_several_places_are_a_row_each(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(store), str(store)]) == 0
    heads, _, *rows = capsys.readouterr().out.splitlines()
    assert heads.split() == ["place", "state", "progress", "steps/s", "left"]
    assert len(rows) == 2
    assert "stopped" in rows[0]
    assert "1 of 2 parts" in rows[0]
    assert main(["status", str(store), str(store), "--json"]) == 0
    one, two = json.loads(capsys.readouterr().out)
    assert one == two
    assert one["done"] == 1


@pytest.mark.parametrize(
    ("squeue", "said"),
    [
        ("echo '7|0|PENDING|n/a|N/A|Priority'", "job 7 waits"),
        ("echo '7|0|RUNNING|n0|2026-01-31T12:00:00|None'", "job 7 starts"),
        ("echo 'slurm_load_jobs error: no answer' >&2; exit 1", "its jobs are unknown: squeue"),
        ("", "job 7 was submitted; no Slurm here to ask"),
    ],
)
def test_a_job_that_has_not_written_yet_is_named(
    store: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    squeue: str,
    said: str,
) -> None:
    folder = jobs_folder(store) / "collect-1"
    folder.mkdir(parents=True)
    write_job(Job(folder, "7", "collect", str(store), 1.7e9, "", ("sbatch",), (("p-0",),)))
    for name in ("squeue", "sbatch") if squeue else ():
        (tmp_path / name).write_text(f"#!/bin/sh\n{squeue}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["status", str(store)]) == 0
    assert said in capsys.readouterr().out


def test_the_status_of_a_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    part = PLAN.part_ids()[1]
    with pytest.raises(OSError, match="gone"), PartActivity(records_folder(store), part, 1):
        raise OSError("the disk is gone")
    assert main(["status", str(store)]) == 0
    text = capsys.readouterr().out
    assert "1 of 2 planned (50%), 1 missing" in text
    assert "no process or job works on them" in text
    assert f"{part}, 1 time; last: OSError: the disk is gone" in text
    with PartActivity(records_folder(store), part, PLAN.expected_steps()[part]) as activity:
        activity.advance(100)
        activity.writing()
        assert main(["status", str(store), "--json"]) == 0
        tree = json.loads(capsys.readouterr().out)
        assert main(["status", str(store)]) == 0
        assert part in capsys.readouterr().out
    assert (tree["kind"], tree["state"], tree["done"], tree["missing"]) == (
        "store",
        "working",
        1,
        1,
    )
    assert [each["steps"] for each in tree["active"]] == [100]
    assert tree["remaining_s"] > 0


def test_watching_a_run_that_never_began_ends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs").mkdir()
    assert main(["status", str(tmp_path), "--watch"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}: empty\n"


def test_a_runs_status(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text('{"train_config": {"model": "bot", "steps": 20}}')
    row = {"step": 5, "loss": 0.5, "validation_loss": 0.25, "steps_per_s": 1e3, "elapsed_s": 60.0}
    (tmp_path / "history.jsonl").write_text(json.dumps(row) + "\n")
    assert main(["status", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "working" in text
    assert "5 of 20 (25%), bot" in text
    assert "60 s so far, 3 min 00 s left" in text


def test_an_experiment_whose_training_fails_before_its_first_step(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "compared")
    words = ["--set", 'learners={"mlp":{}}', "--seeds", "0", "--stage", "train mlp-seed-0"]
    few = ["--device", "cuda"]
    assert main(["run", "compare", str(store), "--out", out, *words, *few]) == 2
    assert "device cuda was asked for, but" in capsys.readouterr().err
    assert main(["status", out]) == 0
    assert "stopped" in capsys.readouterr().out


def test_watching_ends_with_the_work(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", str(store), "--watch", "--json"]) == 0
    [line] = capsys.readouterr().out.splitlines()
    assert json.loads(line)["state"] == "stopped"


def test_watching_can_be_interrupted(store: Path) -> None:
    part = PLAN.part_ids()[1]
    with PartActivity(records_folder(store), part, PLAN.expected_steps()[part]):
        watch = gaitforge("status", store, "--watch")
        assert watch.stdout is not None
        assert "working" in watch.stdout.readline()
        time.sleep(0.2)
        watch.send_signal(signal.SIGINT)
        _, err = watch.communicate(timeout=30)
    assert watch.returncode == 130
    assert len(err.splitlines()) == 1
