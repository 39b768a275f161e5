"""Splits of a store by fractions or by a column, and cuts of its episodes into several.

The sides of a split are selections, or stores of their own.

A cut of episodes gives a new store in which each piece is an episode.
"""

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
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
    copy_notes,
    lineage,
    new_place,
    parts_of,
    unfinished,
)
from gaitforge.datasets.edits.operations import REWARD, rows_of, whole_episode_fields
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import CUT_FROM, EpisodeSelection, final_of
from gaitforge.datasets.storage.store import PartStore

# Splits.
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
    """Split by a catalog column's values: value -> selection.

    Missing values are on the side `none`, with the text "none" if the column has that.

    DatasetError for an unknown column, or values that cannot be file names.
    """
    catalog = selection.catalog
    kind = catalog.schema.field(catalog.check_column(column)).type
    if pa.types.is_floating(kind):
        raise DatasetError(f"column {column} has type {kind}; split by text or whole numbers")
    codes, values = catalog.codes(column)
    row_codes = codes[selection.rows]
    codes_of: dict[str, list[int]] = {}
    for code in np.unique(row_codes).tolist():
        name = "none" if values[code] is None else str(values[code])
        codes_of.setdefault(name, []).append(code)
    _check_names(list(codes_of))
    sides = {
        name: selection.with_rows(selection.rows[np.isin(row_codes, codes_of[name])])
        for name in sorted(codes_of)
    }
    assert sum(map(len, sides.values())) == len(selection)
    return sides


def save_split(
    sides: Mapping[str, EpisodeSelection],
    out: str | os.PathLike[str],
    arguments: Mapping[str, Any],
    advance: Advance = lambda parts: None,
) -> dict[str, Path]:
    """Make each side a store `<name>.zarr` in the folder `out`; returns name -> path.

    A side has hard links to the parts that it touches, and one edit that drops the other sides'
    episodes, so that it takes no further disk space on the same file system. `arguments` (JSON
    values) are kept in its plan. Sides that are finished are kept; DatasetError for those of other
    episodes, and as for `merge_stores`.
    """
    paths = {}
    for name, side in sides.items():
        store = side.store
        path = check_local([store], Path(out, f"{name}.zarr"))
        if store.catalog() is not side.catalog:
            raise DatasetError(f"store {store.address} changed since the selection; select again")
        if not len(side):
            raise DatasetError(f"side {name} has no episode; give it a larger fraction")
        share = Share(store, frozenset(parts_of(side)))
        details = {"of": lineage(store, share.linked()), "episodes": side.episodes_hash}
        plan = {"split": {"side": name, **arguments, **details}}
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


# Cuts.
Cuts = Mapping[int, Sequence[int]]
"""Id of an episode -> the steps that begin a new one, ascending, from 1 on."""

CUT_STEP = "cut_step"
"""Column of pieces beside `CUT_FROM`: the first step in that episode; -1 for whole episodes."""

_NUMBER_BITS = 32
"""An episode's id is its source above these bits, and a number."""
_PREFIX_DIGITS = 7
"""Hexadecimal digits of a prefix."""


