"""Virtual environments with other projects' own packages, built once and kept in `build/`.

Such packages ask for other versions than this project's. So each gets an environment of its own
with what its file `NAME_requirements.txt` lists (d4rl: 80 MB), and sees the rest, torch above all,
in the environment that runs the tests: that one's folder of packages is the last on its path. Only
the folder is: its `.pth` files are not followed, so what is installed there in place, this project,
stays unseen.

A peer of `_BESIDE` shares its environment with this project. Its packages are solved from this
project's own ranges, with the extras that are used, and from what `NAME.in` asks for: no range is
overridden. `NAME_requirements.txt` is a solution, which holds the versions still; to write it anew:

    uv pip compile pyproject.toml tests/datasets/formats/lerobot.in --extra all -p 3.12 \
        --no-header --no-annotate -o tests/datasets/formats/lerobot_requirements.txt
"""

import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
import warnings
from collections.abc import Sequence
from pathlib import Path

import pytest

from gaitforge.common.files import write_bytes_durably
from gaitforge.common.locks import exclusive_lock
from tests.datasets.programs import ROOT

_STAMP = "complete"
_LIMIT_S = 900.0
_BESIDE = {"lerobot": ("3.12", ("all",)), "mjlab": ("3.12", ("sim", "learn", "experts", "hdf5"))}
"""Peer -> its Python, and the extras of this project that are installed with it."""
_FREE_BYTES = 12e9
"""What an environment with torch's CUDA build and the cache that it is linked to may take."""


class Unavailable(Exception):
    """The packages could not be installed; the message is why."""


def peer_python(name: str) -> Path:
    """The interpreter that has a project's package; its environment is built where it is not there.

    `GAITFORGE_LEROBOT_PYTHON` and the like name one to be used instead. Where the packages cannot
    be installed, as without a network, the test that asks is skipped with a warning.

    Args:
        name: begins the file of requirements beside this one.
    """
    if given := os.environ.get(f"GAITFORGE_{name.upper()}_PYTHON"):
        return Path(given)
    requirements = Path(__file__).with_name(f"{name}_requirements.txt")
    folder = ROOT / "build" / f"{name}-env"
    rest = sysconfig.get_path("purelib")
    if name in _BESIDE:
        rest = (ROOT / "pyproject.toml").read_text()
    wanted = hashlib.sha256(f"{rest}\n{requirements.read_text()}".encode()).hexdigest()
    stamp = folder / _STAMP
    folder.parent.mkdir(exist_ok=True)
    with exclusive_lock(folder.with_name(f"{folder.name}.lock")):
        if not stamp.is_file() or stamp.read_text() != wanted:
            try:
                if name in _BESIDE:
                    _build_beside(name, folder, requirements)
                else:
                    _build(folder, requirements)
            except Unavailable as reason:
                message = f"NOT TESTED: {name}'s own package cannot be installed here: {reason}"
                warnings.warn(message, stacklevel=2)
                pytest.skip(message)
            write_bytes_durably(stamp, wanted.encode())
    return folder / "bin" / "python"


def run_peer(python: Path, program: str | Path, *arguments: str | Path, folder: Path) -> str:
    """Run a program there, in `folder`; gives the last line that it prints.

    Args:
        program: a file of this folder, or a path.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [python, Path(__file__).parent / program, *arguments],
        capture_output=True,
        text=True,
        env=environment,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1] if done.stdout else ""


def uv_pip(folder: Path, *arguments: str | Path) -> None:
    """Install into an environment, with links to uv's cache; from pip's further index too."""
    uv = Path(sys.executable).parent / "uv"
    if not uv.is_file():
        raise Unavailable("no uv beside the Python that runs the tests")
    index = {"UV_EXTRA_INDEX_URL": os.environ.get("PIP_EXTRA_INDEX_URL", "")}
    _run(uv, "pip", "install", "-q", "--python", folder / "bin/python", *arguments, **index)


def install_beside(name: str, wheel: Path) -> Path:
    """Install this project's wheel beside a peer of `_BESIDE`, and its requirements as it has them.

    Returns:
        The environment's Python.

    Raises:
        AssertionError: a requirement of any package there is not met.
    """
    python = peer_python(name)
    _, extras = _BESIDE[name]
    uv_pip(python.parents[1], "--reinstall-package", "gaitforge", f"{wheel}[{','.join(extras)}]")
    check_requirements(python)
    return python


def check_requirements(python: Path) -> None:
    """Raise AssertionError if a package of an environment lacks what it requires."""
    uv = Path(sys.executable).parent / "uv"
    command = [uv, "pip", "check", "--python", python]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _find_python(version: str) -> Path:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    installed = sorted(pyenv.glob(f"versions/{version}.*/bin/python"))
    for python in (shutil.which(f"python{version}"), *installed):
        command = [str(python), "-c", "import venv"]
        # pyenv's plain names fail unless their version is chosen.
        if python and not subprocess.run(command, capture_output=True, check=False).returncode:
            return Path(python)
    raise Unavailable(f"no Python {version}")


def _build_beside(name: str, folder: Path, solution: Path) -> None:
    if shutil.disk_usage(folder.parent).free < _FREE_BYTES:
        raise Unavailable(f"less than {_FREE_BYTES / 1e9:.0f} GB of disk are free")
    version, extras = _BESIDE[name]
    python = _find_python(version)
    _run(python, "-m", "venv", "--clear", "--without-pip", folder)
    solved = folder / "solved.txt"
    solve(python, extras, solution.with_name(f"{name}.in"), "-c", solution, "-o", solved)
    uv_pip(folder, "-r", solved)


def solve(python: Path | str, extras: Sequence[str], *words: Path | str) -> None:
    """Solve this project's requirements together with others'.

    Args:
        python: to solve for, a path or a version.
        extras: of this project.
        words: files of requirements, and further options of `uv pip compile`.

    Raises:
        AssertionError: there is no solution.
        Unavailable: packages cannot be looked up.
    """
    uv = Path(sys.executable).parent / "uv"
    chosen = [word for extra in extras for word in ("--extra", extra)]
    options = ("--no-header", "--no-annotate", "--python", python)
    try:
        _run(uv, "pip", "compile", "-q", ROOT / "pyproject.toml", *chosen, *options, *words)
    except Unavailable as reason:
        if "unsatisfiable" in str(reason):
            raise AssertionError(str(reason)) from None
        raise


def _build(folder: Path, requirements: Path) -> None:
    _run(sys.executable, "-m", "venv", "--clear", "--without-pip", folder)
    pip = (sys.executable, "-m", "pip", "--python", folder, "--disable-pip-version-check", "-q")
    _run(*pip, "install", "--no-deps", "-r", requirements)
    [own] = folder.glob("lib/python*/site-packages")
    (own / "the_tests_own.pth").write_text(f"{sysconfig.get_path('purelib')}\n")


def _run(*command: str | Path, **variables: str) -> None:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {"UV_LINK_MODE": "hardlink", **variables}
    try:
        subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, timeout=_LIMIT_S
        )
    except subprocess.CalledProcessError as error:
        reason = " ".join(error.stderr.split()) or "no message"
        raise Unavailable(reason) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"the installation did not end within {_LIMIT_S:.0f} s") from error
