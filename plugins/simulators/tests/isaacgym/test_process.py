"""The process that runs Isaac Gym: wrong interpreters, faults, hangs, and no orphans."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gaitforge.collectors.physics import (
    availability,
    is_exact,
    make_backend,
    processor_of,
    released_version,
)
from gaitforge.collectors.physics.interface import BackendUnavailable
from gaitforge.collectors.simulators import ISAACGYM_PYTHON_VARIABLE
from gaitforge.plugins.simulators.isaacgym import process as isaacgym_process
from gaitforge.plugins.simulators.isaacgym.process import (
    DEVICE_VARIABLE,
    TIMEOUT_VARIABLE,
    IsaacGymConfig,
    WorkerError,
    WorkerProcess,
    config_from_environment,
)
from gaitforge.plugins.simulators.isaacgym.worker import protocol
from gaitforge.plugins.simulators.tests.isaacgym.double import CONFIG, TIMEOUT_S, use_the_double
from tests.collectors.making import ROBOT

FACTS = {"threads": 1}
URDF = "<robot/>"
GONE_WITHIN_S = 20.0


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A place of their own for workers' folders, of which none may be left."""
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    yield place
    if any(place.iterdir()):
        gc.collect()  # takes a third of a second where much is imported
    assert list(place.iterdir()) == []


@pytest.fixture
def quick_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The worker with a simulation that needs neither Isaac Gym nor torch: it starts quickly."""
    copy = tmp_path / "worker"
    files = Path(protocol.__file__).parent
    shutil.copytree(files, copy, ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "simulation.py").write_text(
        "class WorkerSimulation:\n"
        "    device = 'cpu'\n"
        "    def __init__(self, settings, memory):\n        pass\n"
        "def isaacgym_version():\n    return '1.0'\n"
    )
    monkeypatch.setattr(isaacgym_process, "WORKER", copy / "worker.py")
    return copy / "worker.py"


def start(config: IsaacGymConfig = CONFIG) -> WorkerProcess:
    return WorkerProcess(config, 2, FACTS, URDF)


def refused(config: IsaacGymConfig) -> str:
    """What is said of a worker that does not start: one line."""
    with pytest.raises(WorkerError) as error:
        start(config)
    assert "\n" not in str(error.value)
    return str(error.value)


def package(folder: Path, text: str) -> Path:
    """A package `isaacgym` that does something when it is imported."""
    (folder / "isaacgym").mkdir(parents=True)
    (folder / "isaacgym" / "__init__.py").write_text(text)
    return folder


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # One that has ended and whose status nobody has read is no process any more.
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_until_gone(pid: int) -> bool:
    deadline = time.monotonic() + GONE_WITHIN_S
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


@pytest.mark.parametrize(
    ("python", "said"),
    [
        ("{}/python3.8", "python3.8): it cannot be started: No such file or directory"),
        ("{}/notes.txt", "notes.txt): it cannot be started: Permission denied"),
        ("/bin/true", "it ended with exit status 0; it printed nothing"),
        (
            sys.executable,
            "it failed: ModuleNotFoundError: No module named 'isaacgym'; it printed n",
        ),
    ],
)
def test_an_interpreter_that_cannot_run_isaac_gym_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, python: str, said: str
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    (tmp_path / "notes.txt").write_text("no program")
    assert said in refused(IsaacGymConfig(python.format(tmp_path), "cpu"))


CRASH = """
import os
for line in range(100):
    print('line', line)
os.system('echo PxFoundation: no memory >&2')
os.abort()
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "print('Checking')\nraise RuntimeError('it needs Python 3.8')\n",
            "it failed: RuntimeError: it needs Python 3.8; it last printed: Checking",
        ),
        (
            CRASH,
            "it was killed by SIGABRT; it last printed: "
            "line 98 | line 99 | PxFoundation: no memory",
        ),
    ],
)
def test_what_isaac_gym_says_before_its_end_is_quoted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str
) -> None:
    use_the_double(monkeypatch, package(tmp_path, text))
    assert refused(CONFIG).endswith(said)


@pytest.mark.slow
def test_a_missing_gpu_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    use_the_double(monkeypatch)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = refused(IsaacGymConfig(sys.executable, "cuda:0", TIMEOUT_S))
    assert "no GPU: torch" in said
    assert "sees none for cuda:0" in said


@pytest.mark.slow
def test_a_worker_that_never_greets_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_the_double(monkeypatch, package(tmp_path, "import time\ntime.sleep(600)\n"))
    said = refused(IsaacGymConfig(sys.executable, "cpu", 3.0))
    assert f"no answer within 3 s ({TIMEOUT_VARIABLE}), so it was killed" in said


