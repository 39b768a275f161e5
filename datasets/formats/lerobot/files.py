"""The files of a LeRobot dataset: its metadata, and the frames that they locate."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datasets.formats.checks import read_json, refuse
from datasets.formats.lerobot.info import place_in, read_info
from datasets.formats.lerobot.schema import INFO, STATS, TASKS
from datasets.formats.parquet_rows import ParquetRows, to_rows

_PLACES = ("data/chunk_index", "data/file_index", "dataset_from_index", "dataset_to_index")
_NUMBERS = ("episode_index", "length", *_PLACES)


@dataclass(frozen=True, eq=False)
class FileRows:
    """Consecutive episodes in one data file.

    Attributes:
        first, stop: rows of the file; episodes: first and stop.
    """

    file: ParquetRows
    first: int
    stop: int
    episodes: tuple[int, int]


class LerobotFolder:
    """A dataset on disk.

    Attributes:
        info: ``meta/info.json``; features: its features.
        lengths: (E,) frames of each episode.
        splits: (E,) name of the split of each episode, "" for none; None for less than two splits.
        tasks: task index -> description; empty for a dataset without tasks.
        files: all files of the dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.info = read_info(root / INFO)
        self.features: Mapping[str, Mapping[str, Any]] = self.info["features"]
        described = sorted((root / "meta/episodes").glob("[!.]*/[!.]*.parquet"))
        if not described:
            refuse(root, "meta/episodes", "there is no file of episodes")
        self._numbers = _read_episodes(described)
        self.lengths = self._numbers["length"]
        self.splits = _splits(root / INFO, self.info, len(self.lengths))
        total = self.info.get("total_frames", int(self.lengths.sum()))
        if total != self.lengths.sum():
            problem = f"is {total}, but the episodes' lengths sum to {self.lengths.sum()}"
            refuse(root / INFO, "total_frames", problem)
        chunks, files = self._numbers["data/chunk_index"], self._numbers["data/file_index"]
        changes = np.flatnonzero((np.diff(chunks) != 0) | (np.diff(files) != 0)) + 1
        bounds = [0, *changes.tolist(), len(chunks)]
        self._data = [(self._data_file(*each), each) for each in pairwise(bounds)]
        self.files = [root / INFO, *described, *(file.path for file, _ in self._data)]
        self.tasks = _read_tasks(root / TASKS)
        self.files += [root / name for name in (STATS, TASKS) if (root / name).is_file()]
        if (root / STATS).is_file():
            read_json(root / STATS, "LeRobot dataset")

    def close(self) -> None:
        """Close the data files."""
        for file, _ in self._data:
            file.close()

    def frames(self, first: int, stop: int) -> list[FileRows]:
        """The frames of episodes first .. stop - 1, in order."""
        starts, stops = self._numbers["dataset_from_index"], self._numbers["dataset_to_index"]
        found = []
        for file, (begin, end) in self._data:
            low, high = max(first, begin), min(stop, end)
            if low < high:
                origin = int(starts[begin])
                rows = int(starts[low]) - origin, int(stops[high - 1]) - origin
                found.append(FileRows(file, *rows, (low, high)))
        return found

    def read(self, rows: FileRows, names: list[str]) -> pa.Table:
        """Columns of frames; DatasetError if their counters are not those of the episodes."""
        low, high = rows.episodes
        lengths = self.lengths[low:high]
        starts = np.cumsum(lengths) - lengths
        expected = {
            "episode_index": np.repeat(np.arange(low, high), lengths),
            "frame_index": np.arange(lengths.sum()) - np.repeat(starts, lengths),
        }
        table = rows.file.read([*names, *expected], rows.first, rows.stop)
        for name, wanted in expected.items():
            values = to_rows(rows.file.path, name, table.column(name), (), "int64")
            if (differ := values != wanted).any():
                at = int(np.argmax(differ))
                problem = f"row {rows.first + at} is {values[at]}, not {wanted[at]}"
                refuse(rows.file.path, name, f"{problem} as by the episodes' lengths")
        return table

    def _data_file(self, begin: int, end: int) -> ParquetRows:
        """The file with the frames of episodes begin .. end - 1."""
        place = (int(self._numbers[f"data/{key}_index"][begin]) for key in ("chunk", "file"))
        file = ParquetRows(self._root / place_in(self.info["data_path"], *place))
        wanted = int(self.lengths[begin:end].sum())
        if file.num_rows != wanted:
            refuse(file.path, "", f"has {file.num_rows} rows, but its episodes {wanted} frames")
        return file


def _read_tasks(path: Path) -> dict[int, str]:
    if not path.is_file():
        return {}
    rows = ParquetRows(path)
    words = next((name for name in ("task", "__index_level_0__") if name in rows.schema.names), "")
    if not words:
        refuse(path, "task", "the column is missing")
    numbers = rows.read_integers(["task_index"])["task_index"]
    texts = rows.read([words], 0, rows.num_rows).column(words).to_pylist()
    if not all(isinstance(text, str) for text in texts):
        refuse(path, words, "every task needs a description")
    return dict(zip(numbers.tolist(), texts, strict=True))


def _splits(path: Path, info: Mapping[str, Any], episodes: int) -> np.ndarray | None:
    names = np.full(episodes, "", object)
    given = info.get("splits") or {}
    for name, (first, stop) in given.items():
        if stop > episodes:
            refuse(path, f"splits/{name}", f"ends at {stop}, but there are {episodes} episodes")
        names[first:stop] = name
    return names if len(given) > 1 else None


def _read_episodes(paths: list[Path]) -> dict[str, np.ndarray]:
    """Column -> (E,) of all episodes, which must lie end to end in the order of their indices."""
    parts = [ParquetRows(path).read_integers(_NUMBERS) for path in paths]
    numbers = {name: np.concatenate([part[name] for part in parts]) for name in _NUMBERS}
    order = np.argsort(numbers["episode_index"], kind="stable")
    numbers = {name: each[order] for name, each in numbers.items()}
    lengths = numbers["length"]
    if len(lengths) == 0:
        refuse(paths[0], "", "holds no episode")
    stops = np.cumsum(lengths)
    expected = {
        "episode_index": np.arange(len(lengths)),
        "length": np.maximum(lengths, 1),
        "dataset_from_index": stops - lengths,
        "dataset_to_index": stops,
    }
    for name, values in expected.items():
        if (differ := numbers[name] != values).any():
            at = int(np.argmax(differ))
            problem = f"episode {at} has {numbers[name][at]}, not {values[at]}"
            refuse(paths[0].parents[1], name, f"{problem}: episodes lie end to end")
    return numbers
