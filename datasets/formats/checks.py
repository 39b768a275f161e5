"""Checks of foreign input: every refusal is one DatasetError that names the file and the key."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from math import isfinite
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, first_line

_PICKLE_START = 0x80
_NEWEST_PICKLE = 5
"""A pickle of protocol 2 or newer starts with this byte and the protocol."""

_FAULTS = (
    OSError,
    RuntimeError,
    LookupError,
    ValueError,
    TypeError,
    AttributeError,
    AssertionError,
    MemoryError,
    pa.ArrowException,
)
"""What libraries raise on damaged files."""


_ALLOWED: ContextVar[bool] = ContextVar("not_finite_allowed", default=False)


class NotFiniteError(DatasetError):
    """A value is NaN or infinite."""


@contextmanager
def not_finite_allowed() -> Iterator[None]:
    """Let `check_finite` pass everything, in this thread."""
    token = _ALLOWED.set(True)
    try:
        yield
    finally:
        _ALLOWED.reset(token)


def refuse(source: Path | str, key: str, problem: str) -> NoReturn:
    """Raise DatasetError for bad input: the file, the key in it, and the problem."""
    raise DatasetError(f"{source}: {key}: {problem}" if key else f"{source}: {problem}")


def refuse_unreadable(path: Path, kind: str, error: BaseException | str) -> NoReturn:
    """Raise DatasetError for a file that is not of this `kind`; names a pickle as such."""
    with open(path, "rb") as stream:
        start = stream.read(2)
    if len(start) == 2 and start[0] == _PICKLE_START and start[1] <= _NEWEST_PICKLE:
        refuse(path, "", f"is a pickle, which can run any code and is never loaded; give {kind}")
    refuse(path, "", f"cannot be read as {kind}: {first_line(error)}")


@contextmanager
def damage_named(
    source: Path | str, key: str = "", problem: str = "cannot be read, it may be damaged"
) -> Iterator[None]:
    """Turn whatever a library raises on damaged data into one DatasetError that names the file."""
    try:
        yield
    except DatasetError:
        raise
    except _FAULTS as error:
        refuse(source, key, f"{problem}: {first_line(error)}")


def read_json(path: Path, kind: str) -> dict[str, Any]:
    """The JSON object in a file; refuses anything else. `kind` names the format."""
    if not path.is_file():
        refuse(path, "", f"no such file; give the folder of a {kind}")
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        refuse_unreadable(path, "JSON", "it is nested too deeply")
    except (OSError, ValueError) as error:
        refuse_unreadable(path, "JSON", error)
    if not isinstance(tree, dict):
        refuse(path, "", "must be a JSON object")
    return tree


def check_finite(source: Path | str, key: str, rows: np.ndarray, first: int = 0) -> None:
    """Refuse rows with NaN or infinity; `first` is the number of the first row in the source.

    Raises NotFiniteError.
    """
    if rows.dtype.kind != "f" or _ALLOWED.get():
        return
    # A finite sum proves all rows finite without an array of booleans; finite rows may overflow it.
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum(dtype=np.float64)
    if not np.isfinite(total) and not (finite := np.isfinite(rows)).all():
        wrong = np.flatnonzero(~finite.reshape(len(rows), -1).all(axis=1))[0]
        raise NotFiniteError(f"{source}: {key}: row {first + int(wrong)} is not finite")


def check_option(name: str, value: Any, unit: str, kinds: Any = int | float) -> None:
    """Refuse an option that is not a number of `kinds` from 0 on; 0 stands for the default."""
    is_number = isinstance(value, kinds) and not isinstance(value, bool)
    if not is_number or not isfinite(value) or value < 0:
        raise DatasetError(
            f"option {name} must be a number of {unit}, or 0 for the default, not {value!r}"
        )
