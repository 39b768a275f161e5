"""How Minari's spaces, episodes and metadata map to fields, and the library `minari`.

An episode of T steps has T + 1 observations, the last one after its last step, and as many infos.

The notes of an export are JSON under the key `gaitforge`: the schema in the metadata of the
dataset, a catalog row in those of each episode. An import refuses notes that contradict Minari's
own seeds, endings and rewards.

The metadata of a dataset and of its episodes are checked. A seed there is any number below 2**64:
`minari.DataCollector` draws 64 random bits where it is given none. The catalog's `seed` is int64
with -1 for none, so a seed of 2**63 or more is text in the column `minari_seed`, beside a `seed`
of -1.

`minari_library` gives the library, also for file systems without locks.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, failures, listed
from gaitforge.common.locks import has_locks
from gaitforge.datasets.formats.sources import (
    damage_named,
    field_name,
    read_json,
    refuse,
    stored_dtype,
)
from gaitforge.datasets.schema import Field, Schema, consecutive_slices

# Spaces, episodes, and the notes of an export.
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


# Metadata of a dataset and of its episodes.
SEED = "seed"
LARGE_SEED = "minari_seed"
STEPS = "total_steps"
EPISODES = "total_episodes"
_LARGE = 1 << 63
_SEED_STOP = 1 << 64
_NEEDED = ("observation_space", "action_space", "data_format", "dataset_id", EPISODES)
_USED = (*_NEEDED[:3], "jpeg_encoding", EPISODES, STEPS, NOTES)
_USED_OF_EPISODES = ("id", SEED, STEPS, NOTES)


def data_folder(source: str) -> Path:
    """The folder with the metadata: the source, its `data`, or that of a local dataset's id."""
    from minari.storage.datasets_root_dir import get_dataset_path

    places = [Path(source), Path(source, "data")]
    if not Path(source).exists():
        places.append(get_dataset_path(source) / "data")
    for folder in places:
        if (folder / METADATA_FILE).is_file():
            return folder
    refuse(source, METADATA_FILE, "no such file there or in data/, and no local dataset's id")


def read_metadata(folder: Path) -> dict[str, Any]:
    """The metadata of a dataset."""
    path = folder / METADATA_FILE
    tree = read_json(path, "Minari dataset")
    for key in _NEEDED:
        if key not in tree:
            refuse(path, key, f"the key is missing; there must be {listed(_NEEDED)}")
    for key in (EPISODES, STEPS):
        if key in tree:
            _whole(path, key, tree[key])
    return tree


def episode_length(folder: Path, number: int, about: Mapping[str, Any], data_format: str) -> int:
    """Steps of an episode by its metadata."""
    key = f"episode_{number}/{STEPS}"
    most = most_steps(data_format)
    steps = _whole(folder, key, about.get(STEPS))
    if most is not None and steps > most:
        problem = f"is {steps}; Minari reads back {most:,} steps of an episode from its"
        refuse(folder, key, f"{problem} {data_format} storage; write it with the hdf5 storage")
    return steps


def check_totals(
    folder: Path, metadata: Mapping[str, Any], lengths: np.ndarray, following: bool
) -> None:
    """Refuse totals that the episodes' lengths (E,), or an episode after them, contradict."""
    path = folder / METADATA_FILE
    steps = int(lengths.sum())
    if following:
        refuse(path, EPISODES, f"is {len(lengths)}, but there is an episode_{len(lengths)}")
    if metadata.get(STEPS, steps) != steps:
        refuse(path, STEPS, f"is {metadata[STEPS]}, but the episodes have {steps}")


def episode_seed(folder: Path, number: int, about: Mapping[str, Any]) -> int | None:
    """The seed of an episode by its metadata; None if it has none."""
    seed = about.get(SEED)
    if seed is None:
        return None
    if not _is_whole(seed) or not 0 <= seed < _SEED_STOP:
        rule = f"must be null or a whole number from 0 to {_SEED_STOP - 1}"
        refuse(folder, f"episode_{number}/{SEED}", f"{rule}, not {seed!r:.40}")
    return int(seed)


def seed_columns(seeds: Sequence[int | None]) -> dict[str, list[Any]]:
    """Catalog columns of some episodes' seeds; `catalog_seed` is the inverse."""
    small = [-1 if seed is None or seed >= _LARGE else seed for seed in seeds]
    large = [None if seed is None or seed < _LARGE else str(seed) for seed in seeds]
    return {SEED: small} | ({LARGE_SEED: large} if any(large) else {})


def catalog_seed(seed: int, large: Any = None) -> int | None:
    """The seed of a catalog row; DatasetError for a `large` that an annotation set to another."""
    if large is None:
        return None if seed < 0 else seed
    is_number = isinstance(large, str) and large.isascii() and large.isdecimal()
    if not is_number or not _LARGE <= int(large) < _SEED_STOP:
        rule = f"be empty or hold a whole number from {_LARGE} to {_SEED_STOP - 1}"
        raise DatasetError(f"the column {LARGE_SEED} must {rule}, not {large!r:.40}")
    return int(large)


def unused(
    metadata: Mapping[str, Any], episode_keys: Iterable[str], used: Sequence[str]
) -> list[str]:
    """Entries of the metadata of dataset and episodes that the store does not keep."""
    left = [f"{key} of the metadata" for key in metadata if key not in (*_USED, *used)]
    if "env_spec" in metadata and "env_spec" in used:
        left.append("env_spec of the metadata, but for its id")
    return left + [
        "options of resets" if key == "options" else f"{key} of the episodes' metadata"
        for key in sorted(set(episode_keys) - set(_USED_OF_EPISODES))
    ]


def _is_whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _whole(source: Path, key: str, value: Any) -> int:
    if not _is_whole(value) or value < 1:
        refuse(source, key, f"must be a whole number from 1 on, not {value!r:.40}")
    return int(value)


# The library, also for file systems without locks.
def minari_library() -> ModuleType:
    """The library, whose HDF5 storage opens files without HDF5's lock where there is none.

    It has no option for that, and HDF5 reads its environment variable only as it is loaded.
    """
    import minari

    with suppress(ImportError):  # a version that keeps it elsewhere works with locks
        from minari.dataset._storages import hdf5_storage

        hdf5_storage.h5py = _Hdf5()
    return minari


class _Hdf5:
    """The module `h5py` but for `File`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(h5py, name)

    def File(self, path: Path, mode: str, **options: Any) -> h5py.File:
        """Open a file that exists."""
        # None is HDF5's default, which would end, or wait for ever, without locks.
        return h5py.File(path, mode, locking=None if has_locks(path) else False, **options)