def cut_episodes(
    store: PartStore,
    out: str | os.PathLike[str],
    cuts: Cuts,
    advance: Advance = lambda steps: None,
    without: Sequence[str] = (),
) -> Path:
    """Write a store's present version into the new store `out`, with these episodes cut.

    The first piece keeps the episode's id, the others get new ones; columns `cut_from` and
    `cut_step` (-1 for others) name the episode and the piece's first step in it; those of a piece
    that is cut again name the first of its sources. A piece has its
    own `length` and `return`, and no seed. Only the last one ended as the episode did: the
    others were cut off, without success. Where the store has `final_obs` (or another
    `final_<step field>`), a piece before the last gives up its last step, whose observation
    becomes the final one, since the following row is another episode's.

    Args:
        advance: called with the steps of each part.
        without: episode fields that the new store does not have, since they tell of whole
            episodes, such as an initial state.

    The store appears when it is complete. The same call again goes on after a crash, or returns
    the finished store. DatasetError for an unknown episode, a step outside it, episode fields that
    tell of whole episodes, or something else at `out`.
    """
    path = new_place(out)
    catalog = store.catalog()
    present = EpisodeSelection(store, catalog, catalog.shown)
    schema = _check(present, cuts, without)
    record = {str(episode): [int(step) for step in steps] for episode, steps in cuts.items()}
    digest = hashlib.sha256(repr(sorted(record.items())).encode()).hexdigest()
    details = {"cut_episodes": len(record), "cuts": digest, "without": sorted(without)}
    plan = {"cut": {**lineage(store, parts_of(present)), **details}}
    prefixes = _free_prefixes(present, digest)
    with unfinished(path, schema, plan) as target:
        if target is None:
            return path
        for part_id, rows in present.rows_by_part():
            part = present.with_rows(catalog.part_bounds[part_id][0] + rows)
            prefix = next(prefixes)
            if target.missing([part_id]):
                _write_pieces(target, part_id, part, cuts, prefix)
            advance(part.steps)
        copy_notes([store], target)
    return path


def _write_pieces(
    target: PartStore, part_id: str, part: EpisodeSelection, cuts: Cuts, prefix: int
) -> None:
    """Write a part with its episodes cut."""
    schema = target.schema
    steps = {name: part.read(name) for name in schema.names("step")}
    finals = {name: part.read(name) for name in schema.names("episode")}
    columns = part.episodes().drop_columns(["part", "start"])
    pieces = _Pieces(part.lengths, columns.column("episode").to_pylist(), cuts)
    if finals:
        pieces.give_up_last_steps()
    target.write_part(
        part_id,
        {name: values[pieces.kept] for name, values in steps.items()},
        _columns(columns, pieces, prefix, steps),
        _finals(schema, finals, steps, pieces),
    )


def _free_prefixes(present: EpisodeSelection, digest: str) -> Iterator[int]:
    """The upper bits of new episodes' ids, for a part each, that no episode of the store has."""
    taken = set((present.episode_ids() >> _NUMBER_BITS).tolist())
    for number in count():
        digits = hashlib.sha256(f"cut {digest} {number}".encode()).hexdigest()
        prefix = int(digits[:_PREFIX_DIGITS], 16)
        if prefix not in taken:
            taken.add(prefix)
            yield prefix


def pieces_of(selection: EpisodeSelection) -> np.ndarray:
    """(E,) bool: which episodes are pieces of one that was cut. They have no start of their own."""
    if CUT_FROM not in selection.catalog.column_names:
        return np.zeros(len(selection), bool)
    sources = selection.episodes(CUT_FROM).column(CUT_FROM).to_pylist()
    return np.array([source is not None and source >= 0 for source in sources], bool)


def _check(present: EpisodeSelection, cuts: Cuts, without: Sequence[str]) -> Schema:
    """The new store's schema; DatasetError for episodes that cannot be cut so."""
    if not cuts:
        raise DatasetError(f"no episode of {present.store.address} to cut")
    schema = present.schema
    unknown = [name for name in without if name not in schema.names("episode")]
    if unknown:
        allowed = listed(schema.names("episode")) or "none"
        raise DatasetError(f"no episode field {listed(unknown)}; there are: {allowed}")
    fields = tuple(field for field in schema.fields if field.name not in without)
    schema = replace(schema, fields=fields)
    if whole := whole_episode_fields(schema):
        raise DatasetError(
            f"episode fields {listed(whole)} tell of whole episodes, and cannot be cut; leave them "
            f"out with --without {','.join(whole)}"
        )
    episodes = present.episodes().column("episode").to_pylist()
    lengths = dict(zip(episodes, present.lengths.tolist(), strict=True))
    least = 2 if schema.names("episode") else 1
    for episode, steps in cuts.items():
        if episode not in lengths:
            raise DatasetError(f"no episode {episode} in {present.store.address}")
        sizes = np.diff([0, *steps, lengths[episode]])
        if (sizes[:-1] < least).any() or sizes[-1] < 1:
            raise DatasetError(
                f"episode {episode} has {lengths[episode]} steps and cannot be cut at "
                f"{listed(list(steps), 8)}: each piece needs {least} steps or more"
            )
    return schema


