"""Plans and results as JSON files, with their provenance.

`to_tree` writes a plan as JSON values, and `plan_from_tree` reads them.
"""

import hashlib
import json
import platform
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from gaitforge.common.files import write_bytes_durably
from gaitforge.common.locks import again_if_stale, exclusive_lock
from gaitforge.common.own_code import git_revision
from gaitforge.datasets.schema import check_outside_stores
from gaitforge.flows.progress import Reporter

# Plans from their JSON values.
Plan = TypeVar("Plan")

PLAN = "plan.json"  # a training run's record


def plan_from_tree(kind: type[Plan], tree: object) -> Plan:
    """A frozen dataclass tree from its JSON values; fields that are absent have their defaults.

    Raises:
        ValueError: an unknown field, a value of another type, or one that the plan itself refuses.
    """
    return _value(kind, tree, kind.__name__)


def read_fields(kind: type[Plan], tree: Any, path: object, **known: object) -> Plan:
    """A frozen dataclass from a file's JSON values, which may hold more.

    Args:
        path: of the file; known: values of fields that the file does not hold.

    Raises:
        ValueError: a field is missing or of another type; the line names the file.
    """
    try:
        if not isinstance(tree, Mapping):
            raise ValueError(f"it needs an object of named values, not {tree!r}")
        names = _fields(kind).keys() - known.keys()
        values = {name: tree[name] for name in names if name in tree}
        return cast(Plan, _dataclass(kind, values, "the record", known))
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def record_from_tree(kind: type[Plan], tree: Any) -> Plan | None:
    """A frozen dataclass from a file that may hold more; None where a field is missing or wrong."""
    try:
        return plan_from_tree(kind, {name: tree[name] for name in _fields(kind) if name in tree})
    except (TypeError, ValueError):
        return None


def check_value(kind: Any, value: object, where: str) -> None:
    """Raise ValueError unless a value is of a type, and all that it holds; `where` names it."""
    _value(kind, value, where)


def _value(kind: Any, tree: object, where: str) -> Any:
    origin = get_origin(kind)
    arguments = get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind, tree, where)
    if kind in (Any, object):
        return tree
    if origin in (Union, types.UnionType):
        return _one_of(arguments, tree, where)
    if origin is tuple and isinstance(tree, list | tuple):
        return tuple(_value(arguments[0], item, where) for item in tree)
    if origin is Sequence and isinstance(tree, list | tuple):
        for item in tree:
            _value(arguments[0], item, where)
        return tree
    if origin in (dict, Mapping) and isinstance(tree, Mapping):
        for name, item in tree.items():
            _value(arguments[1], item, f"{where}.{name}")
        return dict(tree)  # as it is written: a plan's hash depends on it
    if kind is float and isinstance(tree, int) and not isinstance(tree, bool):
        return _as_float(tree, where)
    if isinstance(kind, type) and type(tree) is kind:
        return tree
    raise ValueError(f"{where} needs {_needed(kind)}, not {tree!r}")


def _as_float(number: int, where: str) -> float:
    try:
        return float(number)
    except OverflowError:
        raise ValueError(f"{where} needs a number of at most 309 digits") from None


def _one_of(kinds: Sequence[Any], tree: object, where: str) -> Any:
    """A value as one of several types has it."""
    if tree is None and type(None) in kinds:
        return None
    options = [kind for kind in kinds if kind is not type(None)]
    for kind in options[:-1]:
        with suppress(ValueError):
            return _value(kind, tree, where)
    try:
        return _value(options[-1], tree, where)
    except ValueError:
        if len(options) == 1:
            raise
        needed = " or ".join(map(_needed, options))
        raise ValueError(f"{where} needs {needed}, not {tree!r}") from None


def _needed(kind: Any) -> str:
    """What a type needs, in words."""
    origin = get_origin(kind)
    if origin in (tuple, Sequence):
        return f"a list of {_needed(get_args(kind)[0])}"
    if origin in (dict, Mapping):
        return "an object of named values"
    return str(getattr(kind, "__name__", kind))


