"""Merge two stores into a new one."""

import os
from pathlib import Path

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.catalog import common_schema
from gaitforge.datasets.edits.assemble import Advance, Share, assemble, check_local, lineage
from gaitforge.datasets.storage.store import PartStore


def merge_stores(
    first: PartStore,
    second: PartStore,
    out: str | os.PathLike[str],
    advance: Advance = lambda parts: None,
) -> Path:
    """Make a new store with the parts and edits of both; returns its absolute path.

    Parts are hard links where possible, and nothing is decoded. A part that both have counts once,
    and so does the beginning that both logs of edits share; of edits of the same episodes the
    second store's come last. Sides of one split become what was split. The new store's plan says
    what it was made from. The same call again goes on after a crash, or returns the finished store.
    DatasetError for other fields, catalog columns that do not agree, parts of one name with other
    content, an episode id in two parts, something else at `out`, stores on object storage or
    opened at a tag, or a disk that cannot be written.
    """
    target = check_local([first, second], out)
    _check_fit(first, second)
    plan = {"merge": [lineage(store) for store in (first, second)]}
    assemble(target, [Share(first), Share(second)], plan, advance=advance)
    return target


def _check_fit(first: PartStore, second: PartStore) -> None:
    ours = first.schema
    theirs = second.schema
    if ours.hash != theirs.hash or ours.group_by != theirs.group_by:
        words = ours.differences(theirs) or "in their step or grouping"
        raise DatasetError(
            f"{first.address} and {second.address} have different schemas, {words}; only stores of "
            "one schema can be merged"
        )
    a = first.catalog()
    b = second.catalog()
    common_schema([a.schema, b.schema])
    shared = [part_id for part_id in a.manifests if part_id in b.manifests]
    if clashes := [
        part_id
        for part_id in shared
        if a.manifests[part_id].content_hash != b.manifests[part_id].content_hash
    ]:
        raise DatasetError(
            f"{first.address} and {second.address} both have part {listed(clashes, 4)}, with other "
            "content: collect one of them with another seed"
        )
    unshared = np.ones(b.num_rows, bool)
    for part_id in shared:
        unshared[slice(*b.part_bounds[part_id])] = False
    repeated = np.intersect1d(a.numbers("episode"), b.numbers("episode")[unshared])
    if len(repeated):
        raise DatasetError(
            f"episode ids {listed(repeated, 4)} are in {first.address} and, in other parts, in "
            f"{second.address}; ids must differ"
        )
