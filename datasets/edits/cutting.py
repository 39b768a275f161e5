"""Cut episodes into several: a new store in which each piece is an episode."""

import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.datasets.edits.assemble import Advance, copy_notes, lineage
from gaitforge.datasets.edits.operations import REWARD, whole_episode_fields
from gaitforge.datasets.errors import DatasetError, listed
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.selection import Selection, final_of
from gaitforge.datasets.storage.store import Store

Cuts = Mapping[int, Sequence[int]]
"""Id of an episode -> the steps that begin a new one, ascending, from 1 on."""

_NUMBER_BITS = 32
"""An episode's id is its source above these bits, and a number."""


def cut_episodes(
    store: Store,
    out: str | os.PathLike[str],
    cuts: Cuts,
    advance: Advance = lambda steps: None,
) -> Path:
    """Write a store's present version into the new store `out`, with these episodes cut.

    The first piece keeps the episode's id, the others get new ones; columns `cut_from` and
    `cut_step` (-1 for others) name the episode and the piece's first step in it. A piece has its
        own `length` and `return`, and no seed. Only the last one ended as the episode did: the
    others were cut off, without success. Where the store has `final_obs` (or another
    `final_<step field>`), a piece before the last gives up its last step, whose observation
    becomes the final one, since the following row is another episode's.

    The same call again goes on after a crash. DatasetError for an unknown episode, a step outside
    it, episode fields that tell of whole episodes, or something else at `out`.
    """
    catalog = store.catalog()
    present = Selection(store, catalog, catalog.shown)
    _check(present, cuts)
    record = {str(episode): [int(step) for step in steps] for episode, steps in cuts.items()}
    digest = hashlib.sha256(repr(sorted(record.items())).encode()).hexdigest()
    made = {"cut": {**lineage(store), "episodes": len(record), "cuts": digest}}
    target = Store.create(out, present.schema, made)
    for part_id, rows in present.rows_by_part():
        part = present.with_rows(catalog.part_bounds[part_id][0] + rows)
        if target.missing([part_id]):
            steps, per_episode = (
                {name: part.read(name) for name in present.schema.names(per)}
                for per in ("step", "episode")
            )
            columns = part.episodes().drop_columns(["part", "start"])
            pieces = _Pieces(part.lengths, columns.column("episode").to_pylist(), cuts)
            if present.schema.names("episode"):
                pieces.give_up_last_steps()
            target.write_part(
                part_id,
                {name: values[pieces.kept] for name, values in steps.items()},
                _columns(columns, pieces, part_id, steps),
                _finals(present.schema, per_episode, steps, pieces),
            )
        advance(part.steps)
    copy_notes([store.path], target.path)
    target.files.rebuild_index()
    return target.path


def _check(present: Selection, cuts: Cuts) -> None:
    if not cuts:
        raise DatasetError(f"no episode of {present.store.address} to cut")
    if whole := whole_episode_fields(present.schema):
        raise DatasetError(f"episode fields {listed(whole)} tell of whole episodes: cannot be cut")
    episodes = present.episodes().column("episode").to_pylist()
    lengths = dict(zip(episodes, present.lengths.tolist(), strict=True))
    least = 2 if present.schema.names("episode") else 1
    for episode, steps in cuts.items():
        if episode not in lengths:
            raise DatasetError(f"no episode {episode} in {present.store.address}")
        sizes = np.diff([0, *steps, lengths[episode]])
        if (sizes[:-1] < least).any() or sizes[-1] < 1:
            raise DatasetError(
                f"episode {episode} has {lengths[episode]} steps and cannot be cut at "
                f"{listed(list(steps), 8)}: each piece needs {least} steps or more"
            )


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
        own = values[pieces.source]
        own[~pieces.last] = steps[step_field][pieces.stop[~pieces.last]]
        finals[name] = own
    return finals


def _columns(
    columns: pa.Table, pieces: _Pieces, part_id: str, steps: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """The catalog's columns of the pieces."""
    table = columns.take(pa.array(pieces.source))
    values: dict[str, Any] = {name: table.column(name) for name in table.column_names}
    episodes = np.array(values["episode"].to_pylist(), np.int64)
    added = pieces.first > 0
    digest = hashlib.sha256(f"cut {part_id} {episodes[0]}".encode()).hexdigest()
    numbers = (int(digest[:7], 16) << _NUMBER_BITS) + np.cumsum(added) - 1
    values["episode"] = pa.array(np.where(added, numbers, episodes))
    values["length"] = pa.array(pieces.stop - pieces.start)
    for name, own in (("cut_from", episodes), ("cut_step", pieces.first)):
        before = np.array(values[name].to_pylist()) if name in values else np.full(len(own), -1)
        values[name] = pa.array(np.where(pieces.is_cut, own, before))
    seeds = table.column("seed").to_numpy()
    values["seed"] = pa.array(np.where(pieces.is_cut, -1, seeds))
    for name in ("terminated", "truncated", "success"):
        flags = np.array(table.column(name).to_pylist(), bool)
        values[name] = pa.array(flags & pieces.last)
    reward = steps.get(REWARD)
    if reward is not None and reward.ndim == 1:
        sums = np.concatenate([[0.0], np.cumsum(reward.astype(np.float64))])
        own = sums[pieces.stop] - sums[pieces.start]
        values["return"] = pa.array(np.where(pieces.is_cut, own, table.column("return").to_numpy()))
    return values
