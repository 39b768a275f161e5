"""The driver of exports: a temporary name, a flush to the disk, and one rename."""

from __future__ import annotations

import os
import re
import shutil
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from datasets.bucket import is_bucket_url
from datasets.errors import DatasetError
from datasets.files import fsync_path, fsync_tree, replace_durably
from datasets.formats import exporter_class, options_of
from datasets.formats.interface import Begin, Report, unheard
from datasets.selection import Selection


def export_selection(
    name: str,
    selection: Selection,
    destination: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    begin: Begin = unheard,
) -> Report:
    """Write a selection in another project's format.

    Args:
        name: one of ``formats.FORMATS``.
        selection: at least one episode.
        destination: the new file or folder.
        options: of the format's writer; begin: hears of steps as they are written.

    Raises:
        DatasetError: an unknown format or option, packages that are not installed, a selection that
            the format cannot hold, or a destination that exists or cannot be written; nothing is
            left behind.
    """
    started = time.monotonic()
    cls = exporter_class(name)
    exporter = cls(options_of(cls.Options, options))
    if "://" in str(destination) or is_bucket_url(destination):
        raise DatasetError(f"{destination} is no local path; export to one and copy it from there")
    target = Path(destination).absolute()
    if target.exists():
        raise DatasetError(f"{destination} exists; give the path of a new file or folder")
    if len(selection) == 0:
        raise DatasetError("nothing to export: no episode is selected")
    exporter.check(selection, target)
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}.tmp")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        carried = exporter.write(selection, temporary, begin(selection.steps))
        (fsync_tree if temporary.is_dir() else fsync_path)(temporary)
        replace_durably(temporary, target)
    except OSError as error:
        raise DatasetError(f"cannot write {destination}: {_reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.unlink(missing_ok=True)
    fields = selection.store.schema.fields
    per = {"step": selection.steps, "episode": len(selection)}
    return Report(
        name,
        selection.store.address,
        str(destination),
        len(selection),
        selection.steps,
        len(selection.rows_by_part()),
        sum(each.row_bytes * per[each.per] for each in fields),
        time.monotonic() - started,
        carried,
    )


def _reason(error: OSError) -> str:
    """The system's own words: HDF5 and Arrow put theirs around them."""
    found = re.search(r"errno\W+(\d+)", str(error), re.IGNORECASE)
    number = error.errno or (int(found[1]) if found else 0)
    return os.strerror(number) if number else " ".join(str(error).split())
