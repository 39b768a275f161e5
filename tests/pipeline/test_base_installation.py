"""The base installation, without any extra: what works there, and what asks for which extra."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from gaitforge.common import extras
from gaitforge.common.extras import package_of
from tests.datasets.formats.peer_environment import check_requirements

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"bench", "dev", "all"}
SERVICES = {"wandb", "mlflow", "swanlab", "trackio"}
"""Of which one chooses; `all` has none."""
FORMER = {"mocapact": "humanoid"}
"""Former name of an extra -> its name now."""
MOST_PACKAGES = 25
MOST_MB = 360
"""Of 348; pyarrow and duckdb alone have 245."""


def packages(requirements: list[str]) -> set[str]:
    """Names of the packages that requirements ask for."""
    return {re.split(r"[\[<>=!;]", text)[0] for text in requirements} - {"gaitforge"}


@pytest.mark.parametrize("extra", sorted(EXTRAS.keys() - FOR_DEVELOPERS - FORMER.keys()))
def test_an_extra_has_the_packages_that_commands_ask_for(extra: str) -> None:
    assert {package_of(module) for module in extras.EXTRAS[extra]} == packages(EXTRAS[extra])


def test_all_has_every_extra() -> None:
    [everything] = EXTRAS["all"]
    names = everything.removeprefix("gaitforge[").removesuffix("]").split(",")
    assert set(names) == EXTRAS.keys() - FOR_DEVELOPERS - SERVICES - FORMER.keys()


def test_a_former_name_of_an_extra_installs_the_same() -> None:
    for former, name in FORMER.items():
        assert EXTRAS[former] == [f"gaitforge[{name}]"]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment with the base's packages, and this project."""
    folder = tmp_path_factory.mktemp("base")
    uv = Path(sys.executable).parent / "uv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, folder / "venv"], check=True)
    python = folder / "venv/bin/python"
    subprocess.run(
        [uv, "pip", "install", "-q", "--python", python, "-c", "requirements.lock"]
        + PROJECT["dependencies"],
        check=True,
        cwd=ROOT,
    )
    [site] = (folder / "venv/lib").glob("python*/site-packages")
    [record] = Path(sysconfig.get_path("purelib")).glob("gaitforge-*.dist-info")
    shutil.copytree(record, site / record.name)
    (site / "gaitforge.pth").write_text(f"{ROOT}\n")
    check_requirements(python)
    return python


def said(base: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [base, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_the_base_is_small(base: Path) -> None:
    [site] = base.parents[1].glob("lib/python*/site-packages")
    assert len(list(site.glob("*.dist-info"))) <= MOST_PACKAGES
    files = [path for path in site.rglob("*") if path.is_file() and path.suffix != ".pyc"]
    assert sum(path.stat().st_size for path in files) / 1e6 < MOST_MB


@pytest.mark.slow
def test_a_store_is_looked_at_on_the_base(base: Path, store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "a.zarr")
    for line in (
        "--help",
        "collect --help",
        "info a.zarr",
        "query a.zarr --list",
        "verify a.zarr",
        "doctor a.zarr",
        "card a.zarr --no-pictures",
        "dataset annotate a.zarr --skill stand checked=true",
        "models",
        "robot list",
        "formats",
        "completion bash",
    ):
        done = said(base, tmp_path, "-m", "gaitforge", *line.split())
        assert done.returncode == 0, (line, done.stderr)
    page = (tmp_path / "a.zarr.card/card.html").read_text()
    assert "No charts: drawing needs matplotlib" in page


WINDOWS = """
import sys
from gaitforge.datasets import open_store
stream = open_store("a.zarr").select(skill="stand").windows(window_len=8, batch_size=4, seed=3)
first = next(iter(stream))
assert "torch" not in sys.modules
print(type(first["obs"]).__name__, first["obs"].sum(), first["episode"].tolist())
"""


@pytest.mark.slow
def test_windows_are_arrays_without_torch_and_tensors_with_it(
    base: Path, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.zarr").symlink_to(store)
    with_torch = WINDOWS.replace('assert "torch" not in sys.modules', "").replace(
        ".sum()", ".numpy().sum()"
    )
    arrays = said(base, tmp_path, "-c", WINDOWS)
    tensors = said(Path(sys.executable), tmp_path, "-c", with_torch)
    assert arrays.returncode == 0, arrays.stderr
    assert arrays.stdout.startswith("ndarray")
    assert tensors.stdout.startswith("Tensor")
    assert arrays.stdout.split()[1:] == tensors.stdout.split()[1:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "extra"),
    [
        ("collect new.zarr --terrain flat", "sim"),
        ("train a.zarr --out new --model fcnet", "learn"),
        ("evaluate a.zarr --out new", "learn,sim"),
        ("run demo --out new", "learn,sim,report"),
        ("demo --out new", "learn,sim,report"),
        ("expert train --out new --steps 1000", "experts,learn,sim"),
        ("serve --store new.zarr", "flows"),
        ("card a.zarr --out new", "report,sim"),
        ("view a.zarr --out new.html", "sim,learn"),
        ("gym collect new.zarr --env Hopper-v5", "sim"),
        ("export a.zarr d4rl new.hdf5", "hdf5"),
    ],
)
def test_a_command_asks_for_its_extra_before_it_makes_anything(
    base: Path, store: Path, tmp_path: Path, line: str, extra: str
) -> None:
    (tmp_path / "a.zarr").symlink_to(store)
    done = said(base, tmp_path, "-m", "gaitforge", *line.split())
    assert done.returncode == 2, done.stderr
    assert done.stderr.count("\n") == 1
    assert f"[{extra}]'" in done.stderr
    assert os.listdir(tmp_path) == ["a.zarr"]
