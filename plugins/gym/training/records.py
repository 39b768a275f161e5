"""What a training keeps in its folder: the record of its last checkpoint, and its replay buffer.

`training.json` is the record; `history.jsonl` beside it has a row per evaluation.

The replay buffer has every transition in order of time, in one file: a float32 matrix with a row
per transition, namely observation, action, log-density of the action, reward, terminated,
truncated, next observation. The record says how many rows count; a resumed training overwrites the
others.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.training_folder import TRAINING
from gaitforge.common.errors import failures
from gaitforge.datasets.schema import consecutive_slices

Row = dict[str, Any]


@dataclass(frozen=True)
class TrainingRecord:
    """A training's last checkpoint.

    Attributes:
        config: its settings as JSON values.
        steps, episodes: environment steps and episodes so far; wall_s: seconds that they took, over
            all processes.
        tensors: name of the file with the algorithm's state dict.
    """

    config: Mapping[str, Any]
    steps: int
    episodes: int
    wall_s: float
    tensors: str


def read_training(out: Path) -> TrainingRecord | None:
    """The record in a folder, None before the first checkpoint; ValueError if it is damaged."""
    path = out / TRAINING
    if not path.exists():
        return None
    message = f"{path} is not the record of a training"
    kinds = (KeyError, TypeError, ValueError)
    with failures(message, *kinds, error=ValueError):
        tree = json.loads(path.read_text())
        return TrainingRecord(**{field.name: tree[field.name] for field in fields(TrainingRecord)})


REPLAY_FILE = "replay.f32"


def replay_slices(obs_dim: int, act_dim: int) -> dict[str, slice]:
    """Columns of a row by name."""
    scalars = dict.fromkeys(("log_prob", "reward", "terminated", "truncated"), 1)
    widths = {"obs": obs_dim, "action": act_dim, **scalars, "next_obs": obs_dim}
    return {name: slice(*ends) for name, ends in consecutive_slices(widths).items()}


def _split(rows: np.ndarray, slices: Mapping[str, slice]) -> dict[str, np.ndarray]:
    """{column: (n, width)}, or (n,) where the width is 1."""
    return {
        name: rows[:, columns.start] if columns.stop - columns.start == 1 else rows[:, columns]
        for name, columns in slices.items()
    }


class ReplayBuffer:
    """Appends to and samples from the buffer of a training of at most `capacity` steps."""

    def __init__(self, path: Path, capacity: int, obs_dim: int, act_dim: int, rows: int) -> None:
        """Open or create the file; its first `rows` are valid. ValueError if it is shorter."""
        self.columns = replay_slices(obs_dim, act_dim)
        width = self.columns["next_obs"].stop
        self.rows = rows
        present = path.stat().st_size if path.exists() else 0
        if present < rows * width * 4:
            raise ValueError(f"{path} is too short for its {rows} rows")
        # A sparse file: it takes no more disk than what is written.
        with open(path, "r+b" if path.exists() else "w+b") as file:
            file.truncate(max(capacity, rows) * width * 4)
        self._data = np.memmap(path, np.float32, "r+", shape=(max(capacity, rows), width))

    def add(
        self,
        obs: np.ndarray,
        action: np.ndarray,
        log_prob: float,
        reward: float,
        terminated: bool,
        truncated: bool,
        next_obs: np.ndarray,
    ) -> None:
        """Append a transition."""
        scalars = log_prob, reward, terminated, truncated
        self._data[self.rows] = np.concatenate([obs, action, scalars, next_obs])
        self.rows += 1

    def draw(self, count: int, generator: np.random.Generator) -> Mapping[str, np.ndarray]:
        """Rows drawn with replacement: {column: (count, width)}, of width 1 (count,)."""
        return _split(self._data[generator.integers(self.rows, size=count)], self.columns)

    def flush(self) -> None:
        """Write to disk."""
        self._data.flush()


@dataclass(frozen=True)
class ReplayEpisodes:
    """The E episodes of a buffer, in order of time.

    Attributes:
        starts, lengths: (E,) int64 rows.
        terminated, truncated: (E,) bool. Neither where an episode was cut off: the last one, and
            those interrupted at a checkpoint that the training resumed from.
    """

    starts: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    truncated: np.ndarray


class ReplayReader:
    """Reads a training's buffer."""

    def __init__(self, folder: Path, rows: int, obs_dim: int, act_dim: int) -> None:
        """The first `rows` of a folder's buffer; ValueError if it is missing or shorter."""
        self.columns = replay_slices(obs_dim, act_dim)
        width = self.columns["next_obs"].stop
        path = folder / REPLAY_FILE
        if not path.is_file() or path.stat().st_size < rows * width * 4:
            raise ValueError(
                f"no replay buffer of {rows} rows at {path}; only a training of your own has one: "
                "gaitforge expert train --env"
            )
        self.rows = rows
        self._data = np.memmap(path, np.float32, "r", shape=(rows, width))

    def episodes(self, until: int) -> ReplayEpisodes:
        """The episodes that begin before the row `until`, the last one cut off there.

        An episode also ends where a row's next observation is not the next row's observation.
        """
        until = min(until, self.rows)
        rows = _split(self._data[:until], self.columns)
        terminated = rows["terminated"] > 0.5
        truncated = rows["truncated"] > 0.5
        ended = terminated | truncated
        ended[:-1] |= (rows["next_obs"][:-1] != rows["obs"][1:]).any(axis=1)
        ends = np.flatnonzero(ended) + 1
        stops = np.union1d(ends, [until]) if until else ends
        starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
        last = stops - 1
        lengths = (stops - starts).astype(np.int64)
        return ReplayEpisodes(starts, lengths, terminated[last], truncated[last])

    def read(self, first: int, stop: int) -> dict[str, np.ndarray]:
        """Rows [first, stop): {column: (T, width)}, of width 1 (T,), float32 copies."""
        return _split(np.array(self._data[first:stop]), self.columns)
