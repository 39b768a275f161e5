"""`gaitforge sim`, and the simulator that other commands are told to use."""

import json
import os
import sys
from pathlib import Path

import pytest

from gaitforge.collectors.physics.checks.contact import throughput
from gaitforge.collectors.physics.checks.contract import CHECKS
from gaitforge.collectors.physics.checks.scene import CheckFailed, Make
from gaitforge.collectors.physics.isaacgym.process import PYTHON_VARIABLE
from gaitforge.collectors.simulators import BACKENDS
from tests.pipeline.command_line import Run, assert_refused


@pytest.fixture(autouse=True)
def no_isaacgym(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter is configured, and what a command configures is forgotten again."""
    monkeypatch.setenv(PYTHON_VARIABLE, "")


def heavier(make: Make) -> str:
    """The robot weighs what it should."""
    raise CheckFailed("weight: off by 9 N, allowed is 5 N")


@pytest.fixture
def two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one check that passes, and the throughput."""
    few = {"free-fall": CHECKS["free-fall"], "throughput": throughput}
    monkeypatch.setattr("gaitforge.collectors.physics.checks.contract.CHECKS", few)


def test_the_list_says_what_is_there_and_what_is_lacking(run: Run) -> None:
    code, out, err = run("sim", "list", "--json")
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == list(BACKENDS)
    assert rows["mujoco"] == {
        "name": "mujoco",
        "available": True,
        "why_not": "",
        "version": "3.17.0",
    }
    assert not rows["isaacgym"]["available"]
    assert "--isaacgym-python" in rows["isaacgym"]["why_not"]
    assert all(row["available"] == (row["why_not"] == "") for row in rows.values())
    assert run("sim", "list").out.startswith("name")


@pytest.mark.usefixtures("two_checks")
def test_a_check_is_a_line_with_what_was_measured(run: Run) -> None:
    code, out, _ = run("sim", "check", "mujoco", "--robots", "3")
    assert code == 0
    first, second, last = out.splitlines()
    assert first.startswith("passed  free-fall ")
    assert "falls as a parabola" in first
    assert "m/s" in first
    assert second.endswith("control steps/s with 3 robots")
    assert last == "mujoco 3.17.0: 2 of 2 checks passed"


def test_a_failed_check_is_named_and_ends_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    checks = {"weight": heavier, "throughput": throughput}
    monkeypatch.setattr("gaitforge.collectors.physics.checks.contract.CHECKS", checks)
    code, out, _ = run("sim", "check", "mujoco", "--robots", "1")
    assert code == 1
    assert out.splitlines()[0].startswith("FAILED  weight")
    assert "weighs what it should: weight: off by 9 N, allowed is 5 N" in out
    assert out.endswith("1 of 2 checks passed, weight failed\n")
    code, out, _ = run("sim", "check", "mujoco", "--robots", "1", "--json")
    assert code == 1
    record = json.loads(out)
    assert (record["name"], record["version"], record["passed"]) == ("mujoco", "3.17.0", False)
    failed, passed = record["checks"]
    assert (failed["name"], failed["passed"]) == ("weight", False)
    assert (passed["name"], passed["passed"]) == ("throughput", True)
    assert passed["seconds"] > 0


def test_an_interpreter_without_isaacgym_is_refused_by_name(run: Run) -> None:
    outcome = run("sim", "check", "isaacgym", "--isaacgym-python", sys.executable)
    assert_refused(outcome, sys.executable, "isaacgym")


def test_the_interpreter_is_left_where_worker_processes_find_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("sim", "list", "--isaacgym-python", "env/bin/python")
    assert os.environ[PYTHON_VARIABLE] == str(tmp_path / "env/bin/python")
    run("sim", "list", "--isaacgym-python", "sh")
    assert Path(os.environ[PYTHON_VARIABLE]).is_file(), "a name without a folder is on the path"
