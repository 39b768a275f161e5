"""Plans and results as JSON files, with their provenance."""

import hashlib
import json
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import is_dataclass, replace
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from gaitforge.common.extensions import git_revision
from gaitforge.common.files import write_bytes_durably
from gaitforge.common.limits import said_fields
from gaitforge.common.locks import again_if_stale, exclusive_lock
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN, record_from_tree
from gaitforge.learners.export.onnx_policy import is_exported_policy, read_description
from gaitforge.learners.run_files import run_folder

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
        return {name.rstrip("_"): getattr(value, name) for name in said_fields(value)}
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


def run_record(run: Path) -> Mapping[str, Any]:
    """What a training run, or its export, keeps of its data, task and evaluation; may be empty."""
    folder = run_folder(run)
    if is_exported_policy(folder):
        return read_description(folder)["source"]
    return read_record(folder / PLAN) or {}


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
    """Git revision and the versions of the packages that results depend on, where installed."""
    return {
        "git_revision": git_revision(),
        "versions": {"python": platform.python_version(), **_versions()},
        "machine": platform.machine(),
    }


@cache
def _versions() -> dict[str, str]:
    versions = {}
    for name in _VERSIONED:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


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
