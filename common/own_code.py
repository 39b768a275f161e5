"""Versions of code that nobody released, and the program's git revision.

The version of such code is a hash of all files that decide what it does. Of a module these are its
top-level package, or its file, with the data files of the package, and the same of every module
that they import and that is no installed distribution. What is imported by a name that is only
known as it runs, or read from elsewhere, is not covered.

The git revision is for records and checkpoints.
"""

import ast
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
from base64 import urlsafe_b64encode
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.machinery import ModuleSpec
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from site import getsitepackages, getusersitepackages

from gaitforge.common.files import sha256_file

_COUNTED = {
    ".py",
    ".so",
    ".pyd",
    ".xml",
    ".urdf",
    ".json",
    ".yaml",
    ".yml",
    ".toml",
    ".csv",
    ".txt",
    ".npy",
    ".npz",
    ".onnx",
    ".safetensors",
}
"""Endings of the files that count."""
UNKNOWN = "unknown"
"""Version of code without files."""
_ELSEWHERE = ("__pycache__", "node_modules", "site-packages")
_PATHS = ("stdlib", "platstdlib", "purelib", "platlib")
_INSTALLED = tuple(
    Path(folder).resolve()
    for folder in (*map(sysconfig.get_path, _PATHS), *getsitepackages(), getusersitepackages())
)
"""Folders of Python's own modules, and of installed packages."""


def module_version(module: str) -> str:
    """The version of a module's code.

    That of its distribution, followed by "+" and a hash where its files are not those that were
    installed; without a distribution a hash; "unknown" for code without files.
    """
    return _version(module.partition(".")[0])


def _version(package: str) -> str:
    installed = _distribution_of(package)
    if installed is None:
        return code_hash([package])[:8] or UNKNOWN
    if _is_editable(installed):
        return f"{installed.version}+{code_hash([package])[:8]}"
    changed = _changed(package)
    return f"{installed.version}+{changed[:8]}" if changed else installed.version


def code_hash(modules: Iterable[str]) -> str:
    """A hash of all own code that some modules are made of, see above; "" where there is none."""
    packages = {module.partition(".")[0] for module in modules}
    files: dict[str, Path] = {}
    seen = set[str]()
    left = sorted(packages)
    while left:
        package = left.pop()
        if package in seen:
            continue
        seen.add(package)
        package_files = dict(_files_of(package, is_named=package in packages))
        files |= package_files
        left += {name for path in package_files.values() for name in _imports(path)} - seen
    if len(files) == 1:
        return sha256_file(*files.values())[:16]
    lines = [f"{name} {sha256_file(path)}" for name, path in sorted(files.items())]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16] if lines else ""


def _files_of(package: str, is_named: bool) -> Iterator[tuple[str, Path]]:
    """Name and path of the files of a top-level module; none of one that is installed."""
    for root in _places(package, is_named):
        if root.is_file():
            yield root.name, root
            continue
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name[0] != "." and name not in _ELSEWHERE]
            for name in names:
                path = Path(folder, name)
                if path.suffix in _COUNTED and path.is_file():
                    yield str(path.relative_to(root.parent)), path


def _places(package: str, is_named: bool = False) -> list[Path]:
    """The folders of a package, or the file of a module; none of one that is installed, or ours.

    Args:
        is_named: also one that is loaded and not on the path, as `__main__` is.
    """
    if package in sys.stdlib_module_names or package == "gaitforge":
        return []
    spec = _spec_on_path(package)
    module = sys.modules.get(package) if spec is None and is_named else None
    folders = getattr(module, "__path__", None) or (spec and spec.submodule_search_locations)
    file = getattr(module, "__file__", None) or (spec and spec.has_location and spec.origin)
    places = [Path(entry).resolve() for entry in (folders or ([file] if file else []))]
    return [path for path in places if not any(path.is_relative_to(top) for top in _INSTALLED)]


def _spec_on_path(package: str) -> ModuleSpec | None:
    """Where Python would find a top-level module now, whatever this process has imported.

    Processes that share a path give the same answer: a hash must not depend on what ran before.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        try:
            if find is not None and (spec := find(package, None)) is not None:
                return spec
        except (ImportError, ValueError):
            return None
    return None


def _imports(path: Path) -> set[str]:
    """The top-level modules that a Python file imports by name."""
    if path.suffix != ".py":
        return set()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return set()
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            names.add(node.module.partition(".")[0])
    return names


def _distribution_of(package: str) -> Distribution | None:
    """The installed distribution of a package's name that has brought it."""
    try:
        installed = distribution(package)
    except PackageNotFoundError:
        return None
    is_own = _is_editable(installed) or not _places(package)
    return installed if is_own else None  # else a user's module has a distribution's name


def _is_editable(installed: Distribution) -> bool:
    try:
        origin = json.loads(installed.read_text("direct_url.json") or "{}")
    except ValueError:
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


@cache
def _changed(name: str) -> str:
    """A hash of the Python files of a distribution that differ from its record; "" for none."""
    lines = []
    for file in distribution(name).files or ():
        if file.suffix != ".py" or file.hash is None or file.hash.mode != "sha256":
            continue
        path = Path(str(file.locate()))
        content = path.read_bytes() if path.is_file() else b""
        digest = hashlib.sha256(content).digest()
        if urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            lines.append(f"{file} {digest.hex()}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def git_revision() -> str:
    """The commit this program runs from, or "unknown" outside a checkout."""
    try:
        command = ["git", "rev-parse", "HEAD"]
        here = Path(__file__).parent
        commit = subprocess.check_output(command, cwd=here, stderr=subprocess.DEVNULL, text=True)
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return commit.strip()
