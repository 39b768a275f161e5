"""The replay buffer of a training: every transition in order of time, in one file.

The file is a matrix of float32, a row a transition: observation, action, log-density of the
action, reward, terminated, truncated, next observation. How many rows count is in the training's
checkpoint; what lies behind them is written again by the training that goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

REPLAY_FILE = "replay.f32"


def replay_slices(obs_dim: int, act_dim: int) -> dict[str, slice]:
    """Where the columns of a row are."""
    widths = {
        "obs": obs_dim,
        "action": act_dim,
        "log_prob": 1,
        "reward": 1,
        "terminated": 1,
        "truncated": 1,
        "next_obs": obs_dim,
    }
    ends = np.cumsum([0, *widths.values()]).tolist()
    return {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(widths)}


class ReplayBuffer:
    """A buffer that never forgets, for a training of at most `capacity` steps."""

    def __init__(self, path: Path, capacity: int, obs_dim: int, act_dim: int, rows: int) -> None:
        """Open or make the file; `rows` of it count.

        Raises:
            ValueError: the file is shorter than its rows.
        """
        self.columns = replay_slices(obs_dim, act_dim)
        self._width = self.columns["next_obs"].stop
        self.rows = rows
        there = path.stat().st_size if path.exists() else 0
        if there < rows * self._width * 4:
            raise ValueError(f"{path} has not the {rows} rows that are counted of it")
        # Sparse, so that it takes no more room on the disk than what is written.
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(max(capacity, rows) * self._width * 4)
        self._data = np.memmap(path, np.float32, "r+", shape=(max(capacity, rows), self._width))

    def add(self, **values: np.ndarray | float) -> None:
        """Append a transition: a value for every column."""
        row = self._data[self.rows]
        for name, columns in self.columns.items():
            row[columns] = values[name]
        self.rows += 1

    def draw(self, count: int, generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Rows drawn with replacement: {column: (count, width)}, of width 1 (count,)."""
        rows = self._data[generator.integers(self.rows, size=count)]
        return {
            name: rows[:, columns.start] if columns.stop - columns.start == 1 else rows[:, columns]
            for name, columns in self.columns.items()
        }

    def all(self, name: str) -> np.ndarray:
        """(rows, width): what counts of a column."""
        return self._data[: self.rows, self.columns[name]]

    def flush(self) -> None:
        """Bring what was added to the disk."""
        self._data.flush()


@dataclass(frozen=True)
class ReplayEpisodes:
    """Episodes of a buffer, E of them, in order of time.

    Attributes:
        starts, lengths: (E,) int64 rows.
        terminated, truncated: (E,) bool; an episode that was cut off is neither: the last one, and
            each that the training was in when it was saved, for it then went on with a new one.
    """

    starts: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class ReplayReader:
    """Reads a training's buffer."""

    def __init__(
        self, folder: Path, rows: int, obs_dim: int, act_dim: int, name: str = REPLAY_FILE
    ) -> None:
        """The first `rows` of the file `name` in a training's folder.

        Raises:
            ValueError: no file, or a shorter one.
        """
        self.columns = replay_slices(obs_dim, act_dim)
        width = self.columns["next_obs"].stop
        path = folder / name
        if not path.is_file() or path.stat().st_size < rows * width * 4:
            raise ValueError(
                f"no replay buffer of {rows} rows at {path}; a training of one's own has it: "
                "gaitforge expert train --env"
            )
        self.rows = rows
        self._data = np.memmap(path, np.float32, "r", shape=(rows, width))

    def episodes(self, until: int) -> ReplayEpisodes:
        """The episodes that begin before the row `until`, the last one cut off there.

        A row whose next observation is not that of the row behind it is an episode's last, too.
        """
        until = min(until, self.rows)
        flags = {
            name: self._data[:until, self.columns[name].start] > 0.5
            for name in ("terminated", "truncated")
        }
        ended = flags["terminated"] | flags["truncated"]
        seen, following = (self._data[:until, self.columns[name]] for name in ("obs", "next_obs"))
        ended[:-1] |= (following[:-1] != seen[1:]).any(axis=1)
        ends = np.flatnonzero(ended) + 1
        stops = np.union1d(ends, [until]) if until else ends
        starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
        return ReplayEpisodes(
            starts,
            (stops - starts).astype(np.int64),
            flags["terminated"][stops - 1],
            flags["truncated"][stops - 1],
        )

    def read(self, first: int, stop: int) -> dict[str, np.ndarray]:
        """Rows [first, stop): {column: (T, width)}, of width 1 (T,), float32 copies."""
        rows = np.array(self._data[first:stop])
        return {
            name: rows[:, columns.start] if columns.stop - columns.start == 1 else rows[:, columns]
            for name, columns in self.columns.items()
        }
