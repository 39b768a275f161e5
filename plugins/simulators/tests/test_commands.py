"""`gaitforge sim check`, and `gaitforge sim list` with MuJoCo Warp."""

import json
import re
import sys
from pathlib import Path

import pytest

from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE
from gaitforge.plugins.simulators.checks.contact import throughput
from gaitforge.plugins.simulators.checks.contract import CHECKS
from gaitforge.plugins.simulators.checks.measure import CheckFailed, Make
from gaitforge.plugins.simulators.mujoco_warp import warp_backend
from tests.pipeline.command_line import Run, assert_refused


@pytest.fixture(autouse=True)
def no_isaacgym(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter is configured, and what a command configures is forgotten again."""
    monkeypatch.setenv(ISAACGYM_PYTHON_VARIABLE, "")


def heavier(make: Make) -> str:
    """The robot weighs what it should."""
    raise CheckFailed("weight: off by 9 N, allowed is 5 N")


@pytest.fixture
def two_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one check that passes, and the throughput."""
    few = {"free-fall": CHECKS["free-fall"], "throughput": throughput}
    monkeypatch.setattr("gaitforge.plugins.simulators.checks.contract.CHECKS", few)


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
    monkeypatch.setattr("gaitforge.plugins.simulators.checks.contract.CHECKS", checks)
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


@pytest.mark.parametrize(
    ("words", "complaints"),
    [
        ("ode", ["unknown simulator 'ode'; allowed: mujoco, isaacgym, mujoco_warp"]),
        ("isaacgym", ["'isaacgym' is not available: no interpreter"]),
        ("isaacgym --isaacgym-python gone", ["gone", "cannot be started"]),
        ("mujoco --robots 0", ["at least 1, not '0'"]),
        ("mujoco --isaacgym-python python3 --robots 3", ["--isaacgym-python has no effect"]),
    ],
)
def test_wrong_input_is_one_line(words: str, complaints: list[str], run: Run) -> None:
    assert_refused(run("sim", "check", *words.split()), *complaints)


def test_an_evaluation_in_a_simulator_that_is_not_here_is_refused(run: Run) -> None:
    words = "evaluate aliengo-locomotion --sim isaacgym --episodes 1"
    assert_refused(run(*words.split()), "'isaacgym' is not available")


def test_both_are_listed_with_what_is_lacking_and_in_help(run: Run) -> None:
    rows = {row["name"]: row for row in json.loads(run("sim", "list", "--json").out)}
    assert list(rows) == ["mujoco", "isaacgym", "mujoco_warp"]
    assert not rows["isaacgym"]["available"]
    assert "--isaacgym-python" in rows["isaacgym"]["why_not"]
    helped = re.sub(r"\s+", " ", run("collect", "--help").out)
    assert "mujoco, isaacgym, mujoco_warp; see gaitforge sim list" in helped


def test_without_its_extra_mujoco_warp_is_refused_with_the_install_line(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warp_backend, "find_spec", lambda name: None)
    lacks = ("warp-lang and mujoco-warp not installed", "pip install -e '.[warp]'")
    outcome = run("collect", tmp_path / "x.zarr", "--sim", "mujoco_warp", "--parts", "1")
    assert_refused(outcome, "simulator 'mujoco_warp' is not available", *lacks)
