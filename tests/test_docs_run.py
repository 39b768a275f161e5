"""The shell and Python blocks of the how-to pages run, in their order, in an empty folder.

Six newcomers' ways lead over several pages in one folder, to where their person wants to be. The
Python of all pages runs in one folder, too. A comment line `# not tested: REASON` excepts the
commands after it in its block.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from gaitforge.collectors.robots.robot import N_JOINTS
from tests.collectors.imported_files import metadata, write_policy
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

_SMALL_ATTENTION = " ".join(
    f"--set measures.attention.{setting}"
    for setting in ("nodes=[4]", "sparsity_nodes=[4]", "sparsity=[0.5]", "masks=2")
)

NEEDS_POLICY = "needs your policy"
"""The exception of commands that want a file which mjlab or Isaac Lab wrote."""


class Way(NamedTuple):
    """What a newcomer reads and runs in one folder, and where that ends.

    Attributes:
        pages: below docs, in their order.
        files: what is there at the end.
        said: what the commands have said by then.
        shorter: pattern of a command -> what it ends with here, to be short.
        brings: exception of the pages' commands that does not hold here -> what writes what the
            commands lack into the folder.
    """

    pages: tuple[str, ...]
    files: tuple[str, ...]
    said: tuple[str, ...] = ()
    shorter: Mapping[str, str] = MappingProxyType({})
    brings: Mapping[str, Callable[[Path], object]] = MappingProxyType({})


def _write_soft_policy(folder: Path) -> None:
    """A policy as mjlab writes it, whose gains are not its robot's."""
    gains = metadata(joint_stiffness=",".join(["30.000"] * N_JOINTS))
    write_policy(folder / "policy.onnx", properties=gains)


WAYS = {
    "logs of one's own robot": Way(
        ("howto/own-logs.md",),
        ("exports/logs/policy.onnx", "exports/logs/policy.json"),
        ("evaluated on 1 cell: flat x stand",),
    ),
    "a lab's cluster": Way(
        ("howto/lab-engineer.md",),
        ("scripts", "episodes.parquet", "card/explorer.html"),
        ("after", "GPU hours"),
    ),
    "one's own PyTorch code": Way(("python.md", "howto/fine-tune.md"), ("runs/longer/plan.json",)),
    "a new model and task": Way(
        ("howto/model.md", "howto/task.md"),
        ("runs/gru/plan.json", "runs/compare-gru/report.html", "exports/point/policy.onnx"),
    ),
    "policies and recordings of Isaac Lab": Way(
        ("howto/own-policy.md", "howto/own-recordings.md"),
        ("runs/go1/plan.json", "my-expert/robot", "exports/demos/policy.onnx", "lab.hdf5"),
        shorter={
            r"gaitforge collect .*": "--set grid.parts=1 --set grid.episodes_per_part=4",
            r"gaitforge train data/go1.*": "--steps 4",
            r"gaitforge evaluate .*": "--episodes 2",
            # This policy stands still, which the check has to say.
            r"gaitforge expert check .*": "|| test $? = 1",
        },
        brings={NEEDS_POLICY: _write_soft_policy},
    ),
    "a paper's figures": Way(
        ("papers.md",),
        ("runs/attention/report.html", "runs/spectra/report.html"),
        ("Figures 6 and 13", "Figure 1", "here"),
        shorter={
            "gaitforge run bot-attention .*": f"--set repeats=3 {_SMALL_ATTENTION}",
            "gaitforge run fcnet-spectra .*": "--set repeats=3 --set measures.spectra.n=[32,128]",
        },
    ),
}
"""Person -> way."""


class Block(NamedTuple):
    """A block of a page: Python for a file, Python to run, or shell."""

    language: str
    file: str
    code: str


def blocks(page: Path, brought: tuple[str, ...] = ()) -> list[Block]:
    """A page's blocks.

    Shell is without what is excepted, but for the `brought` reasons; Python blocks that follow each
    other are one.
    """
    listed: list[Block] = []
    for language, file, code in FENCED.findall(page.read_text()):
        tested = code if language else _tested(code, brought)
        follows = bool(listed) and listed[-1].language == language == "python"
        if follows and not file and not listed[-1].file:  # it uses the names of the one before
            listed[-1] = Block(language, file, f"{listed[-1].code}\n{tested}")
            continue
        listed.append(Block(language, file, tested))
    return listed


def has_shell(page: Path) -> bool:
    """Whether a command of the page is tested."""
    return any(map(is_shell, blocks(page)))


def is_shell(block: Block) -> bool:
    """Whether a block has commands that are tested."""
    return not block.language and bool(block.code.strip())


