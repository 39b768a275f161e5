"""A virtual environment with lerobot, built once and kept in the checkout's `build/`.

The package asks for other versions than this project's, and for Hugging Face's `datasets`, which
has the name of a package here. So it gets an environment of its own with what
`lerobot_requirements.txt` lists (about 380 MB), and sees the rest, torch above all, in the
environment that runs the tests: that one's folder of packages is the last on its path. Only the
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

from datasets.files import exclusive_lock, write_bytes_durably

REQUIREMENTS = Path(__file__).with_name("lerobot_requirements.txt")
FOLDER = Path(__file__).resolve().parents[2] / "build" / "lerobot-env"
OVERRIDE = "GAITFORGE_LEROBOT_PYTHON"
"""Names an interpreter that has lerobot 0.4.4 and torchrl, to be used instead."""

_STAMP = "complete"
_LIMIT_S = 240.0


class Unavailable(Exception):
    """The packages could not be installed; the message is why."""


def lerobot_python() -> Path:
    """The interpreter; the environment is built if it is not there, or for other requirements.

    Raises:
        Unavailable: pip could not install the packages, as where there is no network.
    """
    if given := os.environ.get(OVERRIDE):
        return Path(given)
    packages = sysconfig.get_path("purelib")
    wanted = hashlib.sha256(f"{packages}\n{REQUIREMENTS.read_text()}".encode()).hexdigest()
    stamp = FOLDER / _STAMP
    FOLDER.parent.mkdir(exist_ok=True)
    with exclusive_lock(FOLDER.with_name(f"{FOLDER.name}.lock")):
        if not stamp.is_file() or stamp.read_text() != wanted:
            _build(packages)
            write_bytes_durably(stamp, wanted.encode())
    return FOLDER / "bin" / "python"


def _build(packages: str) -> None:
    _run("-m", "venv", "--clear", "--without-pip", str(FOLDER))
    install = ("install", "--no-deps", "--only-binary=:all:", "-r", str(REQUIREMENTS))
    _run("-m", "pip", "--python", str(FOLDER), "--disable-pip-version-check", "-q", *install)
    [own] = FOLDER.glob("lib/python*/site-packages")
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
        raise Unavailable(f"lerobot 0.4.4 cannot be installed: {reason}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"lerobot 0.4.4 was not installed in {_LIMIT_S:.0f} s") from error
