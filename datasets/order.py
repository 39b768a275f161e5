"""The order of windows in an epoch: a pure function of the selection, the seed and the epoch.

Windows tile each episode. Reading happens by unit (episodes that start in one shard of one part);
shuffled units fill pools of bounded size, and the windows of a pool are shuffled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from datasets.hashing import hashed

ORDER_VERSION = 1
"""Changes when the same (seed, epoch) would give another order; part of the stream's state."""

_PHASE, _UNIT, _WINDOW = 1, 2, 3


@dataclass(frozen=True)
class EpochOrder:
    """All windows of one epoch in their global order.

    Attributes:
        episode: (W,) row of the selection.
        offset: (W,) first step within the episode.
        length: (W,) real steps of the window, 1..context_len.
        pool_bounds: (P + 1,) window positions at which pools begin and end.
        pool_units: for each pool the units it needs, ascending.
    """

    episode: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    pool_bounds: np.ndarray
    pool_units: tuple[tuple[int, ...], ...]

    def __len__(self) -> int:
        return len(self.episode)


def tile(
    lengths: np.ndarray, first: np.ndarray, context_len: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut episodes into windows: one of up to ``first`` steps, then ``context_len`` steps each.

    Args:
        lengths: (E,) steps an episode.
        first: (E,) length of the first window, 1..context_len.
        context_len: steps of the following windows; the last one is what remains.

    Returns:
        (W,) episode, (W,) offset, (W,) length; every step lies in exactly one window.
    """
    counts = 1 + np.maximum(0, -(-(lengths - first) // context_len))
    episode = np.repeat(np.arange(len(lengths)), counts)
    position = np.arange(len(episode)) - np.repeat(np.cumsum(counts) - counts, counts)
    stop = np.minimum(first[episode] + position * context_len, lengths[episode])
    offset = np.where(position == 0, 0, first[episode] + (position - 1) * context_len)
    return episode, offset, stop - offset


def epoch_order(
    episode_ids: np.ndarray,
    lengths: np.ndarray,
    unit_bounds: Sequence[int] | np.ndarray,
    *,
    context_len: int,
    pool_windows: int,
    seed: int,
    epoch: int,
) -> EpochOrder:
    """The windows of one epoch.

    Args:
        episode_ids: (E,) global ids; each episode's phase depends on its id only.
        lengths: (E,) steps an episode; one that fits a window is not cut.
        unit_bounds: (U + 1,) first selection row of each reading unit, ascending.
        context_len: K, the steps of a window.
        pool_windows: windows a pool may hold; one unit with more makes a pool by itself.
        seed: of the whole training run.
        epoch: of this pass.
    """
    first = (hashed(seed, epoch, _PHASE, episode_ids) % np.uint64(context_len)).astype(np.int64) + 1
    first[lengths <= context_len] = context_len  # a window that holds the whole episode
    episode, offset, length = tile(lengths, first, context_len)
    window_bounds = np.searchsorted(episode, unit_bounds)
    windows_of_unit = np.diff(window_bounds)
    unit_order = _permutation(hashed(seed, epoch, _UNIT, np.arange(len(windows_of_unit))))
    pools = _pools(unit_order, windows_of_unit, pool_windows)
    shuffled = []
    for units in pools:
        ranges = [np.arange(window_bounds[unit], window_bounds[unit + 1]) for unit in units]
        windows = np.concatenate(ranges)
        shuffled.append(windows[_permutation(hashed(seed, epoch, _WINDOW, windows))])
    order = np.concatenate(shuffled)
    return EpochOrder(
        episode=episode[order],
        offset=offset[order],
        length=length[order],
        pool_bounds=np.cumsum([0, *(len(windows) for windows in shuffled)]),
        pool_units=pools,
    )


def _permutation(keys: np.ndarray) -> np.ndarray:
    """The order that sorts random uint64 keys, ties by position.

    The position takes the place of the keys' low bits, so that a plain sort of distinct values
    gives the same order on every processor; an argsort is several times slower or not stable.
    """
    position_bits = np.uint64((1 << len(keys).bit_length()) - 1)
    distinct = (keys & ~position_bits) | np.arange(len(keys), dtype=np.uint64)
    return (np.sort(distinct) & position_bits).astype(np.int64)


def _pools(
    unit_order: np.ndarray, windows_of_unit: np.ndarray, pool_windows: int
) -> tuple[tuple[int, ...], ...]:
    pools: list[list[int]] = []
    room = 0
    for unit in unit_order.tolist():
        needed = int(windows_of_unit[unit])
        if not pools or needed > room:
            pools.append([])
            room = pool_windows
        pools[-1].append(unit)
        room -= needed
    return tuple(tuple(sorted(units)) for units in pools)
