"""Checks of the names and values of draws and further fields, before anything is stored of them.

A part is written long after the first step. What would be refused there is refused here, so that no
recording is lost by an option.
"""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.catalog import STORE_COLUMNS, required_columns
from gaitforge.datasets.catalog.episodes import COLUMN_NAME
from gaitforge.datasets.schema import ACTION, FINAL_OBS, OBS, TASK_AND_QUALITY, Field
from gaitforge.plugins.exchange.recording.environments import plain_array

REWARD = "reward"
SUCCESS_KNOWN = "success_known"

_TYPED_DRAWS = {"seed": "whole numbers", "level": "whole numbers", "expert_hash": "text"}
"""Columns of every catalog that draws may give, and what each holds."""
_RESERVED_DRAWS = {
    *STORE_COLUMNS,
    *required_columns(TASK_AND_QUALITY),
    SUCCESS_KNOWN,
} - _TYPED_DRAWS.keys()
_KINDS = {"b": "truth values", "i": "whole numbers", "f": "numbers", "U": "text"}
"""Kinds of NumPy's types in which draws are kept."""
_LARGEST = np.iinfo(np.int64).max


def check_draw_names(names: Iterable[str]) -> None:
    """Raise DatasetError for a name that the catalog cannot have beside the recorder's columns."""
    lower: set[str] = set()
    for name in names:
        if not isinstance(name, str) or not COLUMN_NAME.fullmatch(name):
            raise DatasetError(
                f"draws: the name {name!r} is not allowed: use letters, digits and underscores"
            )
        if name.lower() in _RESERVED_DRAWS:
            raise DatasetError(
                f"draws: {name!r} is a column of the recorder's; give another name than "
                f"{listed(sorted(_RESERVED_DRAWS))}"
            )
        if name.lower() in lower:
            raise DatasetError(
                f"draws: names must differ in more than upper and lower case, as {name!r} does not"
            )
        lower.add(name.lower())


def check_field_names(names: Iterable[str]) -> None:
    """Raise DatasetError for a further field that the recorder has, or that no store can have."""
    for name in names:
        if not isinstance(name, str):
            raise DatasetError(f"more: the name {name!r} is no text")
        Field(name)
        is_observation = f"{name}_".startswith((f"{OBS}_", f"{FINAL_OBS}_"))
        if is_observation or name in (ACTION, REWARD):
            raise DatasetError(
                f"more: {name!r} is a field of the recorder's; give another name than {ACTION}, "
                f"{REWARD}, {OBS}, {FINAL_OBS}, {OBS}_… and {FINAL_OBS}_…"
            )


def draw_values(name: str, value: Any, robots: int | None = None) -> np.ndarray:
    """(N,) values of a draw, as int64, float64, bool or text.

    Where the number of robots is known, one value is that of all.

    Raises:
        DatasetError: another shape, or neither numbers, truth values nor text.
    """
    array = plain_array(value)
    if not array.ndim and robots is not None:
        array = np.full(robots, array)
    if array.ndim != 1 or len(array) != (len(array) if robots is None else robots):
        expected = "(N,)" if robots is None else f"(N,), which is ({robots},)"
        raise DatasetError(f"draws[{name!r}] must be {expected}, not {array.shape}")
    if array.dtype.kind == "u" and len(array) and array.max() > _LARGEST:
        raise DatasetError(f"draws[{name!r}]: {array.max()} is more than {_LARGEST}")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    elif array.dtype.kind == "f":
        array = array.astype(np.float64)
    elif array.dtype.kind in "OT" and all(isinstance(text, str) for text in array):
        array = array.astype(str)
    kind = _KINDS.get(array.dtype.kind)
    if kind is None:
        raise DatasetError(f"draws[{name!r}] are {array.dtype}; use numbers, truth values or text")
    if _TYPED_DRAWS.get(name.lower(), kind) != kind:
        raise DatasetError(f"draws[{name!r}] must be {_TYPED_DRAWS[name.lower()]}, not {kind}")
    return np.array(array)


def check_joins(name: str, before: np.dtype[Any], after: np.dtype[Any]) -> None:
    """Raise DatasetError for types of a draw that no column of a catalog holds together."""
    kinds = [_KINDS[dtype.kind] for dtype in (before, after)]
    if before.kind != after.kind and not {before.kind, after.kind} == {"i", "f"}:
        raise DatasetError(
            f"draws[{name!r}] are {kinds[1]}, but were {kinds[0]} before; a column holds one kind"
        )


def merged(kept: np.ndarray | None, robots: np.ndarray, values: np.ndarray) -> np.ndarray:
    """A new array (N,): the values in a mask (N,), the kept ones outside, in a joint type."""
    if kept is None:
        return np.array(values)
    joined = kept.astype(np.result_type(kept, values))
    joined[robots] = values[robots]
    return joined


def check_stored_columns(stored: pa.Schema, columns: dict[str, np.ndarray]) -> None:
    """Raise DatasetError for draws that do not join the columns which a store's parts have.

    Parts whose columns do not join could be read no longer.
    """
    spelled = {name.lower(): name for name in stored.names}
    for name in columns:
        stored_name = spelled.get(name.lower())
        if stored_name is None:
            continue
        if stored_name != name:
            raise DatasetError(f"draws: {name!r} is {stored_name!r} in the store; call it so")
        kind = stored.field(name).type
        was = "U" if pa.types.is_string(kind) else kind.to_pandas_dtype()
        check_joins(name, np.dtype(was), columns[name].dtype)
