"""Builds sdist and wheel from a copy of the tree that holds nothing else than the tree.

The copy has the files that git knows or would add, and the player's built page, which git does not
hold. File modes and the time are those of the commit, so that a second build gives the same wheel.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from typing import Any

BUILT_PAGE = Path("plugins/player/built")
PAGE = Path("plugins/player/page")
_BUILD = "import sys; from setuptools import build_meta as b; print(b.build_{kind}(sys.argv[1]))"


def git(root: Path, *words: str) -> str:
    """What a command of git prints; ValueError with git's own words where it fails."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ValueError(f"git {words[0]}: {done.stderr.strip()}")
    return done.stdout


def project_table(root: Path) -> dict[str, Any]:
    """The table `project` of a tree's pyproject.toml."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def stage_tree(root: Path, target: Path) -> Path:
    """Copy a tree's files; returns the copy.

    Raises:
        ValueError: the player's page is not built.
    """
    names = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    for name in filter(None, names.split("\0")):
        source = root / name
        if not source.is_symlink() and not source.exists():
            continue  # deleted, and the deletion is not committed
        copy = target / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, copy, follow_symlinks=False)
        if not copy.is_symlink():
            copy.chmod(0o755 if copy.stat().st_mode & 0o100 else 0o644)
    if (root / PAGE).is_dir():
        if not (root / BUILT_PAGE / "main.js").is_file():
            raise ValueError("the player's page is not built: run `make setup` where npm works")
        shutil.copytree(root / BUILT_PAGE, target / BUILT_PAGE, dirs_exist_ok=True)
        for path in (target / BUILT_PAGE).iterdir():
            path.chmod(0o644)
    _set_epoch(root, target)
    return target


def _set_epoch(root: Path, target: Path) -> None:
    """Give all files the commit's time, which both archives record."""
    epoch = _epoch(root)
    for path in target.rglob("*"):
        os.utime(path, (epoch, epoch), follow_symlinks=False)
    os.utime(target, (epoch, epoch))


def _epoch(root: Path) -> int:
    if chosen := os.environ.get("SOURCE_DATE_EPOCH"):
        return int(chosen)
    return int(git(root, "log", "-1", "--format=%ct"))


def build_sdist(tree: Path, folder: Path) -> Path:
    """Build the source archive of a tree into a folder."""
    return _build("sdist", tree, folder)


def build_wheel(tree: Path, folder: Path) -> Path:
    """Build the wheel of a tree, or of an unpacked source archive, into a folder."""
    return _build("wheel", tree, folder)


def _build(kind: str, tree: Path, folder: Path) -> Path:
    """Call the build backend in a process of its own, as pip and build do.

    Raises:
        CalledProcessError: it failed; `stdout` has its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(int((tree / "LICENSE").stat().st_mtime))}
    environment.pop("PYTHONPATH", None)
    before = set(folder.iterdir())
    command = [sys.executable, "-c", _BUILD.format(kind=kind), str(folder.resolve())]
    subprocess.run(
        command,
        cwd=tree,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=True,
    )
    for name in ("build", "gaitforge.egg-info"):  # what one build leaves, the next would take along
        shutil.rmtree(tree / name, ignore_errors=True)
    [path] = set(folder.iterdir()) - before
    return path


def unpack(sdist: Path, folder: Path) -> Path:
    """Unpack a source archive; returns the folder in it."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    [tree] = folder.iterdir()
    return tree
