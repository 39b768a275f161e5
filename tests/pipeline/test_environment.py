"""Commands in poor surroundings: closed streams, other encodings, no user, leftover variables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gaitforge.datasets import open_store
from tests.flows.processes import ROOT

ASCII = {"PYTHONIOENCODING": "ascii"}
PROXIES = {"HTTP_PROXY": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}
PROGRAM = f"{sys.executable} -m gaitforge"
NO_USER = "unshare --user --map-user=54321 --map-group=54321 env -u HOME -u USER -u LOGNAME"
NO_SHARED_MEMORY = (
    "unshare --user --map-root-user --mount "
    "sh -c 'mount -t tmpfs -o ro none /dev/shm && exec \"$@\"' -"
)
SIZES = "--set grid.parts=1 --set grid.episodes_per_part=2 --terrain flat --skill stand"


def shell(line: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of Bash, whose exit code is that of its first failing command."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | variables
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", line],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=240,
    )


def can(program: str) -> bool:
    """Whether this machine lets a test run commands so."""
    words = ["bash", "-c", f"{program} true"]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def folder(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store."""
    folder = tmp_path_factory.mktemp("poor")
    (folder / "a.zarr").symlink_to(store)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [
        (f"LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 {PROGRAM} query a.zarr", "flat"),
        (f"{PROGRAM} query a.zarr 2>&-", "flat"),
        (f"{PROGRAM} query a.zarr >&-", ""),
        (f"{PROGRAM} query a.zarr --list | true", ""),
        (f"{sys.executable} -OO -m gaitforge --help", "usage"),
        (f"MUJOCO_GL=nothing {PROGRAM} collect b.zarr {SIZES}", "aebf40-00000"),
        (f"{PROGRAM} collect c.zarr {SIZES} 2>&-", "aebf40-00000"),
    ],
)
def test_a_command_does_its_work_and_says_nothing_else(folder: Path, line: str, said: str) -> None:
    done = shell(line, folder)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert "Error" not in done.stderr


def test_what_the_terminal_cannot_show_is_a_question_mark(folder: Path) -> None:
    program = (
        "from gaitforge.pipeline.process_setup import prepare_process as p; p(); print('2 \\xd7 3')"
    )
    done = shell(f'{sys.executable} -c "{program}"', folder, **ASCII)
    assert (done.stdout, done.stderr) == ("2 ? 3\n", "")


def test_a_full_disk_is_one_line(folder: Path) -> None:
    done = shell(f"{PROGRAM} models > /dev/full", folder)
    assert done.returncode == 2
    assert done.stderr == "gaitforge: error: No space left on device\n"


@pytest.mark.skipif(not can(NO_USER), reason="needs user namespaces")
@pytest.mark.slow
@pytest.mark.parametrize("words", ["", "--runner prefect"])
def test_a_user_without_a_name_or_a_home_collects(folder: Path, words: str) -> None:
    store = folder / f"{len(words)}.zarr"
    homes = set(Path("/tmp").glob("gaitforge-home-*"))
    line = f"{NO_USER} -u PREFECT_HOME {PROGRAM} collect {store} {SIZES} {words}"
    done = shell(line, folder, **PROXIES)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len(open_store(store).parts()) == 1
    assert set(Path("/tmp").glob("gaitforge-home-*")) <= homes


@pytest.mark.slow
@pytest.mark.skipif(not can(NO_SHARED_MEMORY), reason="needs user namespaces")
def test_dask_without_shared_memory_is_one_line(folder: Path) -> None:
    words = f"{SIZES} --runner dask --workers 1"
    done = shell(f"{NO_SHARED_MEMORY} {PROGRAM} collect d.zarr {words}", folder)
    assert done.returncode == 2
    assert done.stderr.startswith("gaitforge: error: Dask's workers here need /dev/shm")
    assert done.stderr.count("\n") == 1
