"""Code of users and other packages: "module:name", entry points, optional packages, and versions.

The groups of entry points are gaitforge.KINDs, such as gaitforge.tasks; docs/howto/plugin.md lists
them, and the folders of plugins/ use them, too. Installing a package is what makes its code trusted
here; nothing of it is imported before somebody names it. Any other "module:name" is imported only
if the user's command line named it (`trust`).

The version of code that nobody released is a hash of all files that decide what it does: of a
module its top-level package, or its file, with the data files of the package, and the same of
every module that they import and that is no installed distribution. What is imported by a name
that is only known as it runs, or read from elsewhere, is not covered.
"""

import ast
import contextlib
import hashlib
import inspect
import io
import json
import os
import subprocess
import sys
import sysconfig
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import (
    Distribution,
    EntryPoint,
    EntryPoints,
    PackageNotFoundError,
    distribution,
    entry_points,
)
from pathlib import Path
from site import getsitepackages, getusersitepackages
from typing import Any, TypeVar

from gaitforge.common.errors import DatasetError, install_extra, missing_package
from gaitforge.common.extras import missing_module
from gaitforge.common.files import sha256_file
from gaitforge.common.trust import check_trusted

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
_INSTALLERS_NAMES = {"site-packages", "dist-packages"}
"""Names of folders that installers write, also those of other environments on the path."""


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
    return [path for path in places if not _is_installed(path)]


def _is_installed(path: Path) -> bool:
    in_folders = any(path.is_relative_to(folder) for folder in _INSTALLED)
    return in_folders or not _INSTALLERS_NAMES.isdisjoint(path.parts)


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
    state = path.stat()
    return _imports_of(path, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _imports_of(path: Path, size: int, mtime_ns: int) -> set[str]:
    """The same, kept while the file stays as it is: parsing takes milliseconds a file."""
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


Result = TypeVar("Result")
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Extension:
    """An entry point of another package.

    Attributes:
        where: "task 'hop' of the package hoppers", for errors.
        path: its "module:name".
    """

    where: str
    path: str

    def load(self) -> Any:
        """The object itself; DatasetError, in one line, if that fails for whatever reason."""
        module, _, name = self.path.partition(":")
        try:
            return getattr(import_module(module), name)
        except Exception as error:
            raise DatasetError(f"{self.where} cannot be loaded: {_one_line(error)}") from error


def extension_names(kind: str) -> list[str]:
    """The names of plug-ins' and other packages' "task", "model", "format" and so on, sorted."""
    return sorted(_entry_points(kind).names)


def extension(kind: str, name: str) -> Extension | None:
    """A plug-in's or another package's "task", "model" and so on; None if there is none.

    Raises:
        DatasetError: several packages have one of this name.
    """
    return _extension(tuple(sys.path), kind, name)


@lru_cache(maxsize=1024)
def _extension(path: tuple[str, ...], kind: str, name: str) -> Extension | None:
    entries = list(dict.fromkeys(_group(path, kind).select(name=name)))
    if len(entries) > 1:
        packages = ", ".join(map(_package, entries))
        raise DatasetError(f"the packages {packages} each have a {kind} '{name}'; uninstall one")
    for entry in entries:
        return Extension(f"{kind} '{name}' of the package {_package(entry)}", entry.value)
    return None


def named_extension(kind: str, name: str) -> Extension:
    """The "task" or "model" that a text names as "module:name".

    Raises:
        UntrustedCodeError: neither the user's command line nor an installed package names it.
    """
    packaged = [entry for entry in _entry_points(kind) if entry.value == name]
    if not packaged:
        check_trusted(name)
    return Extension(f"{kind} {name}", name)


def _entry_points(kind: str) -> EntryPoints:
    return _group(tuple(sys.path), kind)


@lru_cache(maxsize=256)
def _group(path: tuple[str, ...], kind: str) -> EntryPoints:
    """Looking through all of an environment's entry points takes milliseconds, each time."""
    return _installed(path).select(group=f"gaitforge.{kind}s")


@lru_cache(maxsize=4)
def _installed(path: tuple[str, ...]) -> EntryPoints:
    """All entry points of the packages on a path: reading them takes 10 ms and more."""
    return entry_points()


class Registered(Mapping[str, Entry]):
    """Entries by name: ours, then those of plug-ins and other packages, loaded when they are used.

    Args:
        kind: of the extensions, such as "objective".
        entry_type: of every entry; ours: name -> entry. No package replaces one of ours.
    """

    def __init__(self, kind: str, entry_type: type[Entry], ours: Mapping[str, Entry]) -> None:
        self._kind, self._entry_type, self._ours = kind, entry_type, dict(ours)

    def __getitem__(self, name: str) -> Entry:
        if name in self._ours:
            return self._ours[name]
        packaged = extension(self._kind, name)
        if packaged is None:
            raise KeyError(name)
        entry = packaged.load()
        if not isinstance(entry, self._entry_type):
            kind = self._entry_type.__name__
            raise DatasetError(f"{packaged.where} is no {kind}: {packaged.path}")
        return entry

    def usable(self) -> dict[str, Entry]:
        """Name -> entry of all that load, see `usable_entries`."""
        return usable_entries(self, self.__getitem__)

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in extension_names(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._ours, *extension_names(self._kind)]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def usable_entries(names: Iterable[str], load: Callable[[str], Entry]) -> dict[str, Entry]:
    """Name -> entry of all that load: a broken package spoils no other, and is told once.

    Args:
        load: the entry of a name; DatasetError if its package is broken.
    """
    entries = {}
    for name in names:
        try:
            entries[name] = load(name)
        except DatasetError as error:
            _warn(str(error))
    return entries


@cache
def _warn(message: str) -> None:
    print(f"warning: {message}", file=sys.stderr)


def _package(entry: EntryPoint) -> str:
    return entry.dist.name if entry.dist else "of no name"


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def named_function(name: str, what: str = "function") -> Callable[..., Any]:
    """The function or class "module:name" that the user named; importable, as with PYTHONPATH=.

    Args:
        what: its name in errors.

    Raises:
        UntrustedCodeError: the user's command line does not name it.
        ValueError: there is no such function.
    """
    check_trusted(name)
    return own_function(name, what)


def own_function(name: str, what: str = "function") -> Callable[..., Any]:
    """The function or class "module:name" of a text in a program, never of one in a file.

    Raises:
        ValueError: there is no such function.
    """
    module, _, member = name.partition(":")
    try:
        target = getattr(import_module(module), member)
    except ModuleNotFoundError as error:
        lacking = missing_module(name, error.name or "")
        raise ValueError(lacking or f"no {what} {name}: {error}; give module:{what}") from None
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"no {what} {name}: {error}; give module:{what}") from None
    if not callable(target):
        raise ValueError(f"{name} is not a {what}; give module:{what}")
    return target


