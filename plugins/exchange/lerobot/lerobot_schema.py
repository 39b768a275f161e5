"""LeRobot's dataset layout, version 3.0, and how a store's fields map to it.

    meta/info.json                           features, frames a second, counts
    meta/stats.json                          statistics of each feature
    meta/tasks.parquet                       task_index and, as the index, the task's description
    meta/episodes/chunk-000/file-000.parquet a row per episode: length, where its frames are, stats
    data/chunk-000/file-000.parquet          a row per frame

A file holds whole episodes and about 100 MB, a chunk 1,000 files. The notes of an export are in
`meta/gaitforge/`.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from gaitforge.datasets.formats.sources import Span, tiling_slices
from gaitforge.datasets.schema import Field, Schema

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
