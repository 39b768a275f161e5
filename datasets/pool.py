"""Pools of decoded steps, and the gathering of windows from them into dense batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from datasets.order import EpochOrder
from datasets.returns import returns_to_go
from datasets.selection import Selection, Unit

REWARD = "reward"
RETURN_TO_GO = "return_to_go"


@dataclass
class Pool:
    """The decoded steps of some units; its memory is kept and filled again.

    Attributes:
        units: what the columns hold.
        columns: name -> (capacity, values a row); ``context_len`` rows past the end are allocated,
            so that a window's view never leaves the buffer.
        unit_starts: (units,) first row of each unit.
    """

    units: tuple[int, ...] = ()
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    unit_starts: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


class PoolReader:
    """Fills pools from a selection and cuts windows out of them.

    Args:
        selection: where the steps come from.
        fields: fields a step that windows need.
        context_len: steps of a window.
        with_returns: also compute the return-to-go from the rewards.
    """

    def __init__(
        self, selection: Selection, fields: tuple[str, ...], context_len: int, with_returns: bool
    ) -> None:
        self._selection = selection
        self._fields = fields
        self._context_len = context_len
        self._with_returns = with_returns
        self._units = selection.units()
        self._unit_bounds = np.array([unit.first for unit in self._units] + [len(selection)])
        cumulative = np.concatenate(([0], np.cumsum(selection.lengths)))
        self._unit_steps = np.diff(cumulative[self._unit_bounds])
        firsts = np.repeat(self._unit_bounds[:-1], np.diff(self._unit_bounds))
        self._row_in_unit = cumulative[:-1] - cumulative[firsts]

    @property
    def unit_bounds(self) -> np.ndarray:
        """(U + 1,) first selection row of each unit."""
        return self._unit_bounds

    def fill(self, pool: Pool, units: tuple[int, ...]) -> Pool:
        """Read the units into the pool, unless it holds just these; returns the pool."""
        if pool.units == units:
            return pool
        pool.units = ()
        steps = self._unit_steps[list(units)]
        pool.unit_starts = np.cumsum(steps) - steps
        self._reserve(pool, int(steps.sum()) + self._context_len)
        for number, start, count in zip(units, pool.unit_starts, steps, strict=True):
            unit, rows = self._units[number], slice(int(start), int(start + count))
            for name in self._fields:
                described = self._selection.store.schema.field(name)
                target = pool.columns[name][rows].reshape(-1, *described.shape)
                self._selection.read_unit(name, unit, target)
            if self._with_returns:
                pool.columns[RETURN_TO_GO][rows, 0] = self._returns(unit)
        pool.units = units
        return pool

    def gather(self, pool: Pool, order: EpochOrder, positions: np.ndarray) -> dict[str, np.ndarray]:
        """The windows at some positions of the order, padded at the end with zeros.

        Args:
            pool: holds the units of all the windows.
            order: the epoch's windows.
            positions: (B,) positions in the order.

        Returns:
            Each field (B, K, *shape), ``mask`` (B, K) bool, ``episode`` and ``offset`` (B,) int64.
        """
        episode, offset = order.episode[positions], order.offset[positions]
        unit = np.searchsorted(self._unit_bounds, episode, side="right") - 1
        slot = np.searchsorted(np.array(pool.units), unit)
        firsts = pool.unit_starts[slot] + self._row_in_unit[episode] + offset
        mask = np.arange(self._context_len) < order.length[positions][:, None]
        padding = ~mask
        batch: dict[str, np.ndarray] = {}
        for name, column in pool.columns.items():
            windows = _window_view(column, self._context_len)[firsts]
            windows = windows.reshape(len(positions), self._context_len, column.shape[1])
            if padding.any():
                windows[padding] = 0
            batch[name] = windows.reshape(windows.shape[:2] + self._row_shape(name))
        return batch | {"mask": mask, "episode": episode, "offset": offset}

    def _row_shape(self, name: str) -> tuple[int, ...]:
        return () if name == RETURN_TO_GO else self._selection.store.schema.field(name).shape

    def _returns(self, unit: Unit) -> np.ndarray:
        starts, lengths = self._selection.unit_rows(unit)
        return returns_to_go(self._selection.read_unit(REWARD, unit), starts, lengths)

    def _reserve(self, pool: Pool, rows: int) -> None:
        for name, (width, dtype) in self._column_types().items():
            if name not in pool.columns or len(pool.columns[name]) < rows:
                pool.columns.pop(name, None)  # free before allocating its successor
                pool.columns[name] = np.zeros((rows, width), dtype)

    def _column_types(self) -> Mapping[str, tuple[int, np.dtype]]:
        described = [self._selection.store.schema.field(name) for name in self._fields]
        types = {
            each.name: (int(np.prod(each.shape, dtype=int)), np.dtype(each.dtype))
            for each in described
        }
        if self._with_returns:
            types[RETURN_TO_GO] = (1, np.dtype("float32"))
        return types


def _window_view(column: np.ndarray, context_len: int) -> np.ndarray:
    """(capacity - K + 1, K * width) overlapping view: row i is the window that starts at step i."""
    rows, width = column.shape
    return np.lib.stride_tricks.as_strided(
        column,
        (rows - context_len + 1, context_len * width),
        (width * column.itemsize, column.itemsize),
        writeable=False,
    )
