"""The stages as programs: `python -m gaitforge.flows`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from gaitforge.flows.__main__ import PROGRAMS, main, read_plan
from gaitforge.flows.records.records import write_record
from gaitforge.flows.stages.train import TrainPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from tests.flows.making import COLLECT, GRID, TRAINING
from tests.flows.processes import ROOT

PLAN = replace(COLLECT, grid=replace(GRID, parts=2, episodes_per_part=4), threads=1)


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    """The plan's file."""
    path = tmp_path / "plan.json"
    write_record(path, PLAN)
    return path


@pytest.mark.slow
def test_the_package_is_a_program(plan: Path, tmp_path: Path) -> None:
    words = ["gaitforge.flows", "collect", tmp_path / "legged.zarr", plan, "--parts", "1"]
    done = subprocess.run(
        [sys.executable, "-m", *map(str, words)],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    [record] = json.loads(done.stdout)
    assert record["part"] == PLAN.part_ids()[1]
    assert open_store(tmp_path / "legged.zarr").parts() == [PLAN.part_ids()[1]]


def test_the_record_that_a_run_leaves_is_a_plan(
    plan: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = str(tmp_path / "legged.zarr")
    assert main(["collect", store, str(plan)]) == 0
    [left] = (tmp_path / "legged.zarr.records").glob("plan-*.json")
    assert read_plan(LeggedPlan, str(left)) == PLAN
    capsys.readouterr()
    assert main(["collect", store, str(left)]) == 0
    assert json.loads(capsys.readouterr().out) == []

    training, run = tmp_path / "training.json", tmp_path / "run"
    write_record(training, {"plan": {"config": TRAINING}})
    assert read_plan(TrainPlan, str(training)).config.steps == TRAINING["steps"]
    assert main(["train", store, str(training), str(run)]) == 0
    evaluation = tmp_path / "evaluation.json"
    grid = {"terrains": ["flat"], "skills": ["run"], "levels": [2], "episodes": 2}
    write_record(evaluation, {"plan": {"grid": grid}})
    out = tmp_path / "result.json"
    assert main(["evaluate", str(run), str(evaluation), str(out)]) == 0
    assert json.loads(out.read_text())["policy"] == "run"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["collect", "store", "absent.json"], "no plan at absent.json"),
        (["collect", "store", "PLAN", "--parts", "7"], "part 7 is not in the plan, which has 0-1"),
        (["collect", "store", "PLAN", "--runner", "ray"], "unknown runner 'ray'"),
        (["train", "store", "PLAN", "run"], "TrainPlan has no 'expert'"),
        (["evaluate", "absent", "PLAN", "out.json"], "no training run at absent"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], complaint: str, plan: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flow, *rest = [str(plan) if word == "PLAN" else word for word in words]
    assert flow in PROGRAMS
    assert main([flow, *rest]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert complaint in line
