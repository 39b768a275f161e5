"""The MuJoCo that made a store, beside the installed one, for an exact replay."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp

from gaitforge.datasets import Store


def recorded_mujoco(store: Store) -> Path | None:
    """A folder with the MuJoCo that made a store, installed by pip once; None where it is this one.

    Raises:
        ValueError: several simulators or versions, or one that pip cannot install.
    """
    made = store.as_collected().describe(("simulator", "simulator_version"))
    if len(made) != 1 or made[0]["simulator"] != "mujoco":
        raise ValueError("--with-recorded-versions needs a store that one version of MuJoCo made")
    wanted = str(made[0]["simulator_version"])
    if not re.fullmatch(r"\d[\w.+-]*", wanted):  # it becomes a folder's name, and pip's argument
        raise ValueError(f"the store names no version of MuJoCo, but {wanted!r}")
    if wanted == version("mujoco"):
        return None
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gaitforge"
    folder = cache / f"mujoco-{wanted}"
    if not folder.is_dir():
        print(f"installing mujoco {wanted} into {folder}", file=sys.stderr)
        cache.mkdir(parents=True, exist_ok=True)
        temporary = Path(mkdtemp(dir=cache))
        pip = ["uv", "pip"] if shutil.which("uv") else [sys.executable, "-m", "pip"]
        install = [*pip, "install", "--quiet", "--no-deps", "--target", str(temporary)]
        done = subprocess.run([*install, f"mujoco=={wanted}"], check=False)
        if done.returncode:
            shutil.rmtree(temporary, ignore_errors=True)
            raise ValueError(f"pip cannot install mujoco {wanted}, which made the store")
        temporary.rename(folder)
    return folder


def run_with(folder: Path, words: Sequence[str]) -> int:
    """Run a command of gaitforge with the packages of a folder; returns its exit code."""
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-P", "-m", "gaitforge", *words]
    return subprocess.run(command, env=environment, check=False).returncode
