"""The driver of exports, and the verification of what they write.

An export is written under a temporary name, flushed, read back and renamed. An interrupted export
starts anew, because most layouts cannot be continued, and removes what it finds under the temporary
name.

For verification the format's own reader must give back the selection. Episodes are compared by
checksums of their fields' bytes. So each side is read once, in parts of bounded size, and in its
own order, because some layouts regroup episodes. CRC-32 is enough against accidents and much
cheaper than decoding.
"""

import os
import re
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common import files
from gaitforge.common.errors import DatasetError, listed
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.catalog.episodes import episode_table, episodes_digest
from gaitforge.datasets.formats import exporter_class, importer_class, options_of
from gaitforge.datasets.formats.protocol import Begin, Exporter, Report, no_progress
from gaitforge.datasets.formats.sources import Span, blocks, field_bytes
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.schema import (
    FINAL_OBS,
    Field,
    actions_in_words,
    holds_executed,
    stores_executed,
)
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.storage.s3 import is_bucket_url

# Verification.
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


# The driver.
def export_selection(
    name: str,
    selection: EpisodeSelection,
    destination: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    begin: Begin = no_progress,
) -> Report:
    """Write a selection in another project's format.

    Args:
        name: one of `formats.FORMATS`; options: of its writer.
        selection: at least one episode.
        destination: the new file or folder.
        begin: reports the steps written.

    Raises:
        DatasetError: an unknown format or option, packages that are not installed, a selection that
            the format cannot hold, a destination that exists or cannot be written, or an export
            that does not read back as what was selected. Nothing is left behind.
    """
    started = time.monotonic()
    cls = exporter_class(name)
    writer_options = options_of(cls.Options, options)
    exporter = cls(writer_options)
    if "://" in str(destination) or is_bucket_url(destination):
        raise DatasetError(f"{destination} is no local path; export to one and copy it from there")
    target = Path(destination).absolute()
    _check_free(target, destination)
    if len(selection) == 0:
        raise DatasetError("nothing to export: no episode is selected")
    default = "" if stores_executed(selection.schema) else cls.actions  # it has no others
    selection = selection.with_actions(getattr(writer_options, "actions", "") or default)
    exporter.check(selection, target)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f".{target.name}.exporting")
        with exclusive_lock(target.with_name(f"{temporary.name}.lock"), wait=False) as held:
            if not held:
                raise DatasetError(f"{destination} is being written by another process")
            try:
                _remove(temporary)
                carried = exporter.write(selection, temporary, begin(selection.steps))
                (files.fsync_tree if temporary.is_dir() else files.fsync_path)(temporary)
                notes = getattr(writer_options, "notes", False)
                _verify(name, exporter, notes, selection, temporary, destination)
                _check_free(target, destination)
                files.replace_durably(temporary, target)
            finally:
                _remove(temporary)
    except OSError as error:
        raise DatasetError(f"cannot write {destination}: {_reason(error)}") from error
    size = field_bytes(selection.schema.fields, selection.steps, len(selection))
    counts = len(selection), selection.steps, len(selection.rows_by_part()), size
    seconds = time.monotonic() - started
    carried = replace(carried, notes=(*carried.notes, *_actions_note(selection)))
    return Report(name, selection.store.address, str(destination), *counts, seconds, carried)


def _verify(
    name: str,
    exporter: Exporter,
    notes: bool,
    selection: EpisodeSelection,
    temporary: Path,
    destination: str | os.PathLike[str],
) -> None:
    """Raise DatasetError for an export that does not read back as what was selected."""
    try:
        verify_export(name, exporter, notes, selection, temporary)
    except DatasetError as error:
        problem = str(error).replace(str(temporary), str(destination))
        message = f"{destination} was not made, it does not read back as it was written"
        raise DatasetError(f"{message}: {problem}") from error


def _actions_note(selection: EpisodeSelection) -> list[str]:
    """Which actions were written, where the store tells executed ones from others."""
    words = actions_in_words(selection.schema)
    if not words:
        return []
    lines = [f"actions: {words}"]
    if holds_executed(selection.schema) and FINAL_OBS not in selection.schema.names("episode"):
        lines.append("the last action of each episode is the stored one: there is no final_obs")
    return lines


def _check_free(target: Path, destination: str | os.PathLike[str]) -> None:
    if os.path.lexists(target):
        raise DatasetError(f"{destination} exists; give the path of a new file or folder")
    check_outside_stores(target)


def _remove(temporary: Path) -> None:
    if temporary.is_dir():
        shutil.rmtree(temporary)
    else:
        temporary.unlink(missing_ok=True)


def _reason(error: OSError) -> str:
    """The system's message, without what HDF5 and Arrow wrap around it."""
    match = re.search(r"errno\W+(\d+)", str(error), re.IGNORECASE)
    number = error.errno or (int(match[1]) if match else 0)
    return os.strerror(number) if number else " ".join(str(error).split())
