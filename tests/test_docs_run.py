"""The shell and Python blocks of the how-to pages run, in their order, in a folder of the page.

The Python of all pages runs in one folder, too. A comment line `# not tested: REASON` excepts the
commands after it in its block.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.command_server import command_server
from tests.test_docs import FENCED, README, ROOT

# tests/pipeline/cli/test_randomisation_page.py runs this one, and looks at what its commands make.
_RUN_ELSEWHERE = ROOT / "docs" / "howto" / "randomisation.md"
_HOWTO = set((ROOT / "docs" / "howto").glob("*.md")) - {_RUN_ELSEWHERE}
PAGES = [ROOT / "docs" / "install.md", *sorted(_HOWTO)]
NOT_TESTED = re.compile(r"^# not tested: (.*)$", re.M)
STORE = "data/legged.zarr"
"""The store that pages take as given; here it is small."""
_SMALL = "--set grid.parts=1 --set grid.episodes_per_part=60 --threads 1"


class Block(NamedTuple):
    """A block of a page: Python for a file, Python to run, or shell."""

    language: str
    file: str
    code: str


def blocks(page: Path) -> list[Block]:
    """A page's blocks up to the last shell block that runs.

    Shell is without what is excepted; Python blocks that follow each other are one.
    """
    listed: list[Block] = []
    for language, file, code in FENCED.findall(page.read_text()):
        tested = NOT_TESTED.split(code)[0] if not language else code
        follows = bool(listed) and listed[-1].language == language == "python"
        if follows and not file and not listed[-1].file:  # it uses the names of the one before
            listed[-1] = Block(language, file, f"{listed[-1].code}\n{tested}")
            continue
        listed.append(Block(language, file, tested))
    shells = [k for k, block in enumerate(listed) if not block.language and block.code.strip()]
    return listed[: shells[-1] + 1] if shells else []


WITH_SHELL = [page for page in PAGES if blocks(page)]


def test_every_exception_has_a_reason() -> None:
    for page in PAGES:
        shells = [code for language, _, code in FENCED.findall(page.read_text()) if not language]
        marks = [line for code in shells for line in code.splitlines() if "not tested" in line]
        assert all(re.fullmatch(r"# not tested: \w.{3,}", mark) for mark in marks), page
    tested = [
        page.stem for page in PAGES if any(not b.language and b.code.strip() for b in blocks(page))
    ]
    assert len(tested) >= 10, tested


def test_pip_can_do_what_the_page_on_installing_says() -> None:
    """With a lock that has hashes pip wants one of every file, of dependencies, too."""
    lock = (ROOT / "requirements.lock").read_text()
    [torch] = re.findall(r"^# (torch==[\d.]+) ", lock, re.M)
    lines = re.findall(r"^.*pip install .*$", (ROOT / "docs" / "install.md").read_text(), re.M)
    locked = [shlex.split(line) for line in lines if "requirements.lock" in line]
    assert locked
    for words in locked:
        after = words[words.index("install") + 1 :]
        assert after == ["--no-deps", "-r", "requirements.lock"]
    assert any(torch in shlex.split(line) and ".whl" in line for line in lines)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with command_server(tmp_path_factory.mktemp("server")) as folder:
        yield folder


@pytest.fixture(scope="module")
def small_store(programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs")
    assert _failure(f"gaitforge collect {STORE} {_SMALL}", folder, programs) == ""
    return folder / "data"


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SHELL, ids=lambda p: p.stem)
def test_the_commands_of_a_page_run_in_their_order(
    page: Path, small_store: Path, programs: Path, tmp_path: Path
) -> None:
    if STORE in page.read_text():
        shutil.copytree(small_store, tmp_path / "data")
    for block in blocks(page):
        if block.file:
            (tmp_path / Path(block.file).name).write_text(block.code)
        elif block.language == "python":
            (tmp_path / "block.py").write_text(block.code)
            assert _failure("python block.py", tmp_path, programs) == ""
        elif not block.language:
            assert _failure(block.code, tmp_path, programs) == ""


@pytest.mark.slow
def test_python_of_all_pages_runs(small_store: Path, programs: Path, tmp_path: Path) -> None:
    """In one folder, since pages use what those before them made; a page's blocks are a script."""
    shutil.copytree(small_store, tmp_path / "data")
    docs = ROOT / "docs"
    first = [README, docs / "datasets.md", docs / "python.md", docs / "howto" / "own-policy.md"]
    for page in (*first, *(page for page in sorted(_HOWTO) if page not in first)):
        script = ""
        for language, file, code in FENCED.findall(page.read_text()):
            if file:
                (tmp_path / Path(file).name).write_text(code)
            elif language == "python":
                script += code
        (tmp_path / "page.py").write_text(script)
        assert _failure("python page.py", tmp_path, programs) == "", page


def _failure(code: str, folder: Path, programs: Path) -> str:
    """What shell lines that fail have said, "" if they do not; run as a reader runs them.

    The reader has installed gaitforge and reads of PYTHONPATH.
    """
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), "."])
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip
    if done.returncode == 0:
        return ""
    return f"{code}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
