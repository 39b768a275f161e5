"""What an installation holds: one import name, every module, the player's page."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from importlib.metadata import distributions, version
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import nbformat
import pytest
from nbclient import NotebookClient
from setuptools import find_packages

from gaitforge.common.errors import install_extra
from tests.datasets.formats.peer_environment import install_beside, run_peer

ROOT = Path(__file__).resolve().parent.parent
FLOORS = ("collectors", "common", "datasets", "flows", "learners", "pipeline", "plugins")


def test_the_package_links_to_every_floor() -> None:
    links = {
        path.name: os.readlink(path) for path in (ROOT / "gaitforge").iterdir() if path.is_symlink()
    }
    assert links == {name: f"../{name}" for name in FLOORS}


def test_every_folder_with_modules_is_a_package() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    find = table["find"]
    found = set(find_packages(str(ROOT), include=find["include"], exclude=find["exclude"]))
    files = [path.relative_to(ROOT) for floor in FLOORS for path in (ROOT / floor).rglob("*.py")]
    folders = {ROOT / path.parent for path in files if "tests" not in path.parts}
    wanted = {f"gaitforge.{'.'.join(path.relative_to(ROOT).parts)}" for path in folders}
    assert found == wanted | {"gaitforge"}


@pytest.mark.parametrize("name", [name for name in FLOORS if name != "plugins"])
def test_an_old_name_says_the_new_one(name: str) -> None:
    code = f"import {name}"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert f"import gaitforge.{name}; to import another package called {name}" in done.stderr


def test_git_holds_no_built_script() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*/built/*"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert not listed.stdout, "the player's script is made by `make setup`"


def test_an_extra_is_installed_as_gaitforge_was(tmp_path: Path) -> None:
    assert "pip install -e '.[onnx]' in gaitforge's folder" in install_extra("onnx")
    installed = tmp_path / "site-packages/gaitforge/common/errors.py"
    installed.parent.mkdir(parents=True)
    shutil.copy(ROOT / "common/errors.py", installed)
    line = runpy.run_path(str(installed))["install_extra"]("onnx")
    wheel = f"gaitforge-{version('gaitforge')}-py3-none-any.whl"
    assert line == f"run {sys.executable} -m pip install '{wheel}[onnx]' in the wheel's folder"


def run(*words: object, cwd: Path) -> str:
    done = subprocess.run(
        [*map(str, words)],
        cwd=cwd,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


TINY = (
    *("collect.grid.parts=1", "collect.grid.episodes_per_part=4", "collect.grid.terrains=flat"),
    *("collect.grid.skills=stand", "collect.grid.levels=4", "corrections=none"),
    'evaluate={"terrains":["flat"],"skills":["stand"],"episodes":1}',
    'learners={"fcnet":{"model":"fcnet","steps":3,"batch_size":4,"window_len":16,"threads":1}}',
)


def link_torch(packages: Path) -> None:
    """Let an environment have the tests' own torch, of gigabytes, with what the lock leaves out."""
    for package in distributions():
        if re.match(r"(torch|triton)$|nvidia-|cuda-", package.name):
            for name in {file.parts[0] for file in package.files or () if file.parts[0] != ".."}:
                if not (packages / name).exists():
                    (packages / name).symlink_to(str(package.locate_file(name)))


@pytest.fixture(scope="module")
def wheel() -> Path:
    bin_folder = f"BIN={Path(sys.executable).parent}"
    # The stamp as the Makefile names it: else make builds the tests' own .venv anew.
    run("make", "-o", ".venv/.stamp", "wheel", bin_folder, cwd=ROOT)
    [wheel] = (ROOT / "dist").glob("gaitforge-*.whl")
    return wheel


