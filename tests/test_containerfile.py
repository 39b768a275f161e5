"""The container's steps, as far as they go without a builder: on the files that it would copy."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
GUIDE = (ROOT / "docs/containers.md").read_text()


@dataclass(frozen=True)
class Step:
    """An instruction of the Containerfile, in the stage that it belongs to."""

    stage: str
    name: str
    text: str


def read_steps() -> list[Step]:
    """The Containerfile's instructions in order; a FROM belongs to the stage that it begins."""
    lines = (ROOT / "Containerfile").read_text().splitlines()
    text = "\n".join(line for line in lines if not line.startswith("#")).replace("\\\n", " ")
    steps, stage = [], ""
    for line in filter(None, text.splitlines()):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            stage = rest.split()[-1]
        steps.append(Step(stage, name, " ".join(rest.split())))
    return steps


STEPS = read_steps()


def texts(name: str, stage: str | None = None) -> list[str]:
    """The texts of all instructions of a name, of one stage or of all."""
    return [s.text for s in STEPS if s.name == name and stage in (None, s.stage)]


def ignored(path: Path) -> bool:
    """Whether .containerignore keeps a path, relative to the root, out of the image."""
    for pattern in (ROOT / ".containerignore").read_text().split():
        parts = re.escape(pattern).replace(r"\*\*/", "(.*/)?").replace(r"\*", "[^/]*")
        if re.fullmatch(f"{parts}(/.*)?", path.as_posix()):
            return True
    return False


@pytest.fixture(scope="module")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `COPY . .` of a checkout copies; tests and pictures take no part in the steps."""
    assert texts("COPY", "environment") == [". ."]
    target = tmp_path_factory.mktemp("image") / "gaitforge"

    def left_out(folder: str, names: list[str]) -> set[str]:
        here = Path(folder).relative_to(ROOT)
        return {name for name in names if ignored(here / name) or here / name == Path("tests")}

    shutil.copytree(ROOT, target, ignore=left_out)
    return target


def test_what_belongs_to_the_project_is_copied_and_what_lies_beside_it_is_not() -> None:
    packages = ("collectors", "common", "datasets", "flows", "learners", "pipeline", "plugins")
    files = [p.relative_to(ROOT) for each in packages for p in (ROOT / each).rglob("*.*")]
    kept = [path for path in files if not {"__pycache__", "node_modules"} & set(path.parts)]
    assert [path for path in kept if ignored(path)] == []
    for name in ("Makefile", "pyproject.toml", "requirements.lock", "requirements-dev.lock"):
        assert not ignored(Path(name))
    for name in (".git/HEAD", ".venv/bin/python", "runs/demo/report.html", "data/a.zarr/zarr.json"):
        assert ignored(Path(name)), name
    for name in ("flows/__pycache__/x.pyc", "plugins/player/page/node_modules/three/x.js"):
        assert ignored(Path(name)), name


def test_every_run_is_a_program_of_the_shell() -> None:
    programs = texts("RUN")
    assert programs
    for text in programs:
        read = subprocess.run(["/bin/sh", "-n", "-c", text], capture_output=True, check=False)
        assert (read.returncode, read.stderr) == (0, b""), text


def test_stages_build_on_earlier_ones_and_copy_what_these_made() -> None:
    known: set[str] = set()
    for step in STEPS:
        if step.name == "FROM":
            base, _, stage = step.text.partition(" AS ")
            assert base == "${BASE}" or base in known
            known.add(stage)
        elif step.name == "COPY" and step.text.startswith("--from="):
            source, *paths = step.text.removeprefix("--from=").split()
            assert source in known
            assert paths == texts("WORKDIR", "base") * 2, "where the packages are linked to"
    assert known >= set(re.findall(r"--target (\w+)", GUIDE)) == {"cpu", "cuda"}


def test_setup_begins_with_what_was_copied(copied: Path) -> None:
    [line] = [text for text in texts("RUN", "environment") if "make" in text]
    [words] = [shlex.split(each) for each in line.split("&&") if each.split()[0] == "make"]
    done = subprocess.run(
        [words[0], "-n", *words[1:]], cwd=copied, capture_output=True, text=True, check=True
    )
    assert "building .venv" in done.stdout
    assert f"-r {copied.joinpath('requirements.lock').name}" in done.stdout


def test_the_lock_of_the_image_has_every_extra() -> None:
    locked = re.findall(r"^([a-z0-9._-]+)==", (ROOT / "requirements.lock").read_text(), re.M)
    extras = PROJECT["optional-dependencies"]
    [everything] = extras["all"]
    for extra in re.findall(r"[a-z0-9]+", everything.partition("[")[2]):
        for requirement in extras[extra]:
            name = re.split(r"[\[=<>~;]", requirement)[0].lower().replace("_", "-")
            assert name in {*locked, "gaitforge", "torch"}, requirement


def test_the_program_runs_from_the_copied_files(copied: Path) -> None:
    [entry] = texts("ENTRYPOINT")
    assert entry == '["gaitforge"]'
    module, function = PROJECT["scripts"]["gaitforge"].split(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}(['expert', 'list']))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=copied,
        env=os.environ | {"PYTHONPATH": str(copied)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "aliengo" in done.stdout


def test_user_folders_and_arguments_are_those_of_the_guide() -> None:
    assert texts("USER", "cpu") == ["1000"]
    assert any("useradd --uid 1000" in t and "chown gaitforge /data" in t for t in texts("RUN"))
    assert texts("WORKDIR", "cpu") == ["/data"]
    assert "runs as user 1000" in GUIDE
    assert "`/data` is the working directory" in GUIDE
    [environment] = texts("ENV", "cpu")
    values = dict(each.split("=", 1) for each in environment.split())
    [home] = texts("WORKDIR", "base")
    assert values["PATH"].split(":")[0] == f"{home}/.venv/bin"
    assert {values["XDG_CACHE_HOME"], values["PREFECT_HOME"]} == {"/tmp/cache", "/tmp/prefect"}
    assert f"{home}/.venv/bin" in (ROOT / "deploy/gaitforge.def").read_text()
    known = {text.partition("=")[0] for text in texts("ARG")}
    assert known == set(re.findall(r"--build-arg (\w+)=", GUIDE))
