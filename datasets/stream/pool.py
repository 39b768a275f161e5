"""Pools of decoded steps, windows gathered from them, and the order of windows in an epoch.

Windows are gathered from a pool into batches.

The order of windows is a pure function of the selection, the seed and the epoch. Windows tile each
episode. Shuffled reading units (the episodes that start in one shard of a part) fill pools of
bounded size, and the windows of a pool are shuffled. Only one pool's windows exist at a time, so
memory grows with the number of episodes, not of windows.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Protocol

import numpy as np

from gaitforge.common.errors import DatasetError, listed
from gaitforge.common.hashing import hashed
from gaitforge.datasets.schema import (
    ACTION,
    FINAL_OBS,
    LAST_ACTION,
    OBS,
    Actions,
    endings,
    returns_to_go,
)
from gaitforge.datasets.selection import EpisodeSelection, Unit

# The order of windows.
ORDER_VERSION = 2
"""To be raised when the same (seed, epoch) gives another order; part of a stream's state."""

_PHASE = 1
_UNIT = 2
_WINDOW = 3


@dataclass(frozen=True)
class Windows:
    """W windows in order: (W,) row of the selection, first step and real steps (1..window_len)."""

    episode: np.ndarray
    offset: np.ndarray
    length: np.ndarray

    def __len__(self) -> int:
        return len(self.episode)

    def __getitem__(self, part: slice) -> "Windows":
        return Windows(self.episode[part], self.offset[part], self.length[part])


@dataclass(frozen=True)
class EpochOrder:
    """All windows of one epoch in their global order, made one pool at a time.

    A visit is one pass over one episode; a `Mixture` may visit an episode several times or never.

    Attributes:
        episode: (V,) row of the selection of each visit, ascending.
        length: (V,) its steps.
        first: (V,) length of the visit's first window, 1..window_len.
        window_bounds: (V + 1,) number of windows before each visit, in reading order.
        unit_visits: (U + 1,) first visit of each reading unit.
        pool_units: the units of each pool, ascending.
        pool_bounds: (P + 1,) positions in the order where pools begin and end.
    """

    window_len: int
    seed: int
    epoch: int
    episode: np.ndarray
    length: np.ndarray
    first: np.ndarray
    window_bounds: np.ndarray
    unit_visits: np.ndarray
    pool_units: tuple[tuple[int, ...], ...]
    pool_bounds: np.ndarray

    def __len__(self) -> int:
        return int(self.pool_bounds[-1])

    def windows(self, pool: int) -> Windows:
        """The windows of one pool in order."""
        ranges = [self.unit_visits[unit : unit + 2] for unit in self.pool_units[pool]]
        visits = np.concatenate([np.arange(first, stop) for first, stop in ranges])
        numbers = np.concatenate([np.arange(*self.window_bounds[pair]) for pair in ranges])
        visit, offset, length = tile(self.length[visits], self.first[visits], self.window_len)
        shuffled = _permutation(hashed(self.seed, self.epoch, _WINDOW, numbers))
        episode = self.episode[visits][visit]
        return Windows(episode[shuffled], offset[shuffled], length[shuffled])