def _dataclass(
    kind: Any, tree: object, where: str, known: Mapping[str, object] | None = None
) -> object:
    if not isinstance(tree, dict):
        raise ValueError(f"{where} needs an object of named values, not {tree!r}")
    names = _fields(kind)
    unknown = sorted(tree.keys() - names.keys())
    if unknown:
        raise ValueError(f"{where} has no '{unknown[0]}'; allowed: {', '.join(names)}")
    needed = {f.name.rstrip("_") for f in fields(kind) if f.default is f.default_factory is MISSING}
    known = known or {}
    if absent := sorted(needed - tree.keys() - known.keys()):
        raise ValueError(f"{where} needs '{absent[0]}'")
    hints = get_type_hints(kind)
    values = {name: _value(hints[names[name]], tree[name], f"{where}.{name}") for name in tree}
    return kind(**{names[name]: value for name, value in values.items()}, **known)


def _fields(kind: Any) -> dict[str, str]:
    """Name in files -> field; `return_` is "return" there."""
    return {field.name.rstrip("_"): field.name for field in fields(kind)}


# Files of plans and results: writing, locks, reading, and results that are kept.
TRAINING_LOCK = ".training.lock"
_VERSIONED = ("gaitforge", "mujoco", "torch", "numpy", "zarr", "duckdb", "rsl-rl-lib", "prefect")
Kept = TypeVar("Kept")
Key = Mapping[str, object]
"""What a kept record depends on, as JSON values."""


def to_tree(value: object) -> Any:
    """Dataclasses, dicts and lists as plain JSON values; a field `return_` is "return" there."""
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {field.name.rstrip("_"): getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "item"):
        return value.item()
    return dict(value) if hasattr(value, "keys") else str(value)


