"""Virtual environments with other projects' own packages, built once and kept in `build/`.

Such packages ask for other versions than this project's, and lerobot for Hugging Face's `datasets`,
which has the name of a package here. So each gets an environment of its own with what its file
`NAME_requirements.txt` lists (lerobot: 380 MB, d4rl: 80 MB), and sees the rest, torch above all, in
the environment that runs the tests: that one's folder of packages is the last on its path. Only the
folder is: its `.pth` files are not followed, so what is installed there in place, this project,
stays unseen.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from gaitforge.datasets.files import exclusive_lock, write_bytes_durably
from tests.datasets.programs import ROOT

_STAMP = "complete"
_LIMIT_S = 240.0


class Unavailable(Exception):
    """The packages could not be installed; the message is why."""


def peer_python(name: str) -> Path:
    """The interpreter that has a project's package; its environment is built where it is not there.

    `GAITFORGE_LEROBOT_PYTHON` and the like name one to be used instead. Where pip
    cannot install the packages, as without a network, the test that asks is skipped.

    Args:
        name: begins the file of requirements beside this one.
    """
    if given := os.environ.get(f"GAITFORGE_{name.upper()}_PYTHON"):
        return Path(given)
    requirements = Path(__file__).with_name(f"{name}_requirements.txt")
    folder = ROOT / "build" / f"{name}-env"
    packages = sysconfig.get_path("purelib")
    wanted = hashlib.sha256(f"{packages}\n{requirements.read_text()}".encode()).hexdigest()
    stamp = folder / _STAMP
    folder.parent.mkdir(exist_ok=True)
    with exclusive_lock(folder.with_name(f"{folder.name}.lock")):
        if not stamp.is_file() or stamp.read_text() != wanted:
            try:
                _build(folder, requirements, packages)
            except Unavailable as reason:
                pytest.skip(f"{name}'s own package cannot be installed here: {reason}")
            write_bytes_durably(stamp, wanted.encode())
    return folder / "bin" / "python"


def run_peer(python: Path, program: str | Path, *arguments: str | Path, folder: Path) -> str:
    """Run a program there, in ``folder``; gives the last line that it prints.

    Args:
        program: a file of this folder, or a path.
    """
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hub")}
    environment.pop("PYTHONPATH", None)  # our package `datasets` would hide Hugging Face's
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


def _build(folder: Path, requirements: Path, packages: str) -> None:
    _run("-m", "venv", "--clear", "--without-pip", str(folder))
    install = ("install", "--no-deps", "-r", str(requirements))
    _run("-m", "pip", "--python", str(folder), "--disable-pip-version-check", "-q", *install)
    [own] = folder.glob("lib/python*/site-packages")
    (own / "the_tests_own.pth").write_text(f"{packages}\n")


def _run(*arguments: str) -> None:
    command = [sys.executable, *arguments]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    try:
        subprocess.run(
            command, capture_output=True, text=True, check=True, env=environment, timeout=_LIMIT_S
        )
    except subprocess.CalledProcessError as error:
        reason = (error.stderr.strip().splitlines() or ["no message"])[-1]
        raise Unavailable(reason) from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"pip did not end within {_LIMIT_S:.0f} s") from error
