"""How Minari's spaces and episodes map to fields, and the notes of an export.

An episode of T steps has T + 1 observations, the last one after its last step, and as many infos.
The notes are JSON under the key `gaitforge`: the schema in the metadata of the dataset, a catalog
row in those of each episode. An import refuses notes that contradict Minari's own seeds, endings
and rewards.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import failures
from gaitforge.datasets.formats.checks import damage_named, refuse
from gaitforge.datasets.formats.sources import field_name, stored_dtype
from gaitforge.datasets.schema import Field, Schema, consecutive_slices

NOTES = "gaitforge"
OBSERVATIONS = "observations"
ACTIONS = "actions"
INFOS = "infos"
REWARDS = "rewards"
TERMINATIONS = "terminations"
TRUNCATIONS = "truncations"
METADATA_FILE = "metadata.json"
HDF5_FILE = "main_data.hdf5"

_BATCH_ROWS = 1 << 15
"""Rows (steps + 1) after which Arrow (26) cuts what Minari's Arrow storages read; Minari (0.5.4)
takes every cut for an episode."""


def most_steps(data_format: str) -> int | None:
    """The longest episode that Minari reads back from a storage; None for any."""
    return None if data_format == "hdf5" else _BATCH_ROWS - 1


@dataclass(frozen=True)
class Leaf:
    """One numeric array in a space; shape and dtype are those of one step.

    Attributes:
        path: keys from the space down to it.
        bounded: whether the space limits the numbers further than its dtype does.
    """

    path: tuple[str | int, ...]
    shape: tuple[int, ...]
    dtype: np.dtype
    bounded: bool

    @property
    def size(self) -> int:
        """Columns that the leaf takes in a flat field."""
        return max(1, int(np.prod(self.shape, dtype=np.int64)))

    def of(self, values: Any) -> np.ndarray:
        """The leaf's rows in an episode's values."""
        for key in self.path:
            values = values[key]
        return np.asarray(values)


def leaves_of(
    key: str, space: Any, left: list[str], path: tuple[str | int, ...] = ()
) -> list[Leaf]:
    """The arrays of a space, in its own order; `left` gets a line for what holds no numbers.

    Those are spaces of text, or with a 0 in their shape.
    """
    from gymnasium import spaces

    inner = {}
    if isinstance(space, spaces.Dict):
        inner = space.spaces
    elif isinstance(space, spaces.Tuple):
        inner = dict(enumerate(space.spaces))
    elif space.dtype is None or not stored_dtype(space.dtype) or 0 in space.shape:
        where = "/".join(map(str, (key, *path)))
        shape = f" and shape {space.shape}" if space.shape else ""
        left.append(f"{where}: a space of {type(space).__name__}{shape} holds no numbers")
    else:
        return [Leaf(path, tuple(space.shape), np.dtype(space.dtype), _is_bounded(space))]
    inner_leaves = [leaves_of(key, child, left, (*path, name)) for name, child in inner.items()]
    return [leaf for leaves in inner_leaves for leaf in leaves]


def _is_bounded(space: Any) -> bool:
    from gymnasium import spaces

    if isinstance(space, spaces.Box):
        dtype = np.dtype(space.dtype)
        if dtype.kind == "b":
            return False
        limits = np.finfo(dtype) if dtype.kind == "f" else np.iinfo(dtype)
        return bool((space.low > limits.min).any() or (space.high < limits.max).any())
    return not isinstance(space, spaces.MultiBinary)


def leaves_field(name: str, leaves: Sequence[Leaf], description: str) -> Field:
    """The field of a space: its one array, or all of them flat, end to end, as named slices."""
    dtype = stored_dtype(np.result_type(*(leaf.dtype for leaf in leaves)))
    if len(leaves) == 1:
        return Field(name, leaves[0].shape, dtype, description=description)
    slices = consecutive_slices(
        {field_name("_".join(map(str, leaf.path))): leaf.size for leaf in leaves}
    )
    width = sum(leaf.size for leaf in leaves)
    return Field(name, (width,), dtype, description=description, slices=slices)


def joined(source: Path, key: str, leaves: Sequence[Leaf], values: Any, field: Field) -> np.ndarray:
    """(rows, *field.shape) an episode's values of a space, unchanged."""
    arrays = [_exact(source, key, leaf, leaf.of(values), np.dtype(field.dtype)) for leaf in leaves]
    if len(leaves) == 1:
        return arrays[0]
    flat = [array.reshape(-1, leaf.size) for leaf, array in zip(leaves, arrays, strict=True)]
    return np.concatenate(flat, axis=1)


def _exact(source: Path, key: str, leaf: Leaf, rows: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Rows in C order and a dtype that holds each of their numbers."""
    where = "/".join(map(str, (key, *leaf.path)))
    if not np.can_cast(rows.dtype, leaf.dtype):
        refuse(source, where, f"has dtype {rows.dtype}, but its space is of {leaf.dtype}")
    converted = np.ascontiguousarray(rows, dtype)
    if not np.can_cast(rows.dtype, dtype) and not np.array_equal(
        converted.astype(rows.dtype), rows, equal_nan=rows.dtype.kind == "f"
    ):
        refuse(source, where, f"has numbers that {dtype} does not hold")
    return converted


def flat_infos(infos: Mapping[str, Any] | None, prefix: str = "") -> dict[str, Any]:
    """Infos by their path, such as "state/qpos"."""
    flat: dict[str, Any] = {}
    for key, value in (infos or {}).items():
        if isinstance(value, Mapping):
            flat |= flat_infos(value, f"{prefix}{key}/")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def schema_note(schema: Schema, columns: pa.Schema) -> str:
    """The note in the dataset's metadata: the schema and the types of the catalog's columns."""
    types = {column.name: str(column.type) for column in columns}
    return json.dumps({"schema": schema.to_json(), "columns": types})


def read_schema_note(source: Path, note: Any) -> tuple[Schema, dict[str, pa.DataType]]:
    """The schema, and the types of the catalog's columns."""
    kinds = KeyError, TypeError, ValueError, AttributeError, pa.ArrowException
    with failures(f"{source}: {NOTES}: the notes are damaged", *kinds):
        tree = json.loads(note)
        types = {name: pa.type_for_alias(text) for name, text in tree["columns"].items()}
        return Schema.from_json(tree["schema"]), types


def rows_of_notes(source: Path, notes: Sequence[Any], types: Mapping[str, pa.DataType]) -> pa.Table:
    """The catalog rows in the notes of some episodes."""
    with damage_named(source, NOTES, "an episode's note is damaged"):
        rows = [json.loads(note) for note in notes]
        return pa.table(
            {name: pa.array([row[name] for row in rows], kind) for name, kind in types.items()}
        )
