"""Merge small parts into large ones, and rebuild the catalog index.

Only files change: hash, selections, tags and stream order depend on the parts as collected, whose
records the merged part keeps. Readers use it from its commit on; the parts it replaces stay until
`gc`, for readers that opened the store before. A crash leaves the old parts, with or without it.
"""

import hashlib

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures
from gaitforge.datasets.catalog.catalog import Catalog
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.manifest import Manifest, PartRecord
from gaitforge.datasets.layout import MERGED_PREFIX, SHARD_STEPS
from gaitforge.datasets.storage.commit import commit_part
from gaitforge.datasets.storage.contents import overlay_folders, used_stems
from gaitforge.datasets.storage.parts import array_digest
from gaitforge.datasets.storage.store import PartStore

COMPACT_LOCK = f"{MERGED_PREFIX}lock"


def compact_store(store: PartStore, target_steps: int = SHARD_STEPS) -> list[PartRecord]:
    """Merge runs of small parts, and write the catalog index; returns the merged parts' records.

    Parts of up to half of `target_steps` are merged with their neighbours in the order of their
    names to at most `target_steps`, if their catalogs have the same columns; those of added
    fields too. One merged part is in memory at a time. DatasetError for a value that is not its
    commit record's, a disk that cannot be written, or another compaction.
    """
    store.check_local("compact a local copy and push that")
    store.check_writable()
    if not 1 <= target_steps <= SHARD_STEPS:
        raise DatasetError(f"target_steps must be in 1..{SHARD_STEPS}, not {target_steps}")
    with disk_failures(f"store {store.address} cannot be compacted"):
        with store.part_lock(COMPACT_LOCK, wait=False) as held:
            if not held:
                raise DatasetError(f"store {store.address} is being compacted by another process")
            merged = [_merge(store, group) for group in _groups(store, target_steps)]
            store.files.rebuild_index()
        for folder in overlay_folders(store):
            compact_store(store.overlay(folder), target_steps)
    return merged


def _groups(store: PartStore, target_steps: int) -> list[list[str]]:
    """Catalog files (by stem) to merge with each other."""
    groups: list[list[str]] = [[]]
    steps = 0
    columns = pa.schema([])
    for stem in used_stems(store):
        manifest = store.files.manifest(stem)
        if manifest.steps > target_steps // 2:
            groups.append([])
            continue
        schema = store.files.columns(stem)
        if not groups[-1] or schema != columns or steps + manifest.steps > target_steps:
            groups.append([])
            steps = 0
            columns = schema
        groups[-1].append(stem)
        steps += manifest.steps
    return [group for group in groups if len(group) > 1]


def _merge(store: PartStore, stems: list[str]) -> PartRecord:
    catalog = store.files.catalog()
    manifests, tables = zip(*map(store.files.read, stems), strict=True)
    members = tuple(member for manifest in manifests for member in manifest.collected)
    table = pa.concat_tables(tables).combine_chunks()
    first = 0
    for member in members:
        if episodes_digest(table.slice(first, member.episodes)) != member.episodes_digest:
            problem = "the catalog rows are not the ones that were committed"
            raise DatasetError(f"part {member.part_id}: {problem}")
        first += member.episodes
    arrays = {name: _joined_array(store, catalog, members, name) for name in store.schema.names()}
    contents = "\n".join(member.content_hash for member in members)
    merged_id = MERGED_PREFIX + hashlib.sha256(contents.encode()).hexdigest()[:12]
    problem = f"parts {stems[0]} to {stems[-1]} of {store.address} were not merged"
    with store.part_lock(merged_id), disk_failures(problem):
        return commit_part(store.path, store.schema, merged_id, table, arrays, members).record


def _joined_array(
    store: PartStore, catalog: Catalog, members: tuple[Manifest, ...], field: str
) -> np.ndarray:
    described = store.schema.field(field)
    rows = [member.steps if described.per == "step" else member.episodes for member in members]
    joined = np.empty((sum(rows), *described.shape), described.dtype)
    first = 0
    for member, count in zip(members, rows, strict=True):
        out = joined[first : first + count]
        with store.array_reader(catalog, member.part_id, field) as reader:
            reader.read_runs([(0, count)], out)
        if array_digest(out) != member.arrays[field]:
            problem = "the values are not the ones that were committed"
            raise DatasetError(f"part {member.part_id}, field {field}: {problem}")
        first += count
    return joined
