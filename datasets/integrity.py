"""Find every fault of a store, and remove what writers that died left behind."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from datasets.catalog import episodes_digest, read_catalog_file
from datasets.errors import DatasetError, listed
from datasets.files import files_under, sha256_file
from datasets.layout import CATALOG, PARTS, STAGING
from datasets.manifest import Manifest
from datasets.schema import Schema

if TYPE_CHECKING:
    from datasets.store import Store


def verify_store(store: Store) -> list[str]:
    """One line a fault: unreadable catalog, missing or changed objects, inconsistent lengths."""
    faults: list[str] = []
    ids: Counter[int] = Counter()
    faults += _root_faults(store)
    for part_id in store.parts():
        try:
            manifest, table = read_catalog_file(store.path / CATALOG / f"{part_id}.parquet")
        except DatasetError as error:
            faults.append(str(error))
            continue
        found = [
            *_catalog_faults(manifest, table, store.schema),
            *_object_faults(manifest, store.path / PARTS / part_id),
        ]
        faults += [f"part {part_id}: {fault}" for fault in found]
        ids.update(table.column("episode").to_pylist())
    repeated = sorted(episode for episode, count in ids.items() if count > 1)
    if repeated:
        faults.append(f"episode ids in more than one row: {listed(repeated)}")
    return faults


def remove_uncommitted(store: Store) -> list[str]:
    """Remove staged files and part folders that no catalog file commits and nobody is writing."""
    staging, parts = store.path / STAGING, store.path / PARTS
    removed: list[str] = []
    for part_id in sorted(_leftover_ids(store, staging, parts)):
        with store.part_lock(part_id, wait=False) as held:
            if not held:
                continue
            leftovers = [staging / part_id, staging / f"{part_id}.parquet"]
            if store.missing([part_id]):
                leftovers.append(parts / part_id)
            for path in leftovers:
                if path.is_dir():
                    shutil.rmtree(path)
                elif path.exists():
                    path.unlink()
                else:
                    continue
                removed.append(path.relative_to(store.path).as_posix())
    return removed


def _leftover_ids(store: Store, staging: Path, parts: Path) -> set[str]:
    staged = {
        path.name.removesuffix(".lock").removesuffix(".parquet") for path in staging.glob("*")
    }
    present = {path.name for path in parts.iterdir() if path.is_dir()}
    return staged | set(store.missing(sorted(present)))


def _root_faults(store: Store) -> Iterator[str]:
    try:
        if type(store).open(store.path).schema != store.schema:
            yield "zarr.json: the schema is not the one this store was opened with"
    except DatasetError as error:
        yield str(error)
    if not (store.path / PARTS / "zarr.json").is_file():
        yield f"{PARTS}/zarr.json is missing"


def _catalog_faults(manifest: Manifest, table: pa.Table, schema: Schema) -> Iterator[str]:
    if manifest.schema_hash != schema.hash:
        yield "it was written under another schema"
    if episodes_digest(table) != manifest.episodes_digest:
        yield "the catalog rows are not the ones that were committed"
    starts, lengths = table.column("start").to_numpy(), table.column("length").to_numpy()
    if not np.array_equal(starts, np.cumsum(lengths) - lengths):
        yield "episode starts do not follow from the lengths"
    if int(lengths.sum()) != manifest.steps:
        yield f"episode lengths sum to {int(lengths.sum())}, recorded {manifest.steps} steps"


def _object_faults(manifest: Manifest, folder: Path) -> Iterator[str]:
    present = set(files_under(folder)) if folder.is_dir() else set()
    for name, (size, sha256) in sorted(manifest.objects.items()):
        if name not in present:
            yield f"object {name} is missing"
            continue
        actual = (folder / name).stat().st_size
        if actual != size:
            yield f"object {name} has {actual} bytes, recorded {size}"
        elif sha256_file(folder / name) != sha256:
            yield f"object {name} does not have its recorded SHA-256"
    for name in sorted(present - set(manifest.objects)):
        yield f"file {name} is not among the committed objects"
