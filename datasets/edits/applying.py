"""Write a store's present version as a new store without edits."""

import os
from pathlib import Path

from gaitforge.datasets.edits.assemble import Advance, copy_notes, lineage, new_place, unfinished
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.store import PartStore


def apply_edits(
    store: PartStore, out: str | os.PathLike[str], advance: Advance = lambda steps: None
) -> Path:
    """Write the episodes of a store as they are now into the new store `out`; returns its path.

    Dropped episodes, trimmed steps and replaced values are not in it; added fields and columns are
    as if they had been collected. Parts keep their names, but not their hashes, so tags stay
    behind. The new store's plan says what it was made from. `advance` is called with the steps of
    each part. The store appears when it is complete; the same call again goes on after a crash.
    DatasetError if something else is at `out`, an object is damaged or missing, or the disk cannot
    be written.
    """
    path = new_place(out)
    catalog = store.catalog()
    present = EpisodeSelection(store, catalog, catalog.shown)
    with unfinished(path, present.schema, {"applied": lineage(store)}) as target:
        if target is None:
            return path
        for part_id, rows in present.rows_by_part():
            part = present.with_rows(catalog.part_bounds[part_id][0] + rows)
            if target.missing([part_id]):
                steps = {name: part.read(name) for name in present.schema.names("step")}
                finals = {name: part.read(name) for name in present.schema.names("episode")}
                columns = part.episodes().drop_columns(["part", "start"])
                target.write_part(part_id, steps, columns, finals)
            advance(part.steps)
        copy_notes([store.path], target.path)
    return path