def function_key(name: str) -> str:
    """Hash of the own code that "module:function" is made of, or a version of its package.

    See `own_code`.

    Raises:
        ValueError: no such function, or one without a file.
    """
    function = inspect.unwrap(named_function(name))
    module = name.partition(":")[0]
    if key := code_hash([module, getattr(function, "__module__", None) or module]):
        return key
    if (version := module_version(module)) != UNKNOWN:
        return hashlib.sha256(version.encode()).hexdigest()[:16]
    raise ValueError(f"{name} is not a function in a Python file")


def called(function: Callable[..., Result], name: str, *arguments: object) -> Result:
    """Call a user's function; ValueError, in one line, for whatever it raises."""
    try:
        return function(*arguments)
    except Exception as error:
        raise ValueError(f"{name} failed: {_one_line(error)}") from error


def load_extra(module: str, user: str, extra: str) -> Any:
    """A module of an extra of ours, without its prints and warnings (versions, a missing display).

    Args:
        user: what needs it, for errors; extra: its name in pyproject.toml.

    Raises:
        ValueError: it is missing, or of an unfit version; with the command that installs it.
    """
    try:
        with (
            warnings.catch_warnings(action="ignore"),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            return import_module(module)
    except ModuleNotFoundError as error:
        missing = (error.name or module).partition(".")[0]
        raise ValueError(missing_package(user, missing, extra)) from error
    except (ImportError, AttributeError) as error:
        package = module.partition(".")[0]
        raise ValueError(
            f"{user} needs another version of {package}, this one fails with {error}: "
            f"{install_extra(extra)}"
        ) from error
