"""Plans and results as JSON files, with their provenance."""

import hashlib
import json
import platform
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably
from learners.revision import git_revision

_VERSIONED = ("gaitforge", "mujoco", "torch", "numpy", "zarr", "duckdb", "rsl-rl-lib", "prefect")


def to_tree(value: Any) -> Any:
    """A dataclass tree, dict or list as plain JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    return json.loads(json.dumps(value, default=_plain))


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):
        return value.item()
    return dict(value) if hasattr(value, "keys") else str(value)


def digest(value: Any) -> str:
    """A short hash of a plan or record."""
    text = json.dumps(to_tree(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def write_record(path: Path, value: Any) -> None:
    """Write JSON so that readers see the old file or the new one.

    Raises:
        ValueError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(path, (json.dumps(to_tree(value), indent=1) + "\n").encode())
    except OSError as error:
        raise ValueError(f"cannot write {path}: {error.strerror}") from None


def read_record(path: Path) -> Any | None:
    """The JSON of a file, or None where there is none.

    Raises:
        ValueError: the file is not JSON.
    """
    try:
        return json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} cannot be read as JSON: {error}") from None


def provenance() -> dict[str, Any]:
    """Git revision and the versions of the packages that results depend on."""
    versions = {name: version(name) for name in _VERSIONED}
    return {
        "git_revision": git_revision(),
        "versions": {"python": platform.python_version(), **versions},
        "machine": platform.machine(),
    }


def kept_evaluation(
    path: Path | None,
    plan: Any,
    key: Mapping[str, Any],
    fields: Collection[str],
    evaluate: Callable[[], dict[str, Any]],
) -> dict[str, Any]:
    """`kept_record` of an evaluation by a plan; just `evaluate()` without a path."""
    if path is None:
        return evaluate()
    known = {"plan": digest(plan), **key}
    return kept_record(path, known, fields, lambda: {**evaluate(), "plan": to_tree(plan)})


def kept_record(
    path: Path, key: Mapping[str, Any], fields: Collection[str], make: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """The record at `path` if it was made with this key; else what `make` returns, written there.

    Args:
        key: changes with whatever changes the record; fields: some of the record's.

    Raises:
        ValueError: `path` holds something else than such a record, and what `make` raises.
    """
    known = read_record(path)
    if known is not None:
        if not (isinstance(known, dict) and known.keys() >= {"key", *fields}):
            raise ValueError(f"{path} holds something else than an evaluation; it stays")
        if known["key"] == to_tree(key):
            return known
    record = to_tree({**make(), "key": key, **provenance()})
    write_record(path, record)
    return record
