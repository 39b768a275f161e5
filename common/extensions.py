"""Extensions of users and other packages, and packages of optional extras.

An extension is named as "module:name" or is an entry point of a package. The groups of entry points
are gaitforge.KINDs, such as gaitforge.tasks; docs/howto/plugin.md lists them, and the folders of
plugins/ use them, too. Installing a package is what makes its code trusted here; nothing of it is
imported before somebody names it. Any other "module:name" is imported only if the user's command
line named it (`trust`).

Packages of optional extras are imported when they are used.
"""

import contextlib
import hashlib
import inspect
import io
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar

from gaitforge.common.errors import DatasetError, install_extra, missing_package
from gaitforge.common.own_code import UNKNOWN, code_hash, module_version
from gaitforge.common.trust import check_trusted

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
    entries = list(dict.fromkeys(_entry_points(kind).select(name=name)))
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
    return _installed(tuple(sys.path)).select(group=f"gaitforge.{kind}s")


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

    def __contains__(self, name: object) -> bool:
        return name in self._ours or name in extension_names(self._kind)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._ours, *extension_names(self._kind)]))

    def __len__(self) -> int:
        return sum(1 for _ in self)


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


def load_gymnasium(module: str) -> Any:
    """A module of the extra `gym`; raises as `load_mocapact`."""
    return _load(module, "the Gymnasium environment", "gym")


def load_mocapact(module: str) -> Any:
    """A module of the extra `mocapact`: of dm_control or h5py.

    ValueError, with the command to install it, if it is missing or of an unfit version.
    """
    return _load(module, "the humanoid", "mocapact")


def load_onnx(module: str) -> Any:
    """A module of the extra `onnx`; raises as `load_mocapact`."""
    return _load(module, "a policy in an ONNX file", "onnx")


def _load(module: str, user: str, extra: str) -> Any:
    """Import a module and silence its prints and warnings (versions, a missing display)."""
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
