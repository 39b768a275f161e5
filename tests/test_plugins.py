"""A plug-in's folder and its entry points are all of it: the product works without them."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PLUGINS = sorted(path.parent.name for path in (ROOT / "plugins").glob("*/__init__.py"))
FOLDERS = ("common", "collectors", "datasets", "flows", "learners", "pipeline", "plugins")
TESTED = ("tests", "benchmarks", "examples", "deploy", "docs")
"""What the tests look at beside the product."""
IGNORED = shutil.ignore_patterns("__pycache__", "node_modules")
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


def gaitforge(copy: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """A command of a copy, which ends without a traceback."""
    done = python(copy, "-m", "gaitforge", *words)
    assert str(copy) not in done.stderr, done.stderr
    return done


@pytest.mark.slow
@pytest.mark.parametrize("plugin", PLUGINS)
def test_what_a_plug_in_brings_goes_with_it_and_the_rest_stays(plugin: str, tmp_path: Path) -> None:
    copy = without([plugin], tmp_path / "copy")
    brings = entry_points(plugin)
    helped = gaitforge(copy, "--help")
    assert helped.returncode == 0, helped.stderr
    for name in brings.get("commands", []):
        assert not re.search(rf"^    {name} ", helped.stdout, re.M)
        refused = gaitforge(copy, *name.strip('"').split("."))  # a command, or an action of one
        assert (refused.returncode, "invalid choice" in refused.stderr) == (2, True)
    formats = json.loads(gaitforge(copy, "formats", "--json").stdout)
    left = {entry["format"] for entry in formats}
    assert left, "formats of others are there"
    assert not left & set(brings.get("formats", []))
    listed = json.loads(gaitforge(copy, "run", "--list", "--json").stdout)
    presets = {row["preset"] for row in listed}
    assert {"demo", "compare"} <= presets
    assert not presets & set(brings.get("presets", []))
    listed = json.loads(gaitforge(copy, "sim", "list", "--json").stdout)
    simulators = {row["name"] for row in listed}
    assert {"mujoco", "isaacgym"} <= simulators
    assert not simulators & set(brings.get("simulators", []))
    for name in brings.get("simulators", []):
        refused = gaitforge(copy, "collect", "s.zarr", "--sim", name)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"unknown simulator '{name}'" in refused.stderr
    for name in brings.get("tasks", []):
        refused = gaitforge(copy, "collect", "s.zarr", "--task", name)
        assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
        assert f"unknown task '{name}'" in refused.stderr


@pytest.mark.slow
def test_the_core_alone_collects_trains_evaluates_and_exports(tmp_path: Path) -> None:
    copy = without(PLUGINS, tmp_path / "copy")
    assert json.loads(gaitforge(copy, "formats", "--json").stdout) == []
    cell = ["--terrain", "flat", "--skill", "stand", "--level", "2"]
    for words in (
        ["collect", "s.zarr", *cell, "--set", "grid.parts=1", "--set", "grid.episodes_per_part=2"],
        ["train", "s.zarr", "--model", "mlp", "--steps", "2", "--out", "run"],
        ["evaluate", "run", *cell, "--episodes", "1"],
        ["export", "run", "exported"],
        ["verify", "s.zarr", "--replay", "1"],
        ["card", "s.zarr", "--no-pictures"],
    ):
        done = gaitforge(copy, *words)
        assert done.returncode == 0, done.stderr
    assert "Findings" not in (copy / "s.zarr.card/card.md").read_text(), "nothing examines data"


@pytest.mark.long
def test_the_cores_tests_need_no_plug_in(tmp_path: Path) -> None:
    """They are found without an error; those of what is not here are left out."""
    copy = without(PLUGINS, tmp_path / "copy")
    for name in TESTED:
        shutil.copytree(ROOT / name, copy / name, ignore=IGNORED)
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
