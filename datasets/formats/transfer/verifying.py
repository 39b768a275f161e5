"""Does what an export wrote read back as what was selected? The format's own reader says.

Episodes are compared by checksums of their fields' bytes, so that either side is read once, a
bounded part at a time, and in its own order: some layouts group episodes anew. CRC-32 is enough for
what went wrong by accident, and costs far less than decoding does.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datasets.catalog.episodes import episode_table, episodes_digest
from datasets.errors import DatasetError, listed
from datasets.formats import importer_class, options_of
from datasets.formats.interface import Exporter, Importer
from datasets.formats.sources import bounded_units
from datasets.schema import Field, Schema
from datasets.selection.selection import Selection

AsRead = Callable[[Schema, Mapping[str, np.ndarray], np.ndarray], Mapping[str, np.ndarray]]
Sums = dict[str, np.ndarray]
"""Field -> (E,) uint32: a checksum of each episode's values."""


def verify_export(
    name: str, exporter: Exporter, noted: bool, selection: Selection, written: Path
) -> None:
    """Compare what was written with the selection, as far as the format holds it.

    Episodes, steps, the values of every field that comes back under its name, and the catalog where
    it was ``noted``.

    Args:
        name: of the format; exporter: that wrote.
        noted: whether the catalog was kept, so that episodes come back with their ids.
        selection: what was to be written; written: where it was.

    Raises:
        DatasetError: it cannot be read, or differs; one line that names what does.
    """
    cls = importer_class(name)
    reading = {} if noted else getattr(exporter, "reading", {})
    importer = cls(str(written), options_of(cls.Options, reading))
    try:
        _check_counts(importer, selection)
        tables: list[pa.Table] = []
        theirs = _summed(_read_parts(importer, tables if noted else None))
    finally:
        importer.close()
    fields = {each.name: each for each in importer.schema.fields}
    as_read = getattr(exporter, "as_read", lambda schema, steps, lengths: steps)
    ours = _summed(_selected(selection, fields, as_read))
    theirs = {field: theirs[field] for field in ours}
    if noted:
        differing = _differing_rows(selection, tables)
        ours = _ordered(ours, np.argsort(selection.episode_ids(), kind="stable"))
        theirs = _ordered(theirs, np.argsort(_ids(tables), kind="stable"))
        differing += [field for field in ours if not np.array_equal(ours[field], theirs[field])]
    else:
        differing = _differing_fields(ours, theirs)
    if differing:
        raise DatasetError(
            f"{listed(differing)} of some episodes are not what {selection.store.address} holds"
        )


def _check_counts(importer: Importer, selection: Selection) -> None:
    episodes = sum(len(lengths) for lengths in importer.part_lengths)
    steps = sum(int(lengths.sum()) for lengths in importer.part_lengths)
    if (episodes, steps) != (len(selection), selection.steps):
        raise DatasetError(
            f"{episodes} episodes of {steps} steps are there, not {len(selection)} of "
            f"{selection.steps}"
        )


Block = tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray], np.ndarray]
"""Fields a step, fields an episode, and the lengths, of consecutive episodes."""


def _read_parts(importer: Importer, tables: list[pa.Table] | None) -> Iterator[Block]:
    """What the reader makes of each part; its catalog rows are added to ``tables``."""
    for number, lengths in enumerate(importer.part_lengths):
        part = importer.read_part(number)
        if tables is not None:
            tables.append(_catalog_rows(part.episodes, importer.schema.group_by))
        yield part.steps, part.per_episode, lengths


def _selected(
    selection: Selection, fields: Mapping[str, Field], as_read: AsRead
) -> Iterator[Block]:
    """The selection's values of the reader's fields, in its dtypes, if these hold them exactly."""
    schema = selection.store.schema

    def held(arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {
            name: rows.astype(fields[name].dtype, copy=False)
            for name, rows in arrays.items()
            if name in fields and _holds(fields[name], rows)
        }

    chosen = {
        per: [name for name in schema.names(per) if name in fields and fields[name].per == per]
        for per in ("step", "episode")
    }
    for unit in bounded_units(selection):
        lengths = selection.unit_rows(unit)[1]
        steps = {name: selection.read_unit(name, unit) for name in chosen["step"]}
        per_episode = {name: selection.read_unit(name, unit) for name in chosen["episode"]}
        yield held(as_read(schema, steps, lengths)), held(per_episode), lengths


def _holds(field: Field, rows: np.ndarray) -> bool:
    wide = np.dtype(field.dtype)
    same_kind = rows.dtype.kind == wide.kind and np.can_cast(rows.dtype, wide)
    return same_kind and rows[:1].size == np.prod(field.shape, dtype=np.int64)


def _summed(blocks: Iterator[Block]) -> Sums:
    found: dict[str, list[np.ndarray]] = {}
    for steps, per_episode, lengths in blocks:
        stops = np.cumsum(lengths)
        rows = np.arange(len(lengths))
        for arrays, first, stop in (
            (steps, stops - lengths, stops),
            (per_episode, rows, rows + 1),
        ):
            for name, values in arrays.items():
                flat = np.ascontiguousarray(values).reshape(len(values), -1).view(np.uint8)
                sums = [
                    zlib.crc32(flat[low:high].data)
                    for low, high in zip(first.tolist(), stop.tolist(), strict=True)
                ]
                found.setdefault(name, []).append(np.array(sums, np.uint32))
    return {name: np.concatenate(sums) for name, sums in found.items()}


def _differing_fields(ours: Sums, theirs: Sums) -> list[str]:
    """Fields with a value that the other side lacks, whatever the order of its episodes."""
    if all(np.array_equal(ours[name], theirs[name]) for name in ours):
        return []
    differing = [
        name for name in ours if not np.array_equal(np.sort(ours[name]), np.sort(theirs[name]))
    ]
    first, second = (_ordered(sums, np.lexsort(list(sums.values()))) for sums in (ours, theirs))
    return differing or [name for name in ours if not np.array_equal(first[name], second[name])]


def _ordered(sums: Sums, order: np.ndarray) -> Sums:
    return {name: each[order] for name, each in sums.items()}


def _catalog_rows(episodes: Any, group_by: Sequence[str]) -> pa.Table:
    return episode_table(episodes, "", group_by).drop_columns(["part", "start"])


def _ids(tables: list[pa.Table]) -> np.ndarray:
    return np.concatenate([table.column("episode").to_numpy() for table in tables])


def _differing_rows(selection: Selection, tables: list[pa.Table]) -> list[str]:
    """Columns of the catalog that came back otherwise; all but the order of the rows counts."""
    rows = selection.episodes().drop_columns(["part", "start"])
    ours = _catalog_rows(rows, selection.store.schema.group_by)
    theirs = pa.concat_tables(tables, promote_options="permissive")
    ours, theirs = (table.sort_by("episode") for table in (ours, theirs))
    names = dict.fromkeys([*ours.column_names, *theirs.column_names])
    return [f"column {name}" for name in names if _digest(ours, name) != _digest(theirs, name)]


def _digest(table: pa.Table, name: str) -> str:
    return episodes_digest(table.select([name])) if name in table.column_names else ""
