"""A part's episodes as a table: columns, types, checks, and the digest of its values."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, failures, listed
from gaitforge.datasets.catalog.catalog import STORE_COLUMNS, required_columns

COLUMN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def episode_table(
    episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table,
    part_id: str,
    group_by: Sequence[str],
) -> pa.Table:
    """The catalog rows of a part, checked and cast, with `part` and `start` added.

    `group_by` is the store's `Schema.group_by`. DatasetError if a required column is missing, a
    type or value is not allowed, columns differ in length, or an episode id repeats.
    """
    names = list(episodes if isinstance(episodes, Mapping) else episodes.column_names)
    required = required_columns(group_by)
    _check_names(names, required)
    columns = dict.fromkeys((*required, *names))
    arrays = {name: _column(name, episodes[name], required.get(name)) for name in columns}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1:
        raise DatasetError("every episode column needs the same number of rows")
    if sizes == {0}:
        raise DatasetError("a part needs at least one episode")
    lengths = arrays["length"].to_numpy()
    if lengths.min() < 1:
        raise DatasetError("column length: every episode needs at least one step")
    if len(arrays["episode"].unique()) != len(lengths):
        raise DatasetError("column episode: the ids of a part must differ")
    starts = np.cumsum(lengths) - lengths
    added = {"part": pa.array([part_id] * len(lengths)), "start": pa.array(starts)}
    return pa.table(added | arrays)


def episodes_digest(table: pa.Table) -> str:
    """SHA-256 of a catalog table's names, types and values, ordered by column name."""
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table.column(name).combine_chunks()
        digest.update(f"{name} {column.type} {len(column)}\n".encode())
        missing = column.null_count > 0
        valid = np.asarray(column.is_valid()) if missing else np.ones(len(column), bool)
        digest.update(valid.tobytes())
        if pa.types.is_string(column.type):
            digest.update(_json_of(column).encode())
        else:
            empty = pa.scalar(False if pa.types.is_boolean(column.type) else 0, column.type)
            digest.update(np.asarray(column.fill_null(empty) if missing else column).tobytes())
    return digest.hexdigest()


def _json_of(column: pa.Array) -> str:
    """A column of text as a JSON list; each of its few values is encoded once."""
    encoded = column.dictionary_encode()
    texts = [json.dumps(value) for value in [*encoded.dictionary.to_pylist(), None]]
    codes = encoded.indices.fill_null(len(texts) - 1).to_pylist()
    return f"[{', '.join([texts[code] for code in codes])}]"


def _check_names(names: list[str], required: Iterable[str]) -> None:
    if missing := [name for name in required if name not in names]:
        raise DatasetError(f"episode columns are missing: {listed(missing)}")
    if taken := [name for name in names if name in STORE_COLUMNS]:
        raise DatasetError(
            f"episode columns {listed(taken)} are added by the store: leave them out"
        )
    if odd := [name for name in names if not COLUMN_NAME.fullmatch(name)]:
        raise DatasetError(
            f"episode column names {odd} are not allowed: letters, digits and underscores only"
        )
    if len({name.lower() for name in names}) != len(names):
        raise DatasetError("episode column names must differ in more than upper and lower case")


def _column(name: str, values: Any, required: pa.DataType | None) -> pa.Array:
    with failures(f"episode column {name}", pa.ArrowException, TypeError, ValueError):
        array = values if isinstance(values, pa.ChunkedArray | pa.Array) else pa.array(values)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        array = array.cast(required or _carried_type(name, array.type))
    if required:
        if array.null_count:
            raise DatasetError(f"episode column {name}: a value is missing")
        if pa.types.is_floating(array.type) and not np.isfinite(array.to_numpy()).all():
            raise DatasetError(f"episode column {name}: every value must be finite")
    return array


def _carried_type(name: str, kind: pa.DataType) -> pa.DataType:
    value = kind.value_type if pa.types.is_dictionary(kind) else kind
    if pa.types.is_floating(value):
        return pa.float64()
    if pa.types.is_integer(value):
        return pa.int64()
    if pa.types.is_boolean(value):
        return value
    if pa.types.is_string(value) or pa.types.is_large_string(value):
        return pa.string()
    raise DatasetError(f"episode column {name}: type {kind} is not allowed; use numbers or text")
