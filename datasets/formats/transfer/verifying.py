"""Verification of an export: the format's own reader must give back the selection.

Episodes are compared by checksums of their fields' bytes. So each side is read once, in parts of
bounded size, and in its own order, because some layouts regroup episodes. CRC-32 is enough against
accidents and much cheaper than decoding.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.episodes import episode_table, episodes_digest
from gaitforge.datasets.formats import importer_class, options_of
from gaitforge.datasets.formats.blocks import blocks
from gaitforge.datasets.formats.protocol import Exporter
from gaitforge.datasets.formats.sources import Span
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection.selection import EpisodeSelection

Arrays = Mapping[str, np.ndarray]
Sums = dict[str, np.ndarray]
"""Field -> (E,) uint32: a checksum of each episode's values."""


def verify_export(
    name: str, exporter: Exporter, notes: bool, selection: EpisodeSelection, written: Path
) -> None:
    """Compare what the `exporter` of format `name` has written with the selection.

    Compares episodes, steps, the values of every field that comes back under its name, and with
    `notes` the catalog.

    Raises:
        DatasetError: it cannot be read, or differs; names what differs.
    """
    cls = importer_class(name)
    importer = cls(str(written), options_of(cls.Options, {} if notes else exporter.reading))
    fields = {field.name: field for field in importer.schema.fields}
    tables: list[pa.Table] = []

    def parts() -> Iterator[tuple[Arrays, Span]]:
        for span in importer.parts:
            part = importer.read_part(span)
            if notes:
                tables.append(_catalog_rows(part.episodes, importer.schema.group_by))
            yield part.arrays, span

    try:
        counts = importer.episodes, importer.steps
        if counts != (expected := (len(selection), selection.steps)):
            problem = "it has {} episodes of {} steps, not {} of {}"
            raise DatasetError(problem.format(*counts, *expected))
        theirs = _checksums(parts(), fields)
    finally:
        importer.close()
    ours = _checksums(_selected(selection, fields, exporter), fields)
    theirs = {field: theirs[field] for field in ours}
    if notes:
        ids = np.concatenate([table.column("episode").to_numpy() for table in tables])
        ours = _ordered(ours, np.argsort(selection.episode_ids(), kind="stable"))
        theirs = _ordered(theirs, np.argsort(ids, kind="stable"))
        differing = _differing_columns(selection, tables)
        differing += [field for field in ours if not np.array_equal(ours[field], theirs[field])]
    else:
        differing = _differing_fields(ours, theirs)
    if differing:
        held = f"not what {selection.store.address} holds"
        raise DatasetError(f"{listed(differing)} of some episodes are {held}")


def _selected(
    selection: EpisodeSelection, fields: Mapping[str, Field], exporter: Exporter
) -> Iterator[tuple[Arrays, Span]]:
    """The selection's blocks with those fields that the reader's dtypes hold exactly."""
    schema = selection.schema
    names = [
        name
        for per in ("step", "episode")
        for name in schema.names(per)
        if name in fields and fields[name].per == per
    ]
    for block in blocks(selection):
        read = exporter.as_read(schema, block.read(names), block.lengths)
        held = {name: rows for name, rows in read.items() if _holds(fields[name], rows)}
        yield (
            {name: rows.astype(fields[name].dtype, copy=False) for name, rows in held.items()},
            block,
        )


def _holds(field: Field, rows: np.ndarray) -> bool:
    wide = np.dtype(field.dtype)
    same_kind = rows.dtype.kind == wide.kind and np.can_cast(rows.dtype, wide)
    return same_kind and rows[:1].size == np.prod(field.shape, dtype=np.int64)


def _checksums(parts: Iterator[tuple[Arrays, Span]], fields: Mapping[str, Field]) -> Sums:
    checksums: dict[str, list[int]] = {}
    for arrays, span in parts:
        bounds = {"step": [0, *span.stops.tolist()], "episode": range(len(span.lengths) + 1)}
        for name, values in arrays.items():
            flat = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
            ends = pairwise(bounds[fields[name].per])
            checksums.setdefault(name, []).extend(zlib.crc32(flat[a:b].data) for a, b in ends)
    return {name: np.array(sums, np.uint32) for name, sums in checksums.items()}


def _differing_fields(ours: Sums, theirs: Sums) -> list[str]:
    """Fields with different values, whatever the order of the episodes."""
    if all(np.array_equal(ours[name], theirs[name]) for name in ours):
        return []
    differing = [
        name for name in ours if not np.array_equal(np.sort(ours[name]), np.sort(theirs[name]))
    ]
    first, second = (_ordered(sums, np.lexsort(list(sums.values()))) for sums in (ours, theirs))
    return differing or [name for name in ours if not np.array_equal(first[name], second[name])]


def _ordered(sums: Sums, order: np.ndarray) -> Sums:
    return {name: values[order] for name, values in sums.items()}


def _catalog_rows(episodes: Any, group_by: Sequence[str]) -> pa.Table:
    return episode_table(episodes, "", group_by).drop_columns(["part", "start"])


def _differing_columns(selection: EpisodeSelection, tables: list[pa.Table]) -> list[str]:
    """Columns of the catalog that differ, whatever the order of the rows."""
    rows = selection.episodes().drop_columns(["part", "start"])
    ours = _catalog_rows(rows, selection.schema.group_by)
    theirs = pa.concat_tables(tables, promote_options="permissive")
    ours, theirs = (table.sort_by("episode") for table in (ours, theirs))
    names = dict.fromkeys([*ours.column_names, *theirs.column_names])
    return [f"column {name}" for name in names if _digest(ours, name) != _digest(theirs, name)]


def _digest(table: pa.Table, name: str) -> str:
    return episodes_digest(table.select([name])) if name in table.column_names else ""