def _tested(shell: str, brought: tuple[str, ...]) -> str:
    """The lines of a block before its first exception that holds."""
    first, *rest = NOT_TESTED.split(shell)
    for reason, code in zip(rest[::2], rest[1::2], strict=True):
        if reason not in brought:
            break
        first += code
    return first


_ON_WAYS = {ROOT / "docs" / page for way in WAYS.values() for page in way.pages}
ALONE = [page for page in PAGES if page not in _ON_WAYS and has_shell(page)]
"""The pages that run in a folder of their own."""


def test_every_exception_has_a_reason() -> None:
    for page in PAGES:
        shells = [code for language, _, code in FENCED.findall(page.read_text()) if not language]
        marks = [line for code in shells for line in code.splitlines() if "not tested" in line]
        assert all(re.fullmatch(r"# not tested: \w.{3,}", mark) for mark in marks), page
    tested = [page.stem for page in PAGES if has_shell(page)]
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
@pytest.mark.parametrize("page", ALONE, ids=lambda p: p.stem)
def test_the_commands_of_a_page_run_in_their_order(
    page: Path, small_store: Path, programs: Path, tmp_path: Path
) -> None:
    if STORE in page.read_text():
        shutil.copytree(small_store, tmp_path / "data")
    listed = blocks(page)
    last = max(k for k, block in enumerate(listed) if is_shell(block))
    for block in listed[: last + 1]:  # the test of all Python runs the rest
        failure, _ = _follow(block, tmp_path, programs)
        assert failure == ""


@pytest.mark.slow
@pytest.mark.parametrize("person", WAYS)
def test_a_newcomers_way_ends_where_the_person_wants_to_be(
    person: str, small_store: Path, programs: Path, tmp_path: Path
) -> None:
    way = WAYS[person]
    pages = [ROOT / "docs" / page for page in way.pages]
    if any(STORE in page.read_text() for page in pages):
        shutil.copytree(small_store, tmp_path / "data")
    for bring in way.brings.values():
        bring(tmp_path)
    said = ""
    for page in pages:
        for block in blocks(page, tuple(way.brings)):
            code = block.code if block.language else _shorter(block.code, way.shorter)
            failure, told = _follow(block._replace(code=code), tmp_path, programs)
            assert failure == ""
            said += told
    assert [name for name in way.files if not (tmp_path / name).exists()] == []
    assert [words for words in way.said if words not in said] == []


def _shorter(shell: str, shorter: Mapping[str, str]) -> str:
    """A block whose commands end with the options that `shorter` has for them."""
    for command, options in shorter.items():
        shell = re.sub(rf"^({command})$", rf"\1 {options}", shell, flags=re.M)
    return shell


def _follow(block: Block, folder: Path, programs: Path) -> tuple[str, str]:
    """Do what a reader does with a block: how it failed ("" if not), and what it has said."""
    if block.file:
        (folder / Path(block.file).name).write_text(block.code)
        return "", ""
    code = block.code
    if block.language == "python":
        (folder / "block.py").write_text(code)
        code = "python block.py"
    elif block.language:
        return "", ""
    done = _run(code, folder, programs)
    return _told(code, done) if done.returncode else "", done.stdout + done.stderr


@pytest.mark.slow
def test_python_of_all_pages_runs(small_store: Path, programs: Path, tmp_path: Path) -> None:
    """In one folder, since pages use what those before them made; a page's blocks are a script.

    Those of newcomers' ways run there.
    """
    shutil.copytree(small_store, tmp_path / "data")
    docs = ROOT / "docs"
    first = [README, docs / "datasets.md", docs / "howto" / "own-policy.md"]
    rest = [page for page in sorted(_HOWTO - _ON_WAYS) if page not in first]
    for page in (*first, *rest):
        script = ""
        for language, file, code in FENCED.findall(page.read_text()):
            if file:
                (tmp_path / Path(file).name).write_text(code)
            elif language == "python":
                script += code
        (tmp_path / "page.py").write_text(script)
        assert _failure("python page.py", tmp_path, programs) == "", page


def _failure(code: str, folder: Path, programs: Path) -> str:
    """What shell lines that fail have said, "" if they do not."""
    done = _run(code, folder, programs)
    return _told(code, done) if done.returncode else ""


def _run(code: str, folder: Path, programs: Path) -> subprocess.CompletedProcess[str]:
    """Shell lines as a reader runs them, who has installed gaitforge and reads of PYTHONPATH."""
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), "."])
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", code],
        cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False,
    )  # fmt: skip


def _told(code: str, done: subprocess.CompletedProcess[str]) -> str:
    """The code, its exit code and the ends of its outputs."""
    return f"{code}\nexit code {done.returncode}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
