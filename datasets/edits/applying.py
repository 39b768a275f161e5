"""Write a store's present version as a new store without edits."""

import os
from pathlib import Path

from gaitforge.datasets.edits.assemble import Advance, copy_notes, lineage
from gaitforge.datasets.selection.selection import Selection
from gaitforge.datasets.storage.store import Store


def apply_edits(
    store: Store, out: str | os.PathLike[str], advance: Advance = lambda steps: None
) -> Path:
    """Write the episodes of a store as they are now into the new store `out`; returns its path.

    Dropped episodes, trimmed steps and replaced values are not in it; added fields and columns are
    as if they had been collected. Parts keep their names, but not their hashes, so tags stay
    behind. The new store's plan says what it was made from. `advance` is called with the steps of
    each part. The same call again goes on after a crash. DatasetError if something else is at
    `out`, an object is damaged or missing, or the disk cannot be written.
    """
    catalog = store.catalog()
    present = Selection(store, catalog, catalog.shown)
    target = Store.create(out, present.schema, {"applied": lineage(store)})
    for part_id, rows in present.rows_by_part():
        part = present.with_rows(catalog.part_bounds[part_id][0] + rows)
        if target.missing([part_id]):
            steps, per_episode = (
                {name: part.read(name) for name in present.schema.names(per)}
                for per in ("step", "episode")
            )
            columns = part.episodes().drop_columns(["part", "start"])
            target.write_part(part_id, steps, columns, per_episode)
        advance(part.steps)
    copy_notes([store.path], target.path)
    target.files.rebuild_index()
    return target.path