@pytest.mark.slow
def test_a_worker_says_what_it_is_and_ends_with_the_reason_when_it_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_the_double(monkeypatch)
    worker = start()
    assert worker.hello["isaacgym"] == "1.0"
    assert worker.hello["device"] == "cpu"
    assert worker.blocks["targets"].shape == (2, 12)
    with pytest.raises(WorkerError, match="it failed: RuntimeError: a step before a world was bui"):
        worker.ask(protocol.STEP)
    assert not alive(worker.pid)
    with pytest.raises(WorkerError, match="it has ended"):
        worker.ask(protocol.STEP)
    worker.close()


@pytest.mark.slow
def test_a_worker_that_hangs_is_killed_and_one_that_nobody_holds_ends(quick_worker: Path) -> None:
    hanging, idle = start(), start()
    os.kill(hanging.pid, signal.SIGSTOP)
    with pytest.raises(WorkerError, match=r"no answer within 0\.5 s .* killed"):
        hanging.ask(protocol.STEP, 0.5)
    assert not alive(hanging.pid)
    pid = idle.pid
    del idle
    gc.collect()
    assert wait_until_gone(pid)


def test_no_worker_outlives_a_killed_parent(quick_worker: Path, folders: Path) -> None:
    """Not even when a process that the parent forked still holds the pipes."""
    program = (
        "import os, pathlib, sys, time\n"
        "from gaitforge.plugins.simulators.isaacgym import process as process\n"
        f"process.WORKER = pathlib.Path({str(quick_worker)!r})\n"
        "config = process.IsaacGymConfig(sys.executable, 'cpu')\n"
        "worker = process.WorkerProcess(config, 2, {}, '<robot/>')\n"
        "child = os.fork()\n"
        "if child:\n"
        "    print(worker.pid, child, flush=True)\n"
        "time.sleep(600)\n"
    )
    root = Path(__file__).resolve().parents[4]
    variables = os.environ | {"TMPDIR": str(folders), "PYTHONPATH": str(root)}
    parent = subprocess.Popen(
        [sys.executable, "-c", program], env=variables, stdout=subprocess.PIPE, cwd=root
    )
    assert parent.stdout is not None
    worker, child = (int(word) for word in parent.stdout.readline().split())
    try:
        assert alive(worker)
        parent.kill()
        parent.wait()
        assert wait_until_gone(worker)
    finally:
        os.kill(child, signal.SIGKILL)
        parent.stdout.close()


@pytest.mark.parametrize(
    ("variable", "value"),
    [(DEVICE_VARIABLE, "cuda:x"), (TIMEOUT_VARIABLE, "soon"), (TIMEOUT_VARIABLE, "0")],
)
def test_a_wrong_setting_is_refused(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    use_the_double(monkeypatch)
    monkeypatch.setenv(variable, value)
    with pytest.raises(BackendUnavailable, match=f"{variable} is '{value}'; it has to be"):
        config_from_environment()


def test_availability_is_that_of_the_interpreters_isaacgym(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_the_double(monkeypatch)
    found = availability("isaacgym")
    assert (found.available, found.why_not, found.version) == (True, "", "1.0")
    use_the_double(monkeypatch, package(tmp_path / "one", "raise ImportError('no libpython3.8')"))
    # The answer is remembered for an interpreter, so this is another name for the same one.
    python = tmp_path / "python"
    python.symlink_to(sys.executable)
    monkeypatch.setenv(ISAACGYM_PYTHON_VARIABLE, str(python))
    found = availability("isaacgym")
    assert not found.available
    assert found.why_not == f"{python} cannot import isaacgym: ImportError: no libpython3.8"
    monkeypatch.setenv(ISAACGYM_PYTHON_VARIABLE, str(tmp_path / "none"))
    assert availability("isaacgym").why_not.endswith("cannot be started: No such file or directory")


def test_a_simulator_that_is_not_here_is_refused_with_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(ISAACGYM_PYTHON_VARIABLE, raising=False)
    found = availability("isaacgym")
    assert not found.available
    assert f"with --isaacgym-python or in {ISAACGYM_PYTHON_VARIABLE}" in found.why_not
    with pytest.raises(BackendUnavailable) as refused:
        make_backend("isaacgym", ROBOT, 1, 1)
    assert str(refused.value) == f"simulator 'isaacgym' is not available: {found.why_not}"
    assert availability("mujoco").available


def test_the_back_end_tells_its_device_where_it_is_not_built() -> None:
    assert (is_exact("isaacgym"), processor_of("isaacgym")) == (False, "cuda")
    assert released_version("isaacgym") is None, "its own Python tells it"
