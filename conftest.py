"""Settings that every test needs before the packages under test are imported."""

import os
import signal
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from tests.pipeline.command_line import Run

# Two workers share two cores, so each computes on one thread.
for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(variable, "1")

# Only a power cut could tell whether a file was flushed to disk, and no test cuts the power.
# Waiting for it is a third of the time of tests that write stores.
os.fsync = lambda fd: None

# Processes that tests start are interrupted even where this one was started to ignore interrupts,
# as shells do with what they put into the background.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["MPLBACKEND"] = "Agg"
os.environ["DO_NOT_TRACK"] = "1"
os.environ["PREFECT_SERVER_ANALYTICS_ENABLED"] = "false"
os.environ["PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS"] = "240"

# No deadline, since machines differ in speed; fixed examples, so that a red run can be repeated.
settings.register_profile(
    "gaitforge",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("gaitforge")

_prefect_home = tempfile.TemporaryDirectory(prefix="gaitforge-prefect-")
os.environ["PREFECT_HOME"] = _prefect_home.name


def pytest_unconfigure(config: pytest.Config) -> None:
    """Remove the run's own Prefect database."""
    _prefect_home.cleanup()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the most slow tests come first, so that no worker is left with one in the end."""
    long = [("slow", 1), ("long", 4)]
    slow = Counter[Path]()
    for item in items:
        slow[item.path] += sum(weight for name, weight in long if item.get_closest_marker(name))
    items.sort(key=lambda item: -slow[item.path])


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str]) -> "Run":
    """The command line in this process: words in, its outcome out."""
    from tests.pipeline.command_line import Outcome, call

    def in_this_process(*arguments: str | Path) -> Outcome:
        capfd.readouterr()
        code = call(*arguments)
        out, err = capfd.readouterr()
        return Outcome(code, out, err)

    return in_this_process


BUCKET = "legged"


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    """Address of an S3 server on loopback with one bucket."""
    from moto.server import ThreadedMotoServer

    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    urlopen(Request(f"http://{host}:{port}/{BUCKET}", method="PUT"), timeout=10).close()
    yield f"http://{host}:{port}"
    moto.stop()


@pytest.fixture
def url(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An address that nothing is stored at, with an empty mirror."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return f"s3://{BUCKET}/{tmp_path.name}/legged.zarr"


@pytest.fixture(scope="session")
def humanoid_reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference file of the CMU humanoid: three synthetic clips of 40 frames (34 steps)."""
    pytest.importorskip("dm_control")
    from gaitforge.plugins.mocapact.humanoid.clips.motions import synthetic_clip
    from gaitforge.plugins.mocapact.humanoid.clips.reference import write_reference

    path = tmp_path_factory.mktemp("humanoid") / "clips.h5"
    wanted = (("squat", 0), ("squat", 1), ("step", 0))
    write_reference(path, [synthetic_clip(motion, 40, variant) for motion, variant in wanted])
    return path


@pytest.fixture(scope="session")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished training of random weights."""
    pytest.importorskip("gymnasium")
    from gaitforge.plugins.gym.tests.making import make_training

    return make_training(tmp_path_factory.mktemp("gym") / "hopper")