@pytest.mark.long
def test_the_wheel_works_outside_the_tree(wheel: Path, tmp_path: Path) -> None:
    """Installed with the lock into an empty environment, and used from there alone."""
    paths = {path.relative_to(ROOT) for floor in FLOORS for path in (ROOT / floor).rglob("*.py")}
    modules = {path for path in paths if "tests" not in path.parts}
    with ZipFile(wheel) as packed:
        names = set(packed.namelist())
    assert {f"gaitforge/{path}" for path in modules} <= names
    assert "gaitforge/plugins/player/built/main.js" in names
    policies = (ROOT / "learners/assets").glob("*/*")
    assert {f"gaitforge/{path.relative_to(ROOT)}" for path in policies} <= names
    outside = ("benchmarks", "docs", "examples", "recipes", "release", "tests")
    assert not [name for name in names if name.removeprefix("gaitforge/").startswith(outside)]
    assert not [name for name in names if "tests" in Path(name).parts]
    python, uv = tmp_path / "venv/bin/python", Path(sys.executable).parent / "uv"
    run(uv, "venv", "-q", "--python", sys.executable, tmp_path / "venv", cwd=tmp_path)
    install = (uv, "pip", "install", "-q", "--python", python, "--no-deps")
    run(*install, "--require-hashes", "-r", ROOT / "requirements.lock", cwd=tmp_path)
    run(*install, wheel, cwd=tmp_path)
    [packages] = (tmp_path / "venv").glob("lib/python*/site-packages")
    link_torch(packages)
    gaitforge = tmp_path / "venv/bin/gaitforge"
    (tmp_path / "empty").mkdir()
    run(gaitforge, "view", "fcnet-aliengo", "--terrain", "stairs", cwd=tmp_path / "empty")
    assert (tmp_path / "empty/fcnet-aliengo.view.html").is_file()
    run(gaitforge, "demo", "--out", "demo", *(f"--set={each}" for each in TINY), cwd=tmp_path)
    assert (tmp_path / "demo/report.html").is_file()
    run(gaitforge, "view", "demo/legged.zarr", cwd=tmp_path)
    assert (tmp_path / "demo/legged.zarr.view.html").is_file()
    run(gaitforge, "export", "demo/train/fcnet", "exported", "--formats", "pt2", cwd=tmp_path)
    text = [path.read_text() for path in (tmp_path / "demo").rglob("*.json")]
    assert text
    assert not [each for each in text if any(f"{name}." in each for name in FLOORS)]


def beside_the_tests_packages(wheel: Path, folder: Path) -> Path:
    """The programs of an environment with the wheel and all that the tests have, but the tree."""
    uv = Path(sys.executable).parent / "uv"
    run(uv, "venv", "-q", "--python", sys.executable, folder, cwd=ROOT)
    run(uv, "pip", "install", "-q", "--python", folder / "bin/python", "--no-deps", wheel, cwd=ROOT)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "tests.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return folder / "bin"


def install_kernel(python: Path, folder: Path) -> None:
    """Describe a kernel of a Python where Jupyter looks for kernels of its data folder."""
    kernel = folder / "kernels/wheel/kernel.json"
    kernel.parent.mkdir(parents=True)
    command = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel.write_text(json.dumps({"argv": command, "display_name": "wheel", "language": "python"}))


WHOLE = "GAITFORGE_WHOLE_QUICKSTART"
"""Variable: run the notebook as it is, for minutes, and not with little data and few steps."""
FEWER = {"steps=1200": "steps=20", '"episodes_per_part": 200': '"episodes_per_part": 24'}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_quickstart_runs_on_the_wheel(
    wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an empty folder; with all of its data the policy stays on its feet."""
    programs = beside_the_tests_packages(wheel, tmp_path / "venv")
    install_kernel(programs / "python", tmp_path / "jupyter")
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("PYTHONPATH", raising=False)
    notebook = nbformat.read(ROOT / "docs/quickstart.ipynb", as_version=4)
    for cell in notebook.cells if WHOLE not in os.environ else ():
        for much, little in FEWER.items():
            cell.source = cell.source.replace(much, little)
    where = "import gaitforge; print(gaitforge.__file__)"
    notebook.cells.append(nbformat.v4.new_code_cell(where))
    empty = tmp_path / "empty"
    empty.mkdir()
    client = NotebookClient(
        notebook, kernel_name="wheel", timeout=1200, resources={"metadata": {"path": str(empty)}}
    )
    client.execute()
    assert [path.name for path in empty.iterdir()] == ["quickstart"]
    assert (empty / "quickstart/player.html").is_file()
    printed = "".join(
        output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", ())
    )
    assert f"{tmp_path}/venv/lib" in printed
    survival = re.search(r"(\d+)% do not fall", printed)
    assert survival, printed
    if WHOLE in os.environ:
        assert int(survival[1]) >= 70


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_wheel_works_beside_lerobot_and_hugging_faces_datasets(
    wheel: Path, tmp_path: Path
) -> None:
    """In one process: collected, exported, loaded by lerobot, read by torch, and trained on."""
    seen = beside("lerobot", wheel, tmp_path)
    assert len(set(seen["frames"])) == 1
    assert seen["frames"][0] > 32
    assert seen["same"]
    assert seen["checkpoint"]


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_the_wheel_works_beside_mjlab(wheel: Path, tmp_path: Path) -> None:
    """In one process: an environment of mjlab recorded and learned from, and a collection."""
    seen = beside("mjlab", wheel, tmp_path)
    assert seen["same"]
    assert seen["recorded"]
    assert seen["seconds"] == 0.02
    assert seen["moved"] > 0.1
    assert seen["collected"] == 6
    assert seen["versions"]["mujoco"].startswith("3.11.")


def beside(name: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """What the program beside another project prints, with the wheel in their environment."""
    python = install_beside(name, wheel)
    return json.loads(run_peer(python, f"beside_{name}.py", folder, folder=folder))
