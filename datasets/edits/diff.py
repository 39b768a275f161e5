"""Differences between two versions of a store; reads no array."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.catalog.catalog import Catalog
from gaitforge.datasets.catalog.edit_log import changed_columns
from gaitforge.datasets.catalog.grouping import group_counts
from gaitforge.datasets.storage.store import PartStore


@dataclass(frozen=True)
class Difference:
    """The changes from the first of two versions to the second.

    Attributes:
        hashes: of both versions.
        parts_added, parts_removed: parts as collected.
        columns_added, columns_removed: of the catalog.
        columns_changed: column -> episodes of both versions with another value.
        added, dropped, changed: episodes; changed ones are in both, with another value or trimmed.
        groups: one dict per group of the schema's `group_by` with a change: its keys, `added`,
            `dropped` and `changed`.
    """

    hashes: tuple[str, str]
    parts_added: list[str]
    parts_removed: list[str]
    columns_added: list[str]
    columns_removed: list[str]
    columns_changed: dict[str, int]
    added: int
    dropped: int
    changed: int
    groups: list[dict[str, Any]]


def difference(first: PartStore, second: PartStore) -> Difference:
    """Compare two versions of a store, such as two tags of it.

    DatasetError if a part of one name has other content: they are not versions of one store.
    """
    a = first.catalog()
    b = second.catalog()
    shared = [part_id for part_id in a.manifests if part_id in b.manifests]
    for part_id in shared:
        if a.manifests[part_id].content_hash != b.manifests[part_id].content_hash:
            raise DatasetError(
                f"part {part_id} has other content in {second.address} than in {first.address}: "
                "they are not versions of one dataset"
            )
    rows_a = _rows(a, shared)
    rows_b = _rows(b, shared)
    both = a.is_shown[rows_a] & b.is_shown[rows_b]
    kept_a = rows_a[both]
    kept_b = rows_b[both]
    columns = changed_columns(a, b, kept_a, kept_b)
    changed = np.any([np.zeros(len(kept_b), bool), *columns.values()], axis=0)
    dropped = np.setdiff1d(a.shown, kept_a, assume_unique=True)
    added = np.setdiff1d(b.shown, kept_b, assume_unique=True)
    names = first.schema.group_by
    counted = {
        "added": group_counts(b, added, names),
        "dropped": group_counts(a, dropped, names),
        "changed": group_counts(b, kept_b[changed], names),
    }
    keys = sorted({key for counts in counted.values() for key in counts})
    return Difference(
        hashes=(first.info().hash, second.info().hash),
        parts_added=[part_id for part_id in b.manifests if part_id not in a.manifests],
        parts_removed=[part_id for part_id in a.manifests if part_id not in b.manifests],
        columns_added=[name for name in b.column_names if name not in a.column_names],
        columns_removed=[name for name in a.column_names if name not in b.column_names],
        columns_changed={name: int(flags.sum()) for name, flags in columns.items() if flags.any()},
        added=len(added),
        dropped=len(dropped),
        changed=int(changed.sum()),
        groups=[
            dict(zip(names, key, strict=True))
            | {change: counts.get(key, 0) for change, counts in counted.items()}
            for key in keys
        ],
    )


def _rows(catalog: Catalog, parts: list[str]) -> np.ndarray:
    """Row numbers of the parts' episodes, part after part."""
    runs = [np.arange(*catalog.part_bounds[part_id]) for part_id in parts]
    return np.concatenate([np.zeros(0, np.int64), *runs])
