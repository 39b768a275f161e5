"""What has to hold of a tree, a source archive and a wheel before they are released.

Each function returns the faults in words, an empty list where there are none.
"""

import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from glob import glob
from pathlib import Path
from zipfile import ZipFile

import yaml

from release.build import BUILT_PAGE, PAGE, git, project_table
from release.readme import README

_HEADING = re.compile(r"^## (\S+)(?: \((.+)\))?$", re.M)
_DIST_INFO = (
    "METADATA",
    "RECORD",
    "WHEEL",
    "entry_points.txt",
    "licenses/LICENSE",
    "top_level.txt",
)
_IN_SDIST = ("CHANGELOG.md", "CITATION.cff", "LICENSE", "MANIFEST.in", README, "pyproject.toml")
_MADE_IN_SDIST = ("PKG-INFO", "setup.cfg")
_SHOWN = 5


def tree_faults(root: Path, uncommitted: bool) -> list[str]:
    """Uncommitted changes unless they are wanted, and versions that differ.

    The version is that of pyproject.toml, of CHANGELOG's first heading, of CITATION.cff and, if the
    commit has tags like v1.2.3, of one of them. A tagged version is not headed "unreleased".
    """
    faults = []
    changed = git(root, "status", "--porcelain").splitlines()
    if changed and not uncommitted:
        names = _listed([line[3:] for line in changed])
        faults.append(f"uncommitted changes: {names}; commit them, or release --uncommitted")
    version = project_table(root)["version"]
    heading = _HEADING.search((root / "CHANGELOG.md").read_text(encoding="utf-8"))
    if heading is None or heading[1] != version:
        head = heading[1] if heading else "no version"
        faults.append(f"CHANGELOG.md begins with {head}, pyproject.toml says {version}")
    cited = yaml.safe_load((root / "CITATION.cff").read_text(encoding="utf-8"))["version"]
    if cited != version:
        faults.append(f"CITATION.cff says {cited}, pyproject.toml says {version}")
    tags = re.findall(r"^v(\d\S*)$", git(root, "tag", "--points-at", "HEAD"), re.M)
    if tags and version not in tags:
        faults.append(f"the commit's tag is v{tags[0]}, pyproject.toml says {version}")
    if tags and heading is not None and heading[2] == "unreleased":
        faults.append(f"CHANGELOG.md heads the tagged {version} with (unreleased)")
    return faults


def wheel_faults(wheel: Path, tree: Path) -> list[str]:
    """Files that a wheel lacks, or has beyond the modules and package data, and empty ones."""
    wanted = _package_files(tree)
    if (tree / PAGE).is_dir():
        wanted |= {f"gaitforge/{BUILT_PAGE.as_posix()}/{name}" for name in ("main.js", "main.css")}
    with ZipFile(wheel) as archive:
        sizes = {info.filename: info.file_size for info in archive.infolist()}
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info"
    wanted |= {f"{info}/{name}" for name in _DIST_INFO}
    faults = _compared("the wheel", sizes, wanted)
    empty = [name for name, size in sizes.items() if not size and not name.endswith(".py")]
    return [*faults, *([f"empty in the wheel: {_listed(empty)}"] if empty else [])]


def _package_files(tree: Path) -> set[str]:
    """The modules of a tree without tests, and its package data, as a wheel names them."""
    package = tree / "gaitforge"
    floors = sorted(path for path in package.iterdir() if path.is_symlink())
    files = list(package.glob("*.py"))
    files += [path for floor in floors for path in floor.resolve().rglob("*.py")]
    settings = tomllib.loads((tree / "pyproject.toml").read_text(encoding="utf-8"))
    names = {
        _name_in_package(path, tree)
        for path in files
        if "tests" not in path.relative_to(tree).parts
    }
    for dotted, patterns in settings["tool"]["setuptools"]["package-data"].items():
        folder = (package / Path(*dotted.split(".")[1:])).resolve()
        for pattern in patterns:
            # As setuptools reads patterns: without hidden files, which Path.glob has.
            paths = [folder / name for name in glob(pattern, root_dir=folder, recursive=True)]
            names |= {_name_in_package(path, tree) for path in paths if path.is_file()}
    return names


def _name_in_package(path: Path, tree: Path) -> str:
    name = path.relative_to(tree).as_posix()
    return name if name.startswith("gaitforge/") else f"gaitforge/{name}"


def sdist_faults(sdist: Path, tree: Path) -> list[str]:
    """Files that a source archive lacks, or has beyond the package and the project's own files."""
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    names = {name for name in names if not name.startswith("gaitforge.egg-info/")}
    wanted = _package_files(tree) | set(_IN_SDIST) | set(_MADE_IN_SDIST)
    return _compared("the sdist", names, wanted)


def _compared(where: str, names: Iterable[str], wanted: set[str]) -> list[str]:
    lacking = wanted - set(names)
    beyond = set(names) - wanted
    return [
        *([f"{where} lacks {_listed(lacking)}"] if lacking else []),
        *([f"{where} has also {_listed(beyond)}"] if beyond else []),
    ]


def wheel_differences(wheel: Path, again: Path) -> list[str]:
    """How a wheel of the tree differs from that of the source archive: names and contents."""
    direct = _contents(wheel)
    unpacked = _contents(again)
    names = direct.keys() | unpacked.keys()
    differing = [name for name in names if direct.get(name) != unpacked.get(name)]
    if wheel.name != again.name:
        return [f"the sdist gives {again.name}, the tree {wheel.name}"]
    return [f"the sdist gives another wheel: {_listed(differing)}"] if differing else []


def _contents(wheel: Path) -> Mapping[str, bytes]:
    with ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def metadata_faults(files: Sequence[Path]) -> list[str]:
    """What `twine check --strict` says of the files' metadata and long description.

    Raises:
        ValueError: twine is not installed.
    """
    if importlib.util.find_spec("twine") is None:
        raise ValueError("twine, which checks the metadata, is missing: run `make setup-dev`")
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return [] if done.returncode == 0 else [f"twine: {done.stdout.strip()}"]


def _listed(names: Iterable[str]) -> str:
    listed = sorted(names)
    beyond = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"{', '.join(listed[:_SHOWN])}{beyond}"
