"""The catalog: one Parquet file a part with a row an episode, and the snapshot readers share."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from datasets.errors import DatasetError, listed
from datasets.files import fsync_path
from datasets.manifest import Manifest

REQUIRED_COLUMNS: dict[str, pa.DataType] = {
    "episode": pa.int64(),
    "length": pa.int64(),
    "seed": pa.int64(),
    "terrain": pa.string(),
    "level": pa.int64(),
    "skill": pa.string(),
    "robot": pa.string(),
    "simulator": pa.string(),
    "simulator_version": pa.string(),
    "expert": pa.string(),
    "expert_hash": pa.string(),
    "return": pa.float64(),
    "success": pa.bool_(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
}
"""Columns every episode has; ``episode`` is the global id that the collection plan gave it."""

STORE_COLUMNS: dict[str, pa.DataType] = {"part": pa.string(), "start": pa.int64()}
"""Columns the store adds: the part, and the episode's first row in the part's step arrays."""

_COLUMN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def episode_table(
    episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table, part_id: str
) -> pa.Table:
    """The catalog rows of a part, checked and in canonical types, ``part`` and ``start`` added.

    Args:
        episodes: column -> one value an episode, in the order of the step arrays.
        part_id: the part they belong to.

    Raises:
        DatasetError: a required column is missing, a type or value is not allowed, the lengths of
            columns differ, or an episode id repeats.
    """
    columns: dict[str, Any] = (
        dict(episodes)
        if isinstance(episodes, Mapping)
        else {name: episodes.column(name) for name in episodes.column_names}
    )
    _check_names(list(columns))
    arrays = {name: _column(name, columns[name]) for name in (*REQUIRED_COLUMNS, *columns)}
    sizes = {len(array) for array in arrays.values()}
    if len(sizes) != 1:
        raise DatasetError("every episode column needs the same number of rows")
    if sizes == {0}:
        raise DatasetError("a part needs at least one episode")
    lengths = arrays["length"].to_numpy()
    if lengths.min() < 1:
        raise DatasetError("column length: every episode needs at least one step")
    if pc.count_distinct(arrays["episode"]).as_py() != len(lengths):  # type: ignore[attr-defined]
        raise DatasetError("column episode: the ids of a part must differ")
    starts = np.cumsum(lengths) - lengths
    return pa.table(
        {"part": pa.array([part_id] * len(lengths)), "start": pa.array(starts), **arrays}
    )


def episodes_digest(table: pa.Table) -> str:
    """SHA-256 of a catalog table's names, types and values, in the order of the column names."""
    digest = hashlib.sha256()
    for name in sorted(table.column_names):
        column = table.column(name).combine_chunks()
        digest.update(f"{name} {column.type} {len(column)}\n".encode())
        valid = np.asarray(pc.is_valid(column))  # type: ignore[attr-defined]
        digest.update(valid.tobytes())
        if pa.types.is_string(column.type):
            digest.update(json.dumps(column.to_pylist()).encode())
        else:
            empty = pa.scalar(False if pa.types.is_boolean(column.type) else 0, column.type)
            digest.update(np.asarray(column.fill_null(empty)).tobytes())
    return digest.hexdigest()


def write_catalog_file(path: Path, table: pa.Table, manifest: Manifest) -> None:
    """Write and flush a catalog file; its rename into the catalog is the part's commit."""
    pq.write_table(
        table.replace_schema_metadata(manifest.to_metadata()),
        path,
        compression="zstd",
        write_page_checksum=True,
    )
    fsync_path(path)


def read_catalog_file(path: Path) -> tuple[Manifest, pa.Table]:
    """The commit record and the episodes of one part.

    Raises:
        DatasetError: the file is truncated, fails a page checksum, or describes another part.
    """
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as stored:
            table = stored.read(use_threads=False)
        manifest = Manifest.from_metadata(table.schema.metadata or {})
        _check_stored(manifest, table, path.stem)
    except (pa.ArrowException, OSError, DatasetError) as error:
        reason = str(error).splitlines()[0] if str(error) else repr(error)
        raise DatasetError(f"part {path.stem}: catalog file {path} is damaged: {reason}") from error
    return manifest, table.replace_schema_metadata(None)


