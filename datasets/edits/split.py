"""Split a store by fractions or by a column: into selections, or into stores of their own."""

import os
import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.edits.assemble import (
    SPLIT_COMMAND,
    Advance,
    Share,
    assemble,
    check_local,
    lineage,
)
from gaitforge.datasets.edits.operations import rows_of
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.store import PartStore

AnySelection = TypeVar("AnySelection", bound=EpisodeSelection)

MOST_SIDES = 256
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


def split_by_fractions(
    selection: AnySelection, fractions: Mapping[str, float], seed: int
) -> dict[str, AnySelection]:
    """Split by a hash of each episode's id and the seed: name -> selection.

    An episode is on the same side in every selection, and fractions are met on average. The last
    of two sides is the held-out one of `Selection.split` with its fraction and the same seed.
    DatasetError unless the fractions are positive and sum to 1.
    """
    _check_names(list(fractions))
    values = list(fractions.values())
    if not all(0.0 < fraction <= 1.0 for fraction in values) or abs(sum(values) - 1.0) > 1e-6:
        raise DatasetError(f"fractions must be positive and sum to 1, not {listed(values)}")
    sides: dict[str, AnySelection] = {}
    unused = selection
    used = 0.0
    for name, fraction in reversed(list(fractions.items())[1:]):
        used += fraction
        # All episodes below the bound, less those on the sides before.
        below = selection.split(min(used, 1.0), seed)[1].rows
        sides[name] = selection.with_rows(np.intersect1d(unused.rows, below, assume_unique=True))
        unused = selection.with_rows(np.setdiff1d(unused.rows, below, assume_unique=True))
    sides[next(iter(fractions))] = unused
    return {name: sides[name] for name in fractions}


def split_by_column(selection: AnySelection, column: str) -> dict[str, AnySelection]:
    """Split by a catalog column's values: value -> selection; missing values are `none`.

    DatasetError for an unknown column, or values that cannot be file names.
    """
    catalog = selection.catalog
    kind = catalog.schema.field(catalog.check_column(column)).type
    if pa.types.is_floating(kind):
        raise DatasetError(f"column {column} has type {kind}; split by text or whole numbers")
    codes, values = catalog.codes(column)
    row_codes = codes[selection.rows]
    sides = dict[str, AnySelection]()
    for code in np.unique(row_codes).tolist():
        name = "none" if values[code] is None else str(values[code])
        sides[name] = selection.with_rows(selection.rows[row_codes == code])
    _check_names(list(sides))
    return dict(sorted(sides.items()))


def save_split(
    sides: Mapping[str, EpisodeSelection],
    out: str | os.PathLike[str],
    arguments: Mapping[str, Any],
    advance: Advance = lambda parts: None,
) -> dict[str, Path]:
    """Make each side a store `<name>.zarr` in the folder `out`; returns name -> path.

    A side has hard links to the parts that it touches, and one edit that drops the other sides'
    episodes, so that it takes no further disk space on the same file system. `arguments` (JSON
    values) are kept in its plan. Sides that are finished are kept. DatasetError as for `merge`.
    """
    paths = {}
    for name, side in sides.items():
        store = side.store
        path = check_local([store], Path(out, f"{name}.zarr"))
        if store.catalog() is not side.catalog:
            raise DatasetError(f"store {store.address} changed since the selection; select again")
        if not len(side):
            raise DatasetError(f"side {name} has no episode; give it a larger fraction")
        share = Share(store, frozenset(part_id for part_id, _ in side.rows_by_part()))
        plan = {"split": {"side": name, **arguments, "of": lineage(store)}}
        assemble(path, [share], plan, partial(_drop_others, side, share, arguments), advance)
        paths[name] = path
    return paths


def _drop_others(
    side: EpisodeSelection, share: Share, arguments: Mapping[str, Any], new: PartStore
) -> None:
    """Drop the other sides' episodes from the parts that a new store shares with them."""
    linked = [np.arange(*side.catalog.part_bounds[part_id]) for part_id in share.linked()]
    rows = np.intersect1d(np.concatenate(linked), side.catalog.shown, assume_unique=True)
    dropped = side.with_rows(np.setdiff1d(rows, side.rows, assume_unique=True))
    if len(dropped):
        origin = {"command": SPLIT_COMMAND, "arguments": dict(arguments), "episodes": len(dropped)}
        new.edit("drop", {}, rows_of(dropped, {}), origin, new.edits())


def _check_names(names: list[str]) -> None:
    if odd := [name for name in names if not _NAME.fullmatch(name)]:
        raise DatasetError(
            f"{listed(odd, 4)} cannot name a side: use up to 80 letters, digits, '_', '-', '.'"
        )
    if not 1 <= len(names) <= MOST_SIDES:
        raise DatasetError(f"a split has 1 to {MOST_SIDES} sides, not {len(names)}")
    if len({name.lower() for name in names}) != len(names):
        raise DatasetError("names of sides must differ in more than upper and lower case")
