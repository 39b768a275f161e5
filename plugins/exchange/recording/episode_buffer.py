"""Steps of N robots in memory, and the whole episodes among them.

A step of all robots is one row of blocks (steps, N, ...). An episode is a range of steps of one
robot; when episodes are taken, their rows are gathered from the blocks, and blocks without running
or finished episodes are freed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.schema import CUT_OFF, TERMINATED, TRUNCATED, endings
from gaitforge.plugins.exchange.recording.checks import merged

Arrays = dict[str, np.ndarray]

_BLOCK_BYTES = 8_000_000
_MOST_BLOCK_STEPS = 4_096
_LEAST_BLOCKS = 4
"""Blocks in the memory that is allowed: the shorter they are, the less is held for one step."""


@dataclass(frozen=True)
class FinishedEpisodes:
    """Episodes that ended, in the order of their ends.

    Attributes:
        steps: field -> (T, *shape), end to end.
        lengths: (E,) int64; robots: (E,) int64, which robot had each.
        ending: (E,) `schema.TERMINATED`, `TRUNCATED` or `CUT_OFF`.
        finals: field -> (E, *shape), what was seen after the last step; empty if it is unknown.
        columns: name -> (E,) values of the episode.
    """

    steps: Arrays
    lengths: np.ndarray
    robots: np.ndarray
    ending: np.ndarray
    finals: Arrays
    columns: Arrays

    def __len__(self) -> int:
        return len(self.lengths)

    def chosen(self, kept: np.ndarray) -> "FinishedEpisodes":
        """Those of a mask (E,)."""
        rows = np.repeat(kept, self.lengths)

        def of(arrays: Arrays, mask: np.ndarray) -> Arrays:
            return {name: values[mask] for name, values in arrays.items()}

        return FinishedEpisodes(
            of(self.steps, rows),
            self.lengths[kept],
            self.robots[kept],
            self.ending[kept],
            of(self.finals, kept),
            of(self.columns, kept),
        )

    def finite(self) -> np.ndarray:
        """(E,) whether all values of an episode are finite numbers."""
        whole = np.ones(len(self), bool)
        starts = np.cumsum(self.lengths) - self.lengths
        for values in self.steps.values():
            if values.dtype.kind == "f" and len(values):
                rows = np.isfinite(values).reshape(len(values), -1).all(axis=1)
                whole &= np.logical_and.reduceat(rows, starts)
        for values in self.finals.values():
            if values.dtype.kind == "f":
                whole &= np.isfinite(values).reshape(len(values), -1).all(axis=1)
        return whole


@dataclass(frozen=True)
class _Ended:
    """Episodes that ended at the same step; arrays (E,) of their robots."""

    robots: np.ndarray
    starts: np.ndarray
    stop: int
    ending: np.ndarray
    finals: Arrays
    columns: Arrays


class EpisodeBuffer:
    """Steps of N robots; a step's values are copied when they are added.

    Attributes:
        finished_steps: steps of the episodes that ended and were not taken yet.
    """

    def __init__(self, robots: int, examples: Mapping[str, np.ndarray], most_bytes: int) -> None:
        """Make an empty buffer.

        Args:
            robots: N; examples: field -> an array (N, *shape) with the field's dtype.
            most_bytes: memory that the steps should take, by which blocks are chosen.

        Raises:
            DatasetError: `most_bytes` is less than a few steps take.
        """
        self.robots = robots
        self.finished_steps = 0
        self._like = {name: (array.shape[1:], array.dtype) for name, array in examples.items()}
        row_bytes = sum(array.nbytes for array in examples.values())
        if most_bytes < _LEAST_BLOCKS * row_bytes:
            raise DatasetError(
                f"most_bytes must be {_LEAST_BLOCKS * row_bytes:,} or more, "
                f"{_LEAST_BLOCKS} steps of {robots:,} robots, not {most_bytes:,}"
            )
        block_bytes = min(_BLOCK_BYTES, most_bytes // _LEAST_BLOCKS)
        self._block_steps = int(np.clip(block_bytes // max(row_bytes, 1), 1, _MOST_BLOCK_STEPS))
        self._block_bytes = self._block_steps * row_bytes
        self._blocks: dict[int, Arrays] = {}
        self._time = 0
        self._starts = np.zeros(robots, np.int64)
        self._columns: Arrays = {}
        self._ended: list[_Ended] = []

    @property
    def bytes(self) -> int:
        """Memory that the steps take."""
        return len(self._blocks) * self._block_bytes

    def running(self) -> np.ndarray:
        """(N,) steps of the episodes that run."""
        return self._time - self._starts

    def set_columns(self, robots: np.ndarray, columns: Mapping[str, np.ndarray]) -> None:
        """Give episodes of a mask (N,) their values; columns are name -> (N,) values."""
        for name, values in columns.items():
            self._columns[name] = merged(self._columns.get(name), robots, values)

    def append(self, values: Mapping[str, np.ndarray], skipped: np.ndarray | None = None) -> None:
        """Add a step of all robots: field -> (N, *shape).

        `skipped` (N,) marks robots for which it was no step; they must not be in an episode.
        """
        number, row = divmod(self._time, self._block_steps)
        block = self._blocks.get(number)
        if block is None:
            block = {
                name: np.empty((self._block_steps, self.robots, *shape), dtype)
                for name, (shape, dtype) in self._like.items()
            }
            self._blocks[number] = block
        for name, target in block.items():
            target[row] = values[name]
        self._time += 1
        if skipped is not None:
            self._starts[skipped] = self._time

    def end(
        self,
        terminated: np.ndarray,
        truncated: np.ndarray,
        finals: Mapping[str, np.ndarray],
        columns: Mapping[str, np.ndarray] | None = None,
    ) -> None:
        """End the episodes of the robots that terminated or were truncated (N,) in the last step.

        `finals` is field -> (N, *shape), what was seen after that step; `columns` name -> (N,).
        """
        ended = np.flatnonzero(terminated | truncated)
        ending = endings(terminated[ended], truncated[ended])
        self._end(ended, ending, finals, columns or {}, self._time)

    def cut(self, robots: np.ndarray, finals: Mapping[str, str], *, goes_on: bool) -> int:
        """End the episodes of a mask (N,) without a reason of the task; returns how many.

        Args:
            finals: field -> field per episode for the values after the last step. Nothing was seen
                after the latest step, so its own values are those, and it is not in the episode.
            goes_on: whether the robots go on; then that step is the first of a next episode.
        """
        ended = np.flatnonzero(robots & (self.running() > bool(finals)))
        stop = self._time - bool(finals)
        number, row = divmod(max(self._time - 1, 0), self._block_steps)
        last = {final: self._blocks[number][name][row] for name, final in finals.items()
                if len(ended)}  # fmt: skip
        self._end(ended, np.full(len(ended), CUT_OFF, np.uint8), last, {}, stop)
        if not goes_on:
            self._starts[robots] = self._time
        return len(ended)

    def drop(self, robots: np.ndarray) -> None:
        """Forget the running episodes of a mask (N,)."""
        self._starts[robots] = self._time

    def oldest(self) -> np.ndarray:
        """(N,) whether a robot's episode began in the oldest block."""
        end = (min(self._blocks, default=0) + 1) * self._block_steps
        return (self.running() > 0) & (self._starts < end)

    def _end(
        self,
        robots: np.ndarray,
        ending: np.ndarray,
        finals: Mapping[str, np.ndarray],
        columns: Mapping[str, np.ndarray],
        stop: int,
    ) -> None:
        if not len(robots):
            return
        values = {name: kept[robots].copy() for name, kept in {**self._columns, **columns}.items()}
        last = {name: np.array(array[robots]) for name, array in finals.items()}
        starts = self._starts[robots].copy()
        self._ended.append(_Ended(robots, starts, stop, ending, last, values))
        self.finished_steps += int((stop - starts).sum())
        self._starts[robots] = stop

    def take(self) -> FinishedEpisodes | None:
        """The finished episodes, which the buffer then forgets; None if there are none."""
        if not self._ended:
            return None
        ended = self._ended
        starts = np.concatenate([group.starts for group in ended])
        stops = np.concatenate([np.full(len(group.robots), group.stop) for group in ended])
        robots = np.concatenate([group.robots for group in ended])
        lengths = stops - starts
        steps = self._gathered(robots, starts, lengths)
        taken = FinishedEpisodes(
            steps,
            lengths,
            robots,
            np.concatenate([group.ending for group in ended]),
            _joined([group.finals for group in ended]),
            _joined([group.columns for group in ended]),
        )
        self._ended = []
        self.finished_steps = 0
        self._free()
        return taken

    def _gathered(self, robots: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Arrays:
        """Field -> (T, *shape) of episodes, end to end."""
        total = int(lengths.sum())
        # The time of every row: its episode's start, and its place in the episode.
        times = np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(total)
        columns = np.repeat(robots, lengths)
        numbers, rows = np.divmod(times, self._block_steps)
        steps = {
            name: np.empty((total, *shape), dtype) for name, (shape, dtype) in self._like.items()
        }
        for number in np.unique(numbers):
            places = np.flatnonzero(numbers == number)
            block = self._blocks[int(number)]
            for name, target in steps.items():
                target[places] = block[name][rows[places], columns[places]]
        return steps

    def _free(self) -> None:
        running = self.running() > 0
        first = int(self._starts[running].min()) if running.any() else self._time
        for number in [n for n in self._blocks if (n + 1) * self._block_steps <= first]:
            del self._blocks[number]


def _joined(groups: Sequence[Mapping[str, Any]]) -> Arrays:
    return {name: np.concatenate([group[name] for group in groups]) for name in groups[0]}


def flags(ending: np.ndarray) -> dict[str, np.ndarray]:
    """The catalog's columns of endings (E,)."""
    return {"terminated": ending == TERMINATED, "truncated": ending == TRUNCATED}