@dataclass(frozen=True)
class Catalog:
    """All committed episodes at one moment, in the order of (part, start).

    Attributes:
        manifests: part id -> commit record, in the order of the rows.
        table: one row an episode.
        part_bounds: part id -> (first, stop) row of the table.
        starts: (E,) first step row within the part.
        lengths: (E,) steps.
    """

    manifests: Mapping[str, Manifest]
    table: pa.Table
    part_bounds: Mapping[str, tuple[int, int]]
    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def join(cls, parts: Sequence[tuple[Manifest, pa.Table]]) -> Catalog:
        """Put the parts' tables, sorted by part id, under each other."""
        empty = pa.schema(STORE_COLUMNS | REQUIRED_COLUMNS).empty_table()
        try:
            table = pa.concat_tables(
                [empty, *(table for _, table in parts)], promote_options="permissive"
            ).combine_chunks()
        except pa.ArrowException as error:
            reason = str(error).splitlines()[0]
            raise DatasetError(f"the parts' catalog columns do not agree: {reason}") from error
        stops = np.cumsum([manifest.episodes for manifest, _ in parts], dtype=np.int64).tolist()
        bounds = {
            manifest.part_id: (stop - manifest.episodes, stop)
            for (manifest, _), stop in zip(parts, stops, strict=True)
        }
        return cls(
            manifests={manifest.part_id: manifest for manifest, _ in parts},
            table=table,
            part_bounds=bounds,
            starts=table.column("start").to_numpy(),
            lengths=table.column("length").to_numpy(),
        )

    def check_column(self, name: str) -> str:
        """Return ``name`` if it is a column; DatasetError lists the columns there are."""
        if name not in self.table.column_names:
            raise DatasetError(
                f"unknown column {name!r}; columns: {listed(self.table.column_names, 80)}"
            )
        return name


def _check_names(names: list[str]) -> None:
    if missing := [name for name in REQUIRED_COLUMNS if name not in names]:
        raise DatasetError(f"episode columns are missing: {listed(missing)}")
    if taken := [name for name in names if name in STORE_COLUMNS]:
        raise DatasetError(
            f"episode columns {listed(taken)} are added by the store: leave them out"
        )
    if odd := [name for name in names if not _COLUMN_NAME.fullmatch(name)]:
        raise DatasetError(
            f"episode column names {odd} are not allowed: letters, digits and underscores only"
        )
    if len({name.lower() for name in names}) != len(names):
        raise DatasetError("episode column names must differ in more than upper and lower case")


def _column(name: str, values: Any) -> pa.Array:
    try:
        array = values if isinstance(values, pa.ChunkedArray | pa.Array) else pa.array(values)
        if isinstance(array, pa.ChunkedArray):
            array = array.combine_chunks()
        array = array.cast(REQUIRED_COLUMNS.get(name) or _carried_type(name, array.type))
    except (pa.ArrowException, TypeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise DatasetError(f"episode column {name}: {reason}") from error
    if name in REQUIRED_COLUMNS:
        if array.null_count:
            raise DatasetError(f"episode column {name}: a value is missing")
        if pa.types.is_floating(array.type) and not np.isfinite(array.to_numpy()).all():
            raise DatasetError(f"episode column {name}: every value must be finite")
    return array


def _carried_type(name: str, given: pa.DataType) -> pa.DataType:
    value = given.value_type if pa.types.is_dictionary(given) else given
    if pa.types.is_floating(value):
        return pa.float64()
    if pa.types.is_integer(value):
        return pa.int64()
    if pa.types.is_boolean(value):
        return value
    if pa.types.is_string(value) or pa.types.is_large_string(value):
        return pa.string()
    raise DatasetError(f"episode column {name}: type {given} is not allowed; use numbers or text")


def _check_stored(manifest: Manifest, table: pa.Table, part_id: str) -> None:
    if manifest.part_id != part_id:
        raise DatasetError(f"it describes part {manifest.part_id}")
    if table.num_rows != manifest.episodes:
        raise DatasetError(f"{table.num_rows} episodes, recorded {manifest.episodes}")
    for name, kind in (STORE_COLUMNS | REQUIRED_COLUMNS).items():
        if name not in table.column_names or table.schema.field(name).type != kind:
            raise DatasetError(f"column {name} is absent or not of type {kind}")
