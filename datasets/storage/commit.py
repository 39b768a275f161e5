"""Write one part atomically: in a staging folder, then renamed, its catalog file last."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa

from gaitforge.common.files import fsync_tree, replace_durably
from gaitforge.datasets.catalog.catalog_files import write_catalog_file
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.manifest import Manifest
from gaitforge.datasets.layout import CATALOG, PARTS, STAGING
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.parts import array_digest, object_hashes, write_arrays


def commit_part(
    root: Path,
    schema: Schema,
    part_id: str,
    table: pa.Table,
    arrays: Mapping[str, np.ndarray],
    members: tuple[Manifest, ...] = (),
) -> Manifest:
    """Write a part's checked arrays and catalog file; the caller holds the part's lock.

    `members` are the records of the parts that it merges. OSError if the disk fails; then nothing
    is committed, and the staged files are removed.
    """
    staged = root / STAGING / part_id
    staged_catalog = staged.with_name(f"{part_id}.parquet")
    target = root / PARTS / part_id
    try:
        shutil.rmtree(staged, ignore_errors=True)
        write_arrays(staged, schema, part_id, arrays)
        fsync_tree(staged)
        manifest = Manifest(
            part_id=part_id,
            schema_hash=schema.hash,
            steps=len(arrays[schema.names("step")[0]]),
            episodes=table.num_rows,
            episodes_digest=episodes_digest(table),
            arrays={name: array_digest(array) for name, array in arrays.items()},
            objects=object_hashes(staged),
            members=members,
        )
        write_catalog_file(staged_catalog, table, manifest)
        if target.exists():  # left by a writer killed before its commit
            shutil.rmtree(target)
        replace_durably(staged, target)
        replace_durably(staged_catalog, root / CATALOG / f"{part_id}.parquet")
        return manifest
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        staged_catalog.unlink(missing_ok=True)