class _Pieces:
    """Pieces of a part's episodes.

    Attributes:
        source: (P,) number of the episode of each piece.
        start, stop: (P,) rows of the part that it takes.
        first: (P,) its first step in the episode; last: (P,) whether it is the episode's last.
    """

    def __init__(self, lengths: np.ndarray, episodes: list[int], cuts: Cuts) -> None:
        ends = np.cumsum(lengths)
        source: list[int] = []
        first: list[int] = []
        stop: list[int] = []
        for number, episode in enumerate(episodes):
            begins = int(ends[number] - lengths[number])
            steps = [0, *(int(step) for step in cuts.get(episode, ()))]
            source += [number] * len(steps)
            first += steps
            stop += [*(begins + step for step in steps[1:]), int(ends[number])]
        self.source = np.array(source, np.int64)
        self.first = np.array(first, np.int64)
        self.start = self.first + (ends - lengths)[self.source]
        self.stop = np.array(stop, np.int64)
        self.last = np.append(np.diff(self.source) > 0, True)
        self.is_cut = ~self.last | (self.first > 0)

    def give_up_last_steps(self) -> None:
        """Take the last step off the pieces before the last of their episode."""
        self.stop = self.stop - ~self.last

    @property
    def kept(self) -> np.ndarray:
        """(K,) rows of the part that the pieces take."""
        return np.concatenate([np.arange(a, b) for a, b in zip(self.start, self.stop, strict=True)])


def _finals(
    schema: Schema,
    per_episode: Mapping[str, np.ndarray],
    steps: Mapping[str, np.ndarray],
    pieces: _Pieces,
) -> dict[str, np.ndarray]:
    """Fields per piece: the episode's for its last one, else the value at the step given up."""
    finals: dict[str, np.ndarray] = {}
    for name, values in per_episode.items():
        step_field = final_of(schema, name)
        assert step_field is not None  # `_check` refuses others
        piece_values = values[pieces.source]
        piece_values[~pieces.last] = steps[step_field][pieces.stop[~pieces.last]]
        finals[name] = piece_values
    return finals


def _columns(
    columns: pa.Table, pieces: _Pieces, prefix: int, steps: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The catalog's columns of the pieces."""
    table = columns.take(pa.array(pieces.source))
    values: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    episodes = np.array(values["episode"].to_pylist(), np.int64)
    added = pieces.first > 0
    numbers = (prefix << _NUMBER_BITS) + np.cumsum(added) - 1
    values["episode"] = pa.array(np.where(added, numbers, episodes))
    values["length"] = pa.array(pieces.stop - pieces.start)
    before = [
        values[name].fill_null(-1).to_numpy() if name in values else np.full(len(episodes), -1)
        for name in (CUT_FROM, CUT_STEP)
    ]
    was_cut = before[0] >= 0
    source = np.where(was_cut, before[0], episodes)
    first = pieces.first + np.where(was_cut, before[1], 0)
    for name, column, old in zip((CUT_FROM, CUT_STEP), (source, first), before, strict=True):
        values[name] = pa.array(np.where(pieces.is_cut, column, old))
    seeds = table.column("seed").to_numpy()
    values["seed"] = pa.array(np.where(pieces.is_cut, -1, seeds))
    for name in ("terminated", "truncated", "success"):
        flags = np.array(table.column(name).to_pylist(), bool)
        values[name] = pa.array(flags & pieces.last)
    reward = steps.get(REWARD)
    if reward is not None and reward.ndim == 1:
        sums = np.concatenate([[0.0], np.cumsum(reward.astype(np.float64))])
        returns = sums[pieces.stop] - sums[pieces.start]
        values["return"] = pa.array(
            np.where(pieces.is_cut, returns, table.column("return").to_numpy())
        )
    return values
