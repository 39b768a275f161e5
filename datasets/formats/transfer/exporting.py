"""The driver of exports: write under a temporary name, flush, read back, rename.

An interrupted export starts anew, because most layouts cannot be continued, and removes what it
finds under the temporary name.
"""

import os
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaitforge.common import files
from gaitforge.common.errors import DatasetError
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.formats import exporter_class, options_of
from gaitforge.datasets.formats.protocol import Begin, Exporter, Report, no_progress
from gaitforge.datasets.formats.sources import field_bytes
from gaitforge.datasets.formats.transfer.verifying import verify_export
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.selection.actions import (
    FINAL_OBS,
    actions_in_words,
    holds_executed,
    stores_executed,
)
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.s3.bucket import is_bucket_url


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
