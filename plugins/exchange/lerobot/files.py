"""The files of a LeRobot dataset: its checked metadata, and the frames that they locate."""

import glob
import math
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from shlex import quote
from typing import Any

import numpy as np

from gaitforge.common.errors import amount
from gaitforge.datasets.formats.sources import Span, read_json, refuse
from gaitforge.plugins.exchange.lerobot.lerobot_schema import INFO, MOST_AXES, STATS, TASKS
from gaitforge.plugins.exchange.lerobot.parquet_rows import ParquetRows, to_rows

_NUMBERS = ("episode_index", "length", "dataset_from_index", "dataset_to_index")


_CONVERTER = "lerobot.scripts.convert_dataset_v21_to_v30"
"""As of lerobot 0.6; 0.4 has it at `lerobot.datasets.v30.convert_dataset_v21_to_v30`."""

_INFO_KEYS = ("codebase_version", "fps", "features", "data_path")
_PLACE = re.compile(r"\{(chunk|file)_index(?::(?:0([1-9]))?d)?\}")
_SPLIT = re.compile(r"([0-9]{1,15}):([0-9]{1,15})")
_MOST_NUMBERS = 2**31 - 1
"""Largest axis: the longest Arrow list."""

Kind = tuple[tuple[int, ...], str]
"""Shape of a row, and dtype."""


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
        stats: feature -> min, max and so on, as stated; {} for none.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self.info = _read_info(root / INFO)
        self.features: Mapping[str, Mapping[str, Any]] = self.info["features"]
        described = sorted((root / "meta/episodes").glob("[!.]*/[!.]*.parquet"))
        if not described:
            refuse(root, "meta/episodes", "there is no file of episodes")
        self.lengths = _read_episodes(described)
        self._stops = np.cumsum(self.lengths)
        self.splits = _splits(root / INFO, self.info, len(self.lengths))
        total = self.info.get("total_frames", int(self.lengths.sum()))
        if total != self.lengths.sum():
            problem = f"is {total}, but the episodes' lengths sum to {self.lengths.sum()}"
            refuse(root / INFO, "total_frames", problem)
        self._data = [ParquetRows(path) for path in _data_files(root, self.info["data_path"])]
        self._ends = np.cumsum([file.num_rows for file in self._data])
        self.unused = int(self._ends[-1] if self._data else 0) - total
        if self.unused < 0:
            problem = f"the {amount(len(self._data), 'file')} hold {self.unused + total} rows"
            refuse(root, "data", f"{problem}, but there are {total} frames; is a file missing?")
        self._data = self._data[: int(np.searchsorted(self._ends, total)) + 1]
        self.files = [root / INFO, *described, *(file.path for file in self._data)]
        self.tasks = _read_tasks(root / TASKS)
        self.files += [root / name for name in (STATS, TASKS) if (root / name).is_file()]
        is_there = (root / STATS).is_file()
        self.stats = read_json(root / STATS, "LeRobot dataset") if is_there else {}

    def read(self, part: Span, kinds: Mapping[str, Kind]) -> dict[str, np.ndarray]:
        """Column -> (T, *shape) of the frames of a part's episodes, for columns of these kinds.

        DatasetError if the frames' counters are not those of the episodes.
        """
        pieces = []
        for file, end in zip(self._data, self._ends.tolist(), strict=False):
            origin = end - file.num_rows
            low = max(part.steps.start, origin)
            high = min(part.steps.stop, end)
            if low < high:
                pieces.append(self._read_file(file, np.arange(low, high), low - origin, kinds))
        return {name: np.concatenate([piece[name] for piece in pieces]) for name in kinds}

    def _read_file(
        self, file: ParquetRows, frames: np.ndarray, first: int, kinds: Mapping[str, Kind]
    ) -> dict[str, np.ndarray]:
        """The columns of some frames, which are a file's rows from `first` on."""
        episodes = np.searchsorted(self._stops, frames, side="right")
        starts = self._stops[episodes] - self.lengths[episodes]
        expected = {"episode_index": episodes, "frame_index": frames - starts}
        table = file.read([*kinds, *expected], first, first + len(frames))
        for name, numbers in expected.items():
            values = to_rows(file.path, name, table.column(name), (), "int64")
            if (differ := values != numbers).any():
                at = int(np.argmax(differ))
                problem = f"row {first + at} is {values[at]}, not {numbers[at]}"
                refuse(file.path, name, f"{problem} as by the episodes' lengths")
        return {
            name: to_rows(file.path, name, table.column(name), *kind, first)
            for name, kind in kinds.items()
        }


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
    numbers = {name: column[order] for name, column in numbers.items()}
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


