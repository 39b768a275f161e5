"""The MuJoCo that made a store, beside the installed one, for an exact replay."""

import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path
from tempfile import mkdtemp

import gaitforge
from gaitforge.common.files import cache_folder
from gaitforge.datasets import Store

SIMULATOR = "mujoco"
OPTION = "--with-recorded-versions"
_VERSION = re.compile(
    r"\d{1,6}(\.\d{1,6}){0,4}((a|b|rc)\d{1,6})?(\.post\d{1,6})?(\.dev\d{1,9})?", re.ASCII
)
"""A public version of PEP 440, in its normal form."""
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_IMPORT = """
import mujoco, sys
mujoco.mj_step(*(lambda m: (m, mujoco.MjData(m)))(mujoco.MjModel.from_xml_string("<mujoco/>")))
print(mujoco.__version__, mujoco.__file__, sep="\\n")
"""


@dataclass(frozen=True)
class VersionRun:
    """A command that a version of MuJoCo has done: its exit code and what it printed."""

    version: str
    code: int
    output: str


def plain_version(text: str) -> str:
    """A version that a store names, checked before it becomes a path or an installer's argument.

    Raises:
        ValueError: no plain version, such as 3.3.2 or 3.3.2rc1.
    """
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text[:40]!r} is no version of {SIMULATOR}")
    return text


def recorded_versions(store: Store) -> list[str]:
    """The versions of MuJoCo that made a store's parts, sorted.

    Raises:
        ValueError: no episodes, another simulator, or a text that is no version.
    """
    rows = store.as_collected().describe(("simulator", "simulator_version"))
    if not rows or any(row["simulator"] != SIMULATOR for row in rows):
        raise ValueError("--with-recorded-versions needs a store that MuJoCo made")
    return sorted({plain_version(str(row["simulator_version"])) for row in rows})


def recorded_mujoco(wanted: str) -> Path | None:
    """A folder with a version of MuJoCo, installed once; None where it is this environment's.

    The folder is one for each version, Python and machine. It appears only once it can be imported.

    Raises:
        ValueError: no version, or one that cannot be installed or imported here.
    """
    plain_version(wanted)
    if wanted == version(SIMULATOR):
        return None
    cache = cache_folder()
    python = f"{sys.implementation.cache_tag}-{sys.platform}-{platform.machine()}"
    folder = cache / f"{SIMULATOR}-{wanted}-{python}"
    if folder.is_dir() and not _fault(folder, wanted):
        return folder
    print(f"installing {SIMULATOR} {wanted} into {folder}", file=sys.stderr)
    cache.mkdir(parents=True, exist_ok=True)
    temporary = Path(mkdtemp(dir=cache))
    try:
        _install(wanted, temporary)
        if fault := _fault(temporary, wanted):
            raise ValueError(f"{SIMULATOR} {wanted} was installed but cannot be used: {fault}")
        shutil.rmtree(folder, ignore_errors=True)  # one that cannot be imported any more
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another command was faster
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder


def run_recorded(
    store: Store, words: Sequence[str], only: str = ""
) -> tuple[str, list[VersionRun]]:
    """Run a command once for each version of MuJoCo that made a store, but this environment's.

    Args:
        words: the command line, which gets the option `--simulator-version`; only: one version.

    Returns:
        This environment's version where it made parts, or empty; and the other runs.

    Raises:
        ValueError: as `recorded_versions` and `recorded_mujoco`, before any run.
    """
    versions = [plain_version(only)] if only else recorded_versions(store)
    folders = {wanted: recorded_mujoco(wanted) for wanted in versions}
    here = next((wanted for wanted, folder in folders.items() if folder is None), "")
    line = [word for word in words if word != OPTION]
    runs = []
    for wanted, folder in folders.items():
        if folder is not None:
            code, output = run_with(folder, [*line, "--simulator-version", wanted], capture=True)
            runs.append(VersionRun(wanted, code, output))
    return here, runs


def run_with(folder: Path | None, words: Sequence[str], capture: bool = False) -> tuple[int, str]:
    """Run a command of gaitforge with a folder's packages; its exit code and captured output."""
    root = str(Path(gaitforge.__file__).resolve().parent.parent)
    command = [sys.executable, "-P", "-m", "gaitforge", *words]
    done = subprocess.run(
        command,
        env=_environment(folder, root),
        check=False,
        stdout=subprocess.PIPE if capture else None,
        text=True,
    )
    return done.returncode, done.stdout or ""


def _environment(folder: Path | None, *folders: str) -> dict[str, str]:
    first = [] if folder is None else [str(folder)]
    paths = [*first, *folders, *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


def _install(wanted: str, folder: Path) -> None:
    """Install a version into a folder, with the packages that it needs beyond those here.

    Newer wheels keep their binaries in packages of their own (4.0.0: mujoco-core), which have to be
    of the same version. All else stays this environment's, as the store's arrays were made by it.
    """
    chosen: dict[str, str] = {}
    needed = {SIMULATOR: f"{SIMULATOR}=={wanted}"}
    while needed.keys() != chosen.keys():
        chosen = dict(needed)
        # Anew and all at once: pip does not add to a package's folder that is there.
        shutil.rmtree(folder)
        folder.mkdir()
        _pip(list(chosen.values()), folder, wanted)
        for distribution in distributions(path=[str(folder)]):
            for requirement in distribution.requires or ():
                if name := _needed(requirement):
                    needed.setdefault(name, requirement.partition(";")[0].strip())


def _needed(requirement: str) -> str:
    """The name of a requirement that has to be in the folder; empty where it has not."""
    named = _NAME.match(requirement)
    if named is None or "extra ==" in requirement.replace("'", '"'):
        return ""
    name = re.sub(r"[-_.]+", "-", named[0]).lower()
    if name.startswith(SIMULATOR):
        return name
    try:
        version(name)
    except PackageNotFoundError:
        return name
    return ""


def _pip(requirements: Sequence[str], folder: Path, wanted: str) -> None:
    # uv would else take the first Python of PATH or of an active environment.
    uv = ["uv", "pip", "install", "--python", sys.executable]
    pip = [sys.executable, "-m", "pip", "install"]
    install = uv if shutil.which("uv") else pip
    command = [*install, "--quiet", "--no-deps", "--target", str(folder), "--", *requirements]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise ValueError(
            f"pip cannot install {SIMULATOR} {wanted}, which made the store: {reason.strip()}"
        )


def _fault(folder: Path, wanted: str) -> str:
    """Why a folder's MuJoCo cannot be used by this Python; empty if it can."""
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT],
        env=_environment(folder),
        check=False,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    if done.returncode or len(lines) < 2:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if lines[-2] != wanted or not Path(lines[-1]).is_relative_to(folder):
        return f"it is version {lines[-2]} of {lines[-1]}"
    return ""
