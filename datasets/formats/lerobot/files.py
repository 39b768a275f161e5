"""The files of a LeRobot dataset: its metadata, and the frames that they locate."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.datasets.errors import amount
from gaitforge.datasets.formats.checks import read_json, refuse
from gaitforge.datasets.formats.lerobot.info import data_files, read_info
from gaitforge.datasets.formats.lerobot.lerobot_schema import INFO, STATS, TASKS
from gaitforge.datasets.formats.parquet_rows import ParquetRows, to_rows

_NUMBERS = ("episode_index", "length", "dataset_from_index", "dataset_to_index")


@dataclass(frozen=True, eq=False)
class FileRows:
    """Consecutive rows of one data file.

    Attributes:
        first, stop: rows of the file; frame: number of the first one in the dataset.
    """

    file: ParquetRows
    first: int
    stop: int
    frame: int


class LerobotFolder:
    """A dataset on disk.

    As in LeRobot, frames lie end to end over the data files in order. The files that the episodes
    name are not used: at a file's boundary LeRobot's converter names the file before.

    Attributes:
        info: `meta/info.json`; features: its features.
        lengths: (E,) frames of each episode.
        splits: (E,) name of the split of each episode, "" for none; None for less than two splits.
        tasks: task index -> description; empty for a dataset without tasks.
        unused: rows of data after the last episode.
        files: all files of the dataset.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.info = read_info(root / INFO)
        self.features: Mapping[str, Mapping[str, Any]] = self.info["features"]
        described = sorted((root / "meta/episodes").glob("[!.]*/[!.]*.parquet"))
        if not described:
            refuse(root, "meta/episodes", "there is no file of episodes")
        self.lengths = _read_episodes(described)
        self._stops = np.cumsum(self.lengths)
        self._starts = self._stops - self.lengths
        self.splits = _splits(root / INFO, self.info, len(self.lengths))
        total = self.info.get("total_frames", int(self.lengths.sum()))
        if total != self.lengths.sum():
            problem = f"is {total}, but the episodes' lengths sum to {self.lengths.sum()}"
            refuse(root / INFO, "total_frames", problem)
        self._data = [ParquetRows(path) for path in data_files(root, self.info["data_path"])]
        self._ends = np.cumsum([file.num_rows for file in self._data])
        self.unused = int(self._ends[-1] if self._data else 0) - total
        if self.unused < 0:
            problem = f"the {amount(len(self._data), 'file')} hold {self.unused + total} rows"
            refuse(root, "data", f"{problem}, but there are {total} frames; is a file missing?")
        self._data = self._data[: int(np.searchsorted(self._ends, total)) + 1]
        self.files = [root / INFO, *described, *(file.path for file in self._data)]
        self.tasks = _read_tasks(root / TASKS)
        self.files += [root / name for name in (STATS, TASKS) if (root / name).is_file()]
        if (root / STATS).is_file():
            read_json(root / STATS, "LeRobot dataset")

    def frames(self, first: int, stop: int) -> list[FileRows]:
        """The frames of episodes first .. stop - 1, in order."""
        begin, end = (int(each) for each in (self._starts[first], self._stops[stop - 1]))
        pieces = []
        for file, file_end in zip(self._data, self._ends.tolist(), strict=False):
            origin = file_end - file.num_rows
            low, high = max(begin, origin), min(end, file_end)
            if low < high:
                pieces.append(FileRows(file, low - origin, high - origin, low))
        return pieces

    def read(self, rows: FileRows, names: list[str]) -> pa.Table:
        """Columns of frames; DatasetError if their counters are not those of the episodes."""
        frames = rows.frame + np.arange(rows.stop - rows.first)
        episodes = np.searchsorted(self._stops, frames, side="right")
        expected = {"episode_index": episodes, "frame_index": frames - self._starts[episodes]}
        table = rows.file.read([*names, *expected], rows.first, rows.stop)
        for name, numbers in expected.items():
            values = to_rows(rows.file.path, name, table.column(name), (), "int64")
            if (differ := values != numbers).any():
                at = int(np.argmax(differ))
                problem = f"row {rows.first + at} is {values[at]}, not {numbers[at]}"
                refuse(rows.file.path, name, f"{problem} as by the episodes' lengths")
        return table


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
    splits = info.get("splits") or {}
    for name, (first, stop) in splits.items():
        if stop > episodes:
            refuse(path, f"splits/{name}", f"ends at {stop}, but there are {episodes} episodes")
        names[first:stop] = name
    return names if len(splits) > 1 else None


def _read_episodes(paths: list[Path]) -> np.ndarray:
    """(E,) lengths of all episodes, which must lie end to end in the order of their indices."""
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
            rule = "episodes are numbered from 0 without a gap, and lie end to end"
            refuse(paths[0].parents[1], name, f"{problem}: {rule}")
    return lengths
