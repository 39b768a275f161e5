"""A plug-in's folder and its entry points are all of it: the product works without them."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import combinations, count
from math import comb
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py"))
FOLDERS = ("common", "collectors", "datasets", "flows", "learners", "pipeline", "plugins")
TESTED = ("tests", "benchmarks", "examples", "recipes", "release", "deploy", "docs")
"""What the tests look at beside the product."""
IGNORED = shutil.ignore_patterns("node_modules", "tests", "*.tmp.*", "*.pyc.*")
"""What a plug-in's folder has for itself, and files that another process is about to replace.

The caches of Python and numba are copied: both know a file by its size and time of change.
"""
TABLE = re.compile(r'^\[project\.entry-points\."gaitforge\.(\w+)"\]\n((?:.+\n)+)', re.M)
METADATA = "from setuptools import build_meta as b; b.prepare_metadata_for_build_wheel('.')"
"""Writes what an installation would tell of the folder: its entry points."""


def entry_points(plugin: str) -> dict[str, list[str]]:
    """Group -> the names that a plug-in brings."""
    tables = TABLE.findall((ROOT / "pyproject.toml").read_text())
    return {
        group: re.findall(rf'^(\S+) = "gaitforge\.plugins\.{plugin}[.:]', lines, re.M)
        for group, lines in tables
    }


def without(plugins: Sequence[str], copy: Path) -> Path:
    """A copy of the product without some plug-ins, as their removal leaves it."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=IGNORED)
    shutil.copytree(ROOT / "gaitforge", copy / "gaitforge", symlinks=True)
    for plugin in plugins:
        shutil.rmtree(copy / "plugins" / plugin)
    for name in ("README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    text = (ROOT / "pyproject.toml").read_text()
    removed = [f'"gaitforge.plugins.{plugin}.' for plugin in plugins]
    lines = text.splitlines()
    kept = [line for line in lines if not any(name in line for name in removed)]
    (copy / "pyproject.toml").write_text("\n".join(kept) + "\n")
    python(copy, "-c", METADATA)
    return copy


def python(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    return subprocess.run(
        [sys.executable, *words],
        cwd=copy, env=environment, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def test_every_folder_is_a_plug_in_with_what_one_needs() -> None:
    assert PLUGINS
    for plugin in PLUGINS:
        folder = ROOT / "plugins" / plugin
        assert re.search(r"^    gaitforge ", (folder / "README.md").read_text(), re.M), plugin
        assert list((folder / "tests").glob("test_*.py")), plugin
        assert any(entry_points(plugin).values()), plugin


COMMANDS = """
import io, json, sys
from contextlib import redirect_stderr, redirect_stdout
from gaitforge.pipeline.cli.main import main
answers = []
for words in json.loads(sys.argv[1]):
    output, error = io.StringIO(), io.StringIO()
    with redirect_stdout(output), redirect_stderr(error):
        try:
            code = main(words)
        except SystemExit as end:
            code = end.code
    answers.append([code or 0, output.getvalue(), error.getvalue()])
print(json.dumps(answers), file=sys.__stdout__)
"""


class Answer(NamedTuple):
    """The end of a command."""

    code: int
    output: str
    error: str


def answers(copy: Path, commands: Sequence[Sequence[str]]) -> list[Answer]:
    """The ends of commands of a copy, one after the other in a process; none has a traceback."""
    done = python(copy, "-c", COMMANDS, json.dumps(commands))
    assert done.returncode == 0, done.stderr
    ends = [Answer(*end) for end in json.loads(done.stdout.splitlines()[-1])]
    assert not [end.error for end in ends if str(copy) in end.error]
    return ends


def removals() -> list[list[str]]:
    """Sets of plug-ins to remove, few: for any two, one has the first and leaves the second."""
    size = next(size for size in count(2) if comb(size, size // 2) >= len(PLUGINS))
    codes = dict(zip(PLUGINS, combinations(range(size), size // 2), strict=False))
    return [[plugin for plugin in PLUGINS if k in codes[plugin]] for k in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize("plugins", removals(), ids="-".join)
def test_what_plug_ins_bring_goes_with_them_and_the_rest_stays(
    plugins: list[str], tmp_path: Path
) -> None:
    goes = brought(plugins)
    stays = brought(set(PLUGINS).difference(plugins))
    commands = [name.strip('"').split(".") for name in goes["commands"]]
    uses = [("unknown simulator", "--sim", name) for name in goes["simulators"]]
    uses += [("unknown task", "--task", name) for name in goes["tasks"]]
    lists = [["formats", "--json"], ["run", "--list", "--json"], ["sim", "list", "--json"]]
    collections = [["collect", "s.zarr", option, name] for _, option, name in uses]
    (helped, formats, presets, simulators, *refused) = answers(
        without(plugins, tmp_path / "copy"), [["--help"], *lists, *commands, *collections]
    )
    assert helped.code == 0, helped.error
    for name in goes["commands"]:
        assert not re.search(rf"^    {name} ", helped.output, re.M)
    for answer in refused[: len(commands)]:  # a command, or an action of one
        # A command with work of its own takes the action's name for something else.
        refusal = "invalid choice" in answer.error or "export needs" in answer.error
        assert (answer.code, refusal) == (2, True)
    assert {entry["format"] for entry in json.loads(formats.output)} == stays["formats"]
    listed = {row["preset"] for row in json.loads(presets.output)}
    assert listed >= {"demo", "compare"} | stays["presets"]
    assert not listed & goes["presets"]
    known = {row["name"] for row in json.loads(simulators.output)}
    assert known == {"mujoco"} | stays["simulators"]
    for (complaint, _, name), answer in zip(uses, refused[len(commands) :], strict=True):
        assert (answer.code, answer.error.count("\n")) == (2, 1)
        assert f"{complaint} '{name}'" in answer.error


def brought(plugins: Iterable[str]) -> defaultdict[str, set[str]]:
    """Group -> the names that plug-ins bring."""
    names = defaultdict[str, set[str]](set)
    for plugin in plugins:
        for group, own in entry_points(plugin).items():
            names[group].update(own)
    return names


@pytest.mark.slow
def test_the_core_alone_collects_trains_evaluates_and_exports(tmp_path: Path) -> None:
    copy = without(PLUGINS, tmp_path / "copy")
    cell = ["--terrain", "flat", "--skill", "stand", "--level", "2"]
    formats, *done = answers(copy, [
        ["formats", "--json"],
        ["collect", "s.zarr", *cell, "--set", "grid.parts=1", "--set", "grid.episodes_per_part=2"],
        ["train", "s.zarr", "--model", "mlp", "--steps", "2", "--out", "run"],
        ["evaluate", "run", *cell, "--episodes", "1"],
        ["export", "run", "exported"],
        ["verify", "s.zarr", "--replay", "1"],
        ["card", "s.zarr", "--no-pictures"],
    ])  # fmt: skip
    assert json.loads(formats.output) == []
    assert [answer.code for answer in done] == [0] * 6, done
    assert "Findings" not in (copy / "s.zarr.card/card.md").read_text(), "nothing examines data"


@pytest.mark.long
def test_the_cores_tests_need_no_plug_in(tmp_path: Path) -> None:
    """They are found without an error; those of what is not here are left out."""
    copy = without(PLUGINS, tmp_path / "copy")
    for name in TESTED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("conftest.py", "prefect.yaml", "Containerfile"):
        shutil.copy(ROOT / name, copy)
    done = python(copy, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", "tests")
    assert done.returncode == 0, done.stdout[-3000:]


def test_no_test_of_the_core_imports_a_plug_in() -> None:
    """By name; `tests/datasets/formats/cases.py` and the like take what is there."""
    for path in (ROOT / "tests").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            assert not any(name.startswith("gaitforge.plugins") for name in names), path