def tile(
    lengths: np.ndarray, first: np.ndarray, window_len: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut (E,) episodes into windows: one of up to `first` steps, then `window_len` steps each.

    Returns (W,) episode, (W,) offset, (W,) length; every step lies in exactly one window.
    """
    counts = _window_counts(lengths, first, window_len)
    episode = np.repeat(np.arange(len(lengths)), counts)
    position = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    stop = np.minimum(first[episode] + position * window_len, lengths[episode])
    offset = np.where(position == 0, 0, first[episode] + (position - 1) * window_len)
    return episode, offset, stop - offset


def epoch_order(
    episode_ids: np.ndarray,
    lengths: np.ndarray,
    unit_bounds: Sequence[int] | np.ndarray,
    *,
    window_len: int,
    pool_steps: int,
    seed: int,
    epoch: int,
    visits: np.ndarray | None = None,
) -> EpochOrder:
    """The order of one epoch; for `window_len`, `seed` and `epoch` see `StreamConfig`.

    Args:
        episode_ids: (E,) global ids, which determine the phase of the episodes' windows.
        lengths: (E,) steps of the episodes; one that fits into a window is not cut.
        unit_bounds: (U + 1,) first selection row of each reading unit, ascending.
        pool_steps: most steps of a pool; a unit with more is a pool of its own.
        visits: (E,) visits of each episode; None for one each. Units without visits are not read.
    """
    if visits is None:
        visits = np.ones(len(lengths), np.int64)
    episode = np.repeat(np.arange(len(lengths)), visits)
    turn = np.arange(len(episode)) - np.repeat(np.cumsum(visits) - visits, visits)
    phase = hashed(seed, epoch, _PHASE, episode_ids[episode], turn) % np.uint64(window_len)
    visited = lengths[episode]
    first = np.where(visited <= window_len, window_len, phase.astype(np.int64) + 1)
    counts = _window_counts(visited, first, window_len)
    window_bounds = np.concatenate(([0], np.cumsum(counts)))
    unit_visits = np.searchsorted(episode, unit_bounds)
    unit_windows = np.diff(window_bounds[unit_visits])
    pools = _pools(
        _permutation(hashed(seed, epoch, _UNIT, np.arange(len(unit_windows)))),
        np.maximum(_sums(lengths, unit_bounds), _sums(visited, unit_visits)),
        np.flatnonzero(unit_windows),
        pool_steps,
    )
    pool_bounds = np.cumsum([0, *(int(unit_windows[list(units)].sum()) for units in pools)])
    visit_arrays = (episode, visited, first, window_bounds)
    return EpochOrder(window_len, seed, epoch, *visit_arrays, unit_visits, pools, pool_bounds)


def _window_counts(lengths: np.ndarray, first: np.ndarray, window_len: int) -> np.ndarray:
    return 1 + np.maximum(0, -(-(lengths - first) // window_len))


def _sums(values: np.ndarray, bounds: Sequence[int] | np.ndarray) -> np.ndarray:
    """Sum of the values between consecutive bounds."""
    return np.diff(np.concatenate(([0], np.cumsum(values)))[bounds])


def _permutation(keys: np.ndarray) -> np.ndarray:
    """The order that sorts random uint64 keys, ties by position.

    The position replaces the keys' low bits, so a plain sort of distinct values gives the same
    order on every processor; an argsort is several times slower or not stable.
    """
    position_bits = np.uint64((1 << len(keys).bit_length()) - 1)
    distinct = (keys & ~position_bits) | np.arange(len(keys), dtype=np.uint64)
    return (np.sort(distinct) & position_bits).astype(np.int64)


def _pools(
    unit_order: np.ndarray, unit_steps: np.ndarray, visited: np.ndarray, pool_steps: int
) -> tuple[tuple[int, ...], ...]:
    """Fill pools with the `visited` units, in `unit_order`."""
    pools: list[list[int]] = []
    room = 0
    for unit in unit_order[np.isin(unit_order, visited)].tolist():
        needed = int(unit_steps[unit])
        if not pools or needed > room:
            pools.append([])
            room = pool_steps
        pools[-1].append(unit)
        room -= needed
    return tuple(tuple(sorted(units)) for units in pools)


# Pools of decoded steps.
FOLLOWING = {"next_obs": OBS, "next_action": ACTION}
"""Arrays of transitions -> the column whose next row they are."""
REWARD = "reward"
RETURN_TO_GO = "return_to_go"
CAST_ROWS = 1024
"""Rows converted at a time, so that their copy stays in the CPU cache."""

Task = Callable[[], None]


@dataclass(frozen=True)
class StreamedColumn:
    """Shape and stored dtype of one row of a streamed quantity."""

    shape: tuple[int, ...]
    dtype: np.dtype

    @property
    def width(self) -> int:
        """Values per row."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def streamed_dtype(self) -> np.dtype:
        """Dtype in a batch: float32 for float16, which it represents exactly."""
        return np.dtype("float32") if self.dtype == np.float16 else self.dtype


@dataclass
class Steps:
    """Steps in memory that windows are cut from.

    `columns` are (rows + 1, values per row), the last row zeros for padding; `episode_row` (E,)
    is the row of each loaded episode's first step.
    """

    columns: Mapping[str, np.ndarray]
    episode_row: np.ndarray


class StepReader(Protocol):
    """Loads reading units into memory for one stream."""

    def prepare(self, slot: int, units: tuple[int, ...]) -> tuple[Steps, Sequence[Task]]:
        """Steps that hold the `units` (ascending) once the tasks have run, in any order.

        There are two slots, 0 and 1; preparing a slot again invalidates its previous steps.
        """
        ...


class StepSource(Protocol):
    """Episodes to stream: a selection with its `hash`, or a materialised copy of one.

    `episode_ids` (E,) are global ids, `lengths` (E,) steps, and `unit_bounds` (U + 1,) the
    first row of the selection in each reading unit.
    """

    episode_ids: np.ndarray
    lengths: np.ndarray
    unit_bounds: np.ndarray

    @property
    def hash(self) -> str:
        """SHA-256 of the selection."""
        ...

    def with_actions(self, actions: Actions) -> "StepSource":
        """The same episodes with these actions; see `EpisodeSelection.with_actions`."""
        ...

    def ending(self) -> np.ndarray:
        """(E,) how episodes ended; see `gaitforge.datasets.schema`."""
        ...

    def final_obs(self) -> np.ndarray | None:
        """(E, *shape) the observation after each episode's last step; None if it is not known."""
        ...

    def columns(self, fields: Sequence[str], return_to_go: bool) -> dict[str, StreamedColumn]:
        """Columns of a batch; DatasetError for an unknown field, or returns without a reward."""
        ...

    def reader(self, columns: Mapping[str, StreamedColumn], pool_rows: int) -> StepReader:
        """A reader of these columns for pools of at most `pool_rows` steps."""
        ...


def chosen_columns(
    columns: Mapping[str, StreamedColumn], fields: Sequence[str], return_to_go: bool
) -> dict[str, StreamedColumn]:
    """The columns of `fields` and, if wanted, the return-to-go; DatasetError if absent."""
    allowed = [name for name in columns if name != RETURN_TO_GO]
    if not fields or not set(fields) <= set(allowed):
        raise DatasetError(f"stream fields {list(fields)}; allowed: {listed(allowed)}")
    if return_to_go and RETURN_TO_GO not in columns:
        raise DatasetError(
            f"{RETURN_TO_GO} needs a scalar field {REWARD!r} per step, not {listed(allowed)}"
        )
    return {name: columns[name] for name in (*fields, *[RETURN_TO_GO] * return_to_go)}


class SelectionSource:
    """A selection, read from its store's shards."""

    def __init__(self, selection: EpisodeSelection) -> None:
        self.selection = selection
        self.units = selection.units()
        self.episode_ids = selection.episode_ids()
        self.lengths = selection.lengths
        self.unit_bounds = np.array([unit.first for unit in self.units] + [len(selection)])

    @property
    def hash(self) -> str:
        """The selection's hash of what is streamed."""
        return self.selection.arrays_hash

    def with_actions(self, actions: Actions) -> "SelectionSource":
        """The same episodes with these actions; see `EpisodeSelection.with_actions`."""
        return SelectionSource(self.selection.with_actions(actions))

    def ending(self) -> np.ndarray:
        """(E,) how episodes ended."""
        catalog = self.selection.catalog
        rows = self.selection.rows
        flags = [catalog.numbers(name)[rows] for name in ("terminated", "truncated")]
        return endings(*flags)

    def final_obs(self) -> np.ndarray | None:
        """(E, *shape) the observation after each episode's last step, if it is stored."""
        stored = FINAL_OBS in self.selection.schema.names("episode")
        return self.selection.read(FINAL_OBS) if stored else None

    @cached_property
    def all_columns(self) -> dict[str, StreamedColumn]:
        """Every step field, and the return-to-go if the store has a scalar reward."""
        fields = [field for field in self.selection.schema.fields if field.per == "step"]
        columns = {
            field.name: StreamedColumn(field.shape, np.dtype(field.dtype)) for field in fields
        }
        if REWARD in columns and columns[REWARD].shape == ():
            columns[RETURN_TO_GO] = StreamedColumn((), np.dtype("float32"))
        return columns

    def columns(self, fields: Sequence[str], return_to_go: bool) -> dict[str, StreamedColumn]:
        """Columns of a batch; DatasetError for an unknown field, or returns without a reward."""
        return chosen_columns(self.all_columns, fields, return_to_go)

    def reader(self, columns: Mapping[str, StreamedColumn], pool_rows: int) -> "PoolReader":
        """A reader that decodes units into two pools."""
        return PoolReader(self, columns, pool_rows)


@dataclass
class _Pool:
    """One slot's memory, reused for each of its pools."""

    steps: Steps
    units: tuple[int, ...] = ()
    filled: set[tuple[int, str]] = field(default_factory=set)


class PoolReader:
    """Decodes units of a selection into pools of at most `pool_rows` steps."""

    def __init__(
        self, source: SelectionSource, columns: Mapping[str, StreamedColumn], pool_rows: int
    ) -> None:
        self._source = source
        self._columns = columns
        self._pool_rows = pool_rows
        self._pools: dict[int, _Pool] = {}

    def prepare(self, slot: int, units: tuple[int, ...]) -> tuple[Steps, Sequence[Task]]:
        """See `StepReader`; units already in the slot are not read again."""
        if slot not in self._pools:
            self._pools[slot] = self._new_pool()
        pool = self._pools[slot]
        if pool.units != units:
            pool.units = units
            pool.filled.clear()
        tasks: list[Task] = []
        row = 0
        for unit in units:
            rows = self._place(pool, self._source.units[unit], row)
            row = rows.stop
            tasks += [
                partial(self._fill, pool, unit, name, rows)
                for name in self._columns
                if (unit, name) not in pool.filled
            ]
        return pool.steps, tasks

    def _new_pool(self) -> _Pool:
        columns = {
            name: np.zeros((self._pool_rows + 1, column.width), column.dtype)
            for name, column in self._columns.items()
        }
        return _Pool(Steps(columns, np.zeros(len(self._source.lengths), np.int64)))

    def _place(self, pool: _Pool, unit: Unit, row: int) -> slice:
        """Rows of the pool for the unit's steps, from `row` on."""
        firsts, lengths = self._source.selection.unit_rows(unit)
        pool.steps.episode_row[unit.first : unit.stop] = row + firsts
        return slice(row, row + int(lengths.sum()))

    def _fill(self, pool: _Pool, number: int, name: str, rows: slice) -> None:
        unit = self._source.units[number]
        selection = self._source.selection
        target = pool.steps.columns[name][rows]
        if name == RETURN_TO_GO:
            starts, lengths = selection.unit_rows(unit)
            rewards = selection.read_unit(REWARD, unit)
            target[:, 0] = returns_to_go(rewards, starts, lengths)
        else:
            selection.read_unit(name, unit, target.reshape(-1, *self._columns[name].shape))
        pool.filled.add((number, name))


def gather(
    steps: Steps, windows: Windows, prefix_len: int, batch: Mapping[str, np.ndarray]
) -> None:
    """Copy W windows out of the steps, each after up to `prefix_len` steps of its episode.

    `batch` maps names to contiguous arrays (W, K, *shape) to fill, padded at the end with zeros,
    and `mask` to (W, K), true for the window's own steps. An array `last_action` without a
    column of its own gets the `action` of the previous step, those of `FOLLOWING` the row of
    the next one, which after an episode's last step is another episode's.
    """
    before = np.minimum(windows.offset, prefix_len)[:, None]
    step = np.arange(batch["mask"].shape[1])
    real = np.less(step, before + windows.length[:, None], out=batch["mask"])
    first = windows.offset[:, None] - before
    rows = steps.episode_row[windows.episode][:, None] + first + step
    padding = len(next(iter(steps.columns.values()))) - 1
    np.putmask(rows, ~real, padding)
    flat = rows.reshape(-1)
    for name, column in steps.columns.items():
        if name in batch:
            _take(column, flat, batch[name].reshape(len(flat), column.shape[1]))
    if LAST_ACTION in batch and LAST_ACTION not in steps.columns:
        previous = np.where(real, rows - 1, padding)
        previous[first[:, 0] == 0, 0] = padding
        column = steps.columns[ACTION]
        _take(column, previous.reshape(-1), batch[LAST_ACTION].reshape(len(flat), column.shape[1]))
    derived = [name for name in FOLLOWING if name in batch and name not in steps.columns]
    if derived:
        following = np.where(real, rows + 1, padding).reshape(-1)
        for name in derived:
            column = steps.columns[FOLLOWING[name]]
            _take(column, following, batch[name].reshape(len(flat), column.shape[1]))
    if prefix_len:
        real &= step >= before


def _take(column: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
    """`out[i] = column[rows[i]]`; mode "clip" saves NumPy a buffer of the size of `out`."""
    if column.dtype == out.dtype:
        np.take(column, rows, axis=0, out=out, mode="clip")
        return
    for first in range(0, len(rows), CAST_ROWS):
        block = slice(first, first + CAST_ROWS)
        out[block] = np.take(column, rows[block], axis=0, mode="clip")
