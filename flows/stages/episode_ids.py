"""Episode ids of a collection: no two parts of a store may share one.

Edits, `--episode` and splits name episodes by their ids. A plan's ids begin with digits of a hash,
so that two of them can be equal by chance.
"""

from collections.abc import Iterable
from itertools import pairwise

import numpy as np

from gaitforge.datasets import DatasetError, Store
from gaitforge.datasets.errors import listed
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
    present, others = store.collected(), set(planned)
    for part, (first, stop) in present.part_bounds.items():
        if part in others or not ranges:
            continue
        ids = present.numbers("episode")[first:stop]
        places = np.searchsorted([start for start, _, _ in ranges], ids, side="right") - 1
        ends = np.array([stop for _, stop, _ in ranges])
        if (shared := (places >= 0) & (ids < ends[places])).any():
            own = ranges[places[shared][0]][2]
            raise ValueError(
                f"part {own} of the plan would share episode ids with part {part} of "
                f"{store.address}; {_ADVICE}"
            )


def check_stored_ids(store: Store) -> None:
    """DatasetError if an episode id is in two parts of the store."""
    catalog = store.collected()
    ids, counts = np.unique(catalog.numbers("episode"), return_counts=True)
    if not (counts > 1).any():
        return
    repeated = ids[counts > 1]
    parts = [
        part
        for part, (first, stop) in catalog.part_bounds.items()
        if np.isin(repeated, catalog.numbers("episode")[first:stop]).any()
    ]
    raise DatasetError(
        f"parts {listed(parts, 4)} of {store.address} share episode ids "
        f"{listed(repeated.tolist(), 4)}; {_ADVICE}"
    )
