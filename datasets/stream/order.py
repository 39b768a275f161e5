"""The order of windows in an epoch: a pure function of the selection, the seed and the epoch.

Windows tile each episode. Shuffled reading units (the episodes that start in one shard of a part)
fill pools of bounded size, and the windows of a pool are shuffled. Only one pool's windows exist at
a time, so memory grows with the number of episodes, not of windows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gaitforge.datasets.hashing import hashed

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