def _read_info(path: Path) -> dict[str, Any]:
    """The content of `meta/info.json`, with `splits` parsed: name -> (first, stop).

    `1 / fps` is a positive number; see `_data_files` for `data_path`.
    """
    info = read_json(path, "LeRobot dataset")
    for key in _INFO_KEYS:
        if key not in info:
            refuse(path, key, "the key is missing")

    def check(key: str, allowed: bool, rule: str, value: Any) -> None:
        if not allowed:
            refuse(path, key, f"must be {rule}, not {value!r:.60}")

    version = info["codebase_version"]
    robot = info.get("robot_type")
    features = info["features"]
    if not str(version).startswith("v3."):
        problem = f"is {version}; only v3 can be read"
        if version != "v2.1":
            advice = "bring it to v2.1 with lerobot's own converters of that time"
            refuse(path, "codebase_version", f"{problem}: {advice}")
        arguments = f"--repo-id=me/data --root={quote(str(path.parent.parent))} --push-to-hub=false"
        advice = f"convert a copy with lerobot's own converter: python -m {_CONVERTER} {arguments}"
        refuse(path, "codebase_version", f"{problem}: {advice}")
    check("fps", _is_rate(info["fps"]), "a positive number", info["fps"])
    check("robot_type", isinstance(robot, str | None), "a string or null", robot)
    _check_data_path(path, info["data_path"])
    check("features", isinstance(features, dict), "an object", features)
    for name, feature in features.items():
        key = f"features/{name}"
        if not name:
            refuse(path, "features", "a feature needs a name")
        if not isinstance(feature, dict) or not {"dtype", "shape"} <= feature.keys():
            refuse(path, key, "every feature needs dtype and shape")
        shape = feature["shape"]
        dtype = feature["dtype"]
        names = feature.get("names")
        check(f"{key}/dtype", isinstance(dtype, str), "a string", dtype)
        rule = f"a list of up to {MOST_AXES} whole numbers"
        check(f"{key}/shape", _is_shape(shape), rule, shape)
        rule = "null, a list of strings, or an object of them"
        check(f"{key}/names", names is None or _is_named(names), rule, names)
    splits = info.get("splits") or {}
    check("splits", isinstance(splits, dict), "an object of FIRST:STOP", splits)
    parsed = {}
    for name, bounds in splits.items():
        match = _SPLIT.fullmatch(bounds) if isinstance(bounds, str) else None
        if not match or int(match[1]) > int(match[2]):
            refuse(path, f"splits/{name}", f"must be FIRST:STOP, not {bounds!r:.60}")
        parsed[name] = int(match[1]), int(match[2])
    return info | {"splits": parsed}


def _data_files(root: Path, pattern: str) -> list[Path]:
    """The files of "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", by their numbers.

    Nothing else of Python's format language is allowed, because the pattern is untrusted.
    """

    def numbers(path: Path) -> list[int]:
        return [int(digits) for digits in re.findall("[0-9]+", path.relative_to(root).as_posix())]

    anything = re.sub(rf"({_PLACE.pattern})+", "*", glob.escape(pattern))
    return sorted(root.glob(anything), key=numbers)


def _check_data_path(path: Path, pattern: Any) -> None:
    if not isinstance(pattern, str):
        refuse(path, "data_path", f"must be a string, not {pattern!r:.60}")
    parts = PurePosixPath(pattern)
    named = {match[1] for match in _PLACE.finditer(pattern)}
    if named != {"chunk", "file"} or re.search(r"[{}\0]", _PLACE.sub("", pattern)):
        refuse(path, "data_path", f"'{pattern}' has no chunk_index and file_index alone in braces")
    if parts.is_absolute() or ".." in parts.parts:
        refuse(path, "data_path", f"'{pattern}' leads out of the dataset's folder")


def _is_shape(shape: Any) -> bool:
    return (
        isinstance(shape, list)
        and len(shape) <= MOST_AXES
        and all(type(size) is int and 0 <= size <= _MOST_NUMBERS for size in shape)
    )


def _is_named(names: Any) -> bool:
    """Whether these are strings, numbers, or an object of them or of lists of them."""
    values = names.values() if isinstance(names, dict) else [names]
    singles = [item for value in values for item in (value if isinstance(value, list) else [value])]
    return all(
        isinstance(item, str | int) or (isinstance(item, float) and math.isfinite(item))
        for item in singles
    )


def _is_rate(fps: Any) -> bool:
    try:
        return type(fps) in (int, float) and fps > 0 and 0 < 1.0 / fps < math.inf
    except OverflowError:  # an integer beyond any float
        return False
