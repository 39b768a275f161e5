"""`gaitforge sim list`, and the interpreter that other commands find."""

import json
import os
from pathlib import Path

import pytest

from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE, backend_names
from tests.pipeline.command_line import Run


@pytest.fixture(autouse=True)
def no_isaacgym(monkeypatch: pytest.MonkeyPatch) -> None:
    """No interpreter is configured, and what a command configures is forgotten again."""
    monkeypatch.setenv(ISAACGYM_PYTHON_VARIABLE, "")


def test_the_list_says_what_is_there_and_what_is_lacking(run: Run) -> None:
    code, out, err = run("sim", "list", "--json")
    assert (code, err) == (0, "")
    rows = {row["name"]: row for row in json.loads(out)}
    assert list(rows) == backend_names()
    assert rows["mujoco"] == {
        "name": "mujoco",
        "available": True,
        "why_not": "",
        "version": "3.17.0",
    }
    assert all(row["available"] == (row["why_not"] == "") for row in rows.values())
    assert run("sim", "list").out.startswith("name")


def test_the_interpreter_is_left_where_worker_processes_find_it(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("sim", "list", "--isaacgym-python", "env/bin/python")
    assert os.environ[ISAACGYM_PYTHON_VARIABLE] == str(tmp_path / "env/bin/python")
    run("sim", "list", "--isaacgym-python", "sh")
    found = Path(os.environ[ISAACGYM_PYTHON_VARIABLE])
    assert found.is_file(), "a name without a folder is on the path"
