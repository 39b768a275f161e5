"""Episode ids of a collection: no two parts of a store may share one.

Edits, `--episode` and splits name episodes by their ids. A plan's ids begin with digits of a hash,
so that two of them can be equal by chance.
"""

from collections.abc import Iterable, Mapping
from itertools import pairwise

import numpy as np

from gaitforge.common.errors import listed
from gaitforge.datasets import DatasetError, Store
from gaitforge.flows.tasks.interface import CollectionPlan

_ADVICE = "collect with another seed, or into a store of its own"


def check_planned_ids(plan: CollectionPlan, store: Store, planned: Iterable[str]) -> None:
    """ValueError if parts of the plan, or one and another part of the store, would share ids."""
    ranges = sorted((ids.start, ids.stop, part) for part, ids in plan.episode_ids().items())
    for (_, stop, part), (start, _, following) in pairwise(ranges):
        if start < stop:
            raise ValueError(
                f"parts {part} and {following} of the plan would share episode ids; {_ADVICE}"
            )
    if not ranges:
        return
    starts = np.array([start for start, _, _ in ranges])
    stops = np.array([stop for _, stop, _ in ranges])
    planned_parts = set(planned)
    for part, ids in _ids_by_part(store).items():
        if part in planned_parts:
            continue
        places = np.searchsorted(starts, ids, side="right") - 1
        is_shared = (places >= 0) & (ids < stops[places])
        if is_shared.any():
            sharing = ranges[places[is_shared][0]][2]
            raise ValueError(
                f"part {sharing} of the plan would share episode ids with part {part} of "
                f"{store.address}; {_ADVICE}"
            )


def check_stored_ids(store: Store) -> None:
    """DatasetError if an episode id is in two parts of the store."""
    by_part = _ids_by_part(store)
    ids, counts = np.unique(_joined(by_part), return_counts=True)
    repeated = ids[counts > 1]
    if len(repeated):
        parts = [part for part, part_ids in by_part.items() if np.isin(repeated, part_ids).any()]
        raise DatasetError(
            f"parts {listed(parts, 4)} of {store.address} share episode ids "
            f"{listed(repeated.tolist(), 4)}; {_ADVICE}"
        )


def _joined(by_part: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(0, np.int64), *by_part.values()])


def _ids_by_part(store: Store) -> dict[str, np.ndarray]:
    """Part -> its episodes' ids; empty for a store with damage, which `verify` names."""
    try:
        catalog = store.collected()
        ids = catalog.numbers("episode")
    except DatasetError:
        return {}
    return {part: ids[first:stop] for part, (first, stop) in catalog.part_bounds.items()}
