"""LeRobot's dataset layout, version 3.0, how a store's fields map to it, and its statistics.

    meta/info.json                           features, frames a second, counts
    meta/stats.json                          statistics of each feature
    meta/tasks.parquet                       task_index and, as the index, the task's description
    meta/episodes/chunk-000/file-000.parquet a row per episode: length, where its frames are, stats
    data/chunk-000/file-000.parquet          a row per frame

A file holds whole episodes and about 100 MB, a chunk 1,000 files. The notes of an export are in
`meta/gaitforge/`.

Statistics are of all frames, and of the frames of each episode. LeRobot averages the quantiles of
episodes' histograms; the quantiles here are exact.
"""

from collections.abc import Iterable, Mapping
from functools import reduce
from typing import Any

import numpy as np

from gaitforge.datasets.formats.sources import Span, tiling_slices
from gaitforge.datasets.schema import Field, Schema
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.statistics import (
    ChannelStatistics,
    channel_quantiles,
    channel_statistics,
    row_quantiles,
)

VERSION = "v3.0"
INFO = "meta/info.json"
STATS = "meta/stats.json"
TASKS = "meta/tasks.parquet"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
NOTES = "meta/gaitforge"
SCHEMA_NOTE = f"{NOTES}/schema.json"
EPISODES_NOTE = f"{NOTES}/episodes.parquet"
NOTES_FIELD = "field."
"""Prefix of a field per episode in `EPISODES_NOTE`; no catalog column has a dot."""

FILES_A_CHUNK = 1000
FILE_MB = 100
MOST_AXES = 5
"""The most axes of a LeRobot feature."""

MAIN_FEATURES = {"obs": "observation.state", "action": "action", "reward": "next.reward"}
"""Field -> feature; any other field per step keeps its name."""

DONE = "next.done"
TERMINATED = "next.terminated"
TRUNCATED = "next.truncated"
SUCCESS = "next.success"
COUNTERS = ("timestamp", "frame_index", "episode_index", "index", "task_index")
ENDINGS = (DONE, TERMINATED, TRUNCATED)

OWN_FEATURES = {
    **dict.fromkeys(ENDINGS, "bool"),
    **dict.fromkeys(COUNTERS, "int64"),
    "timestamp": "float32",
}
"""Feature computed from the starts and ends of episodes -> dtype."""

_TAKEN = (*COUNTERS, "task", "subtask")


def feature_of(name: str) -> str:
    """The feature that holds a field per step."""
    return MAIN_FEATURES.get(name, f"store.{name}" if name in _TAKEN else name)


def feature_shape(field: Field) -> tuple[int, ...]:
    """LeRobot's shape of a field's row: (1,) for a scalar."""
    return field.shape or (1,)


def features(schema: Schema) -> dict[str, dict[str, Any]]:
    """`features` of `info.json`."""
    specs = {
        feature_of(field.name): (field.dtype, feature_shape(field), _channel_names(field))
        for field in schema.fields
        if field.per == "step"
    }
    specs |= {name: (dtype, (1,), None) for name, dtype in OWN_FEATURES.items()}
    return {
        name: {"dtype": dtype, "shape": list(shape), "names": names}
        for name, (dtype, shape, names) in specs.items()
    }


def _channel_names(field: Field) -> list[str] | None:
    """A name for each number, from named slices that tile the field."""
    names = [
        name if stop - start == 1 else f"{name}_{number - start}"
        for name, (start, stop) in tiling_slices(field)
        for number in range(start, stop)
    ]
    return names or None


def frames_per_second(control_dt_s: float) -> int | float:
    """The frame rate; an int where it is a whole number."""
    rate = 1.0 / control_dt_s
    return round(rate) if abs(rate - round(rate)) < 1e-9 * rate else rate


def own_columns(
    span: Span, episodes: Mapping[str, np.ndarray], fps: float
) -> dict[str, np.ndarray]:
    """The features of `OWN_FEATURES`, from (E,) terminated, truncated and task_index."""
    lengths = span.lengths
    frames = np.arange(span.n_steps) - np.repeat(span.starts, lengths)
    endings = {
        DONE: episodes["terminated"] | episodes["truncated"],
        TERMINATED: episodes["terminated"],
        TRUNCATED: episodes["truncated"],
    }
    is_last = frames == np.repeat(lengths - 1, lengths)
    return {name: is_last & np.repeat(ended, lengths) for name, ended in endings.items()} | {
        "timestamp": (frames / fps).astype(np.float32),
        "frame_index": frames,
        "episode_index": np.repeat(span.first + np.arange(len(lengths)), lengths),
        "index": span.first_step + np.arange(span.n_steps),
        "task_index": np.repeat(episodes["task_index"], lengths),
    }


# Statistics of a dataset's frames.
QUANTILES = {"q01": 0.01, "q10": 0.1, "q50": 0.5, "q90": 0.9, "q99": 0.99}
_LEVELS = np.array(list(QUANTILES.values()))
NAMES = ("min", "max", "mean", "std", "count", *QUANTILES)

Stats = dict[str, np.ndarray]
"""Name -> (*shape), (1,) for a scalar; the count is (1,)."""


def field_stats(selection: EpisodeSelection, field: str) -> Stats:
    """Statistics of a field over a selection's rows."""
    statistics = channel_statistics(selection, field, "threads")
    quantiles = channel_quantiles(selection, field, _LEVELS.tolist(), "threads")
    return _stats(statistics, quantiles)


def scalar_stats(blocks: Iterable[np.ndarray]) -> Stats:
    """Statistics of scalars, whose rows come in blocks."""
    rows = list(blocks)
    statistics = reduce(ChannelStatistics.merge, map(ChannelStatistics.of, rows))
    return _stats(statistics, row_quantiles(np.concatenate(rows), _LEVELS))


def episode_stats(rows: np.ndarray, lengths: np.ndarray) -> Stats:
    """Statistics of consecutive episodes of `rows` (T, *shape).

    Gives name -> (E, *shape), or (E, 1) for scalars and for the count. Episodes of one length are
    computed together.
    """
    shape = rows.shape[1:] or (1,)
    stats: Stats = {name: np.empty((len(lengths), *shape)) for name in NAMES}
    stats["count"] = lengths.reshape(-1, 1).astype(np.int64)
    starts = np.cumsum(lengths) - lengths
    for length in np.unique(lengths).tolist():
        episodes = np.flatnonzero(lengths == length)
        of_each = rows[starts[episodes, None] + np.arange(length)]
        for name, values in _along_second(of_each.reshape(len(episodes), length, *shape)).items():
            stats[name][episodes] = values
    return stats


def _along_second(rows: np.ndarray) -> Stats:
    """Name -> (E, *shape) over T of rows (E, T, *shape), without the count."""
    mean = rows.mean(axis=1, dtype=np.float64)
    spread = np.square(rows - mean[:, None]).mean(axis=1)
    stats = {"min": rows.min(axis=1), "max": rows.max(axis=1), "mean": mean, "std": np.sqrt(spread)}
    return stats | dict(
        zip(QUANTILES, row_quantiles(np.moveaxis(rows, 1, 0), _LEVELS), strict=True)
    )


def _stats(channels: ChannelStatistics, quantiles: np.ndarray) -> Stats:
    plain = {"min": channels.min, "max": channels.max, "mean": channels.mean, "std": channels.std}
    plain |= dict(zip(QUANTILES, quantiles, strict=True))
    shaped = {name: np.atleast_1d(np.asarray(value)) for name, value in plain.items()}
    shaped["count"] = np.array([channels.count], np.int64)
    return {name: shaped[name] for name in NAMES}