def digest(value: object) -> str:
    """A short hash of a plan or record."""
    text = json.dumps(to_tree(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_record(path: Path, value: object) -> None:
    """Write JSON as `write_file` does."""
    write_file(path, (json.dumps(to_tree(value), indent=1) + "\n").encode())


def write_file(path: Path, content: bytes) -> None:
    """Write a file, and the folders above it; readers see the old content or the new one.

    Raises:
        ValueError: the folder cannot be written, or is inside a store.
    """
    check_outside_stores(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(path, content)
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def prepare_folder(out: Path) -> None:
    """Make the folder of a long work's results before the work begins.

    Raises:
        ValueError: the folder cannot be made, or is inside a store.
    """
    check_outside_stores(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"cannot write into {out}: {error.strerror}") from None


@contextmanager
def held_lock(lock: Path, reporter: Reporter, waiting: str) -> Iterator[None]:
    """Hold a lock file, making its folder; says `waiting` while another process holds it.

    The kernel releases the lock when the process dies.

    Raises:
        ValueError: the folder cannot be made.
    """
    prepare_folder(lock.parent)
    with exclusive_lock(lock, wait=False) as held:
        if held:
            yield
            return
    reporter.say(waiting)
    with exclusive_lock(lock):
        yield


@contextmanager
def training_lock(out: Path) -> Iterator[None]:
    """Hold the lock of a training's folder, making the folder.

    The kernel releases the lock when the process dies.

    Raises:
        ValueError: another process trains there, the folder cannot be made, or is an experiment's.
    """
    prepare_folder(out)
    record = read_record(out / PLAN)
    if isinstance(record, dict) and "kind" in record:  # a training's plan has none
        raise ValueError(
            f"{out} holds the plan of another work, {record['kind']}; choose another folder"
        )
    with exclusive_lock(out / TRAINING_LOCK, wait=False) as alone:
        if not alone:
            raise ValueError(
                f"another process trains in {out}; wait for it, or choose another folder"
            )
        yield


class Record(dict[str, Any]):
    """An object of a record's file; one without a field is the file's fault, not a KeyError."""

    def __init__(self, file: str, values: Mapping[str, Any]):
        super().__init__(values)
        self._file = file

    def __missing__(self, name: str) -> NoReturn:
        raise ValueError(f"{self._file} lacks '{name}'")

    def __reduce__(self) -> tuple[Any, ...]:
        return Record, (self._file, dict(self))


def read_record(path: Path) -> Any | None:
    """The JSON object of a file, or None where there is none; a `Record`, with all inside it.

    Raises:
        ValueError: the file is not JSON, or no object of named values.
    """
    tree = _read_json(path)
    if tree is None or isinstance(tree, Record):
        return tree
    raise ValueError(f"{path} is no record: it needs an object of named values")


def _read_json(path: Path) -> Any | None:
    try:
        text = again_if_stale(path, path.read_text)
        return json.loads(text, object_hook=partial(Record, str(path)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except RecursionError:
        raise ValueError(f"{path} is nested too deep") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None


@contextmanager
def reading_files(place: Path) -> Iterator[None]:
    """Tell of values in a folder's files that their reader cannot use, as of a user's mistake.

    Around readers that take values from deep inside records of our own: these hold no wrong types
    unless somebody has edited them. The error keeps its cause.

    Raises:
        ValueError: a value has another type, or is missing.
    """
    try:
        yield
    except (TypeError, LookupError, AttributeError, ArithmeticError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"a file of {place} holds values of a wrong type, or lacks some ({reason}); make it "
            "anew, or take it back as it was"
        ) from error


def read_plan(path: Path) -> tuple[Any, str | None]:
    """The values of a plan's file, and the kind that it names.

    The file is the record that a run leaves beside its results, or holds the values alone.

    Raises:
        ValueError: no such file, or not JSON.
    """
    tree = read_record(path)
    if tree is None:
        raise ValueError(f"no plan at {path}")
    if not isinstance(tree.get("plan"), dict):
        return tree, None
    kind = tree.get("kind")
    if not isinstance(kind, str | None):
        raise ValueError(f"{path}: kind needs a name, not {kind!r}")
    return tree["plan"], kind


def provenance() -> dict[str, Any]:
    """Git revision and the versions of the packages that results depend on."""
    versions = {name: version(name) for name in _VERSIONED}
    return {
        "git_revision": git_revision(),
        "versions": {"python": platform.python_version(), **versions},
        "machine": platform.machine(),
    }


def kept_evaluation(
    path: Path | None, plan: object, key: Key, kind: type[Kept], make: Callable[[], Kept]
) -> Kept:
    """`kept_record` of an evaluation by a plan; just `make()` without a path."""
    if path is None:
        return make()
    return kept_record(path, evaluation_key(plan, key), kind, make, plan=plan)


def evaluation_key(plan: object, key: Key) -> Key:
    """The key of a kept evaluation, the same with any number of threads."""
    content = replace(cast(Any, plan), threads=0) if hasattr(plan, "threads") else plan
    return {"plan": digest(content), **key}


def kept_record(
    path: Path, key: Key, kind: type[Kept], make: Callable[[], Kept], **beside: object
) -> Kept:
    """The record at `path` if it has this key; else what `make` returns, written there.

    Args:
        key: changes with whatever changes the record; kind: the record's dataclass.
        beside: what the file holds besides the record.

    Raises:
        ValueError: `path` holds something else than such a record, and what `make` raises.
    """
    tree = read_record(path)
    if tree is not None:
        kept = record_from_tree(kind, tree)
        if kept is None or "key" not in tree:
            raise ValueError(f"{path} holds something else than an evaluation; it stays")
        if tree["key"] == to_tree(key):
            return kept
    record = make()
    write_record(path, {**to_tree(record), **beside, "key": key, **provenance()})
    return record
