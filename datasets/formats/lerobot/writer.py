"""A selection as a LeRobot dataset; see ``lerobot_schema`` for the layout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from datasets.errors import DatasetError
from datasets.formats.interface import Advance, Carried
from datasets.formats.lerobot.schema import (
    DATA_PATH,
    EPISODES_NOTE,
    EPISODES_PATH,
    FILE_MB,
    FILES_A_CHUNK,
    INFO,
    MOST_AXES,
    NOTED_FIELD,
    NOTES,
    OWN_FEATURES,
    SCHEMA_NOTE,
    STATS,
    TASKS,
    VERSION,
    feature_of,
    features,
    frames_a_second,
    own_columns,
)
from datasets.formats.lerobot.statistics import Stats, episode_stats, field_stats, made_stats
from datasets.formats.parquet_rows import to_arrow, to_lists
from datasets.formats.sources import bounded_units
from datasets.schema import Schema
from datasets.selection.selection import Selection


@dataclass(frozen=True)
class LerobotExportOptions:
    """How a dataset is written.

    Attributes:
        notes: keep the schema, the catalog and the fields an episode in ``meta/gaitforge``, so that
            an import gives back the same store; other readers may ignore it.
        file_mb: a data file is full at so many mebibytes.
        episode_stats: write statistics of every episode, as LeRobot does; its loader does without,
            its tools that split and merge datasets do not. They take 80 bytes a number of a row.
    """

    notes: bool = True
    episode_stats: bool = True
    file_mb: int = FILE_MB


class LerobotExporter:
    """See ``interface.Exporter``."""

    Options: ClassVar[type[Any]] = LerobotExportOptions

    def __init__(self, options: LerobotExportOptions) -> None:
        if options.file_mb < 1:
            raise DatasetError(f"option file_mb must be 1 or more, not {options.file_mb}")
        self._options = options

    def check(self, selection: Selection, destination: Path) -> None:
        """See ``interface.Exporter``."""
        for each in selection.store.schema.fields:
            if each.per == "step" and len(each.shape) > MOST_AXES:
                raise DatasetError(
                    f"field {each.name}: a LeRobot feature has at most {MOST_AXES} axes, "
                    f"not {len(each.shape)}"
                )

    def write(self, selection: Selection, temporary: Path, advance: Advance) -> Carried:
        """See ``interface.Exporter``."""
        schema = selection.store.schema
        frames = _Frames(selection)
        file_bytes = self._options.file_mb * 2**20
        data = _FileSeries(temporary, DATA_PATH, file_bytes)
        described = _FileSeries(temporary, EPISODES_PATH, file_bytes)
        try:
            for first_row, unit, own in frames.units():
                lengths = selection.unit_rows(unit)[1]
                columns = {
                    feature_of(name): selection.read_unit(name, unit)
                    for name in schema.names("step")
                } | own
                arrays = {name: _feature_column(rows) for name, rows in columns.items()}
                places = data.write(pa.table(arrays), lengths)
                chosen = columns if self._options.episode_stats else {}
                rows = frames.episode_rows(first_row, unit.first, lengths, places, chosen)
                described.write(rows, np.ones(len(lengths), np.int64), "meta/episodes")
                advance(int(lengths.sum()))
        finally:
            data.close()
            described.close()
        _write_tasks(temporary / TASKS, frames.tasks)
        _write_json(
            temporary / INFO, _info(selection, len(frames.tasks), frames.fps, self._options.file_mb)
        )
        stats = {feature_of(name): field_stats(selection, name) for name in schema.names("step")}
        _write_json(temporary / STATS, _as_json(stats | frames.own_stats()))
        if self._options.notes:
            _write_notes(temporary, selection)
        return self._carried(schema)

    def _carried(self, schema: Schema) -> Carried:
        kept = [f"{name} -> {feature_of(name)}" for name in schema.names("step")]
        kept.append("terminated, truncated -> next.terminated, next.truncated and next.done")
        kept.append("the column task, or what the episodes are grouped by -> the task")
        left: tuple[str, ...] = ()
        if self._options.notes:
            kept.append(f"the catalog, schema and fields an episode -> {NOTES}")
        else:
            left = ("the catalog's other columns", "units and the names of slices")
            left += tuple(
                f"{name}: LeRobot has no field an episode" for name in schema.names("episode")
            )
        return Carried(tuple(kept), left)


class _Frames:
    """The selection's episodes in order, and the features that are made from them."""

    def __init__(self, selection: Selection) -> None:
        table = selection.episodes()
        words = _task_words(table, selection.store.schema.group_by)
        self.tasks = sorted(set(words))
        codes = {task: code for code, task in enumerate(self.tasks)}
        self.fps = frames_a_second(selection.store.schema.control_dt_s)
        self._selection = selection
        self._episodes = {
            "terminated": table.column("terminated").to_numpy().astype(bool),
            "truncated": table.column("truncated").to_numpy().astype(bool),
            "task_index": np.array([codes[task] for task in words], np.int64),
        }

    def units(self) -> Iterator[tuple[int, Any, dict[str, np.ndarray]]]:
        """(first frame, unit, made features) of each reading unit in order."""
        row = 0
        for unit in bounded_units(self._selection):
            lengths = self._selection.lengths[unit.first : unit.stop]
            chosen = {name: each[unit.first : unit.stop] for name, each in self._episodes.items()}
            yield row, unit, own_columns(row, unit.first, lengths, chosen, self.fps)
            row += int(lengths.sum())

    def own_stats(self) -> dict[str, Stats]:
        """Statistics of the made features."""
        return {
            name: made_stats(
                lambda name=name: (own[name] for _, _, own in self.units()),
                np.dtype(dtype),
                self._selection.steps,
            )
            for name, dtype in OWN_FEATURES.items()
        }

    def episode_rows(
        self,
        first_row: int,
        first: int,
        lengths: np.ndarray,
        places: list[tuple[int, int]],
        columns: Mapping[str, np.ndarray],
    ) -> pa.Table:
        """The rows of consecutive episodes, without where these rows themselves are."""
        stops = np.cumsum(lengths)
        tasks = [self.tasks[code] for code in self._episodes["task_index"][first:][: len(lengths)]]
        rows: dict[str, Any] = {
            "episode_index": first + np.arange(len(lengths)),
            "tasks": pa.array([[task] for task in tasks], pa.list_(pa.string())),
            "length": lengths,
            "data/chunk_index": np.array([chunk for chunk, _ in places], np.int64),
            "data/file_index": np.array([file for _, file in places], np.int64),
            "dataset_from_index": first_row + stops - lengths,
            "dataset_to_index": first_row + stops,
        }
        for name, values in columns.items():
            for stat, found in episode_stats(values, lengths).items():
                rows[f"stats/{name}/{stat}"] = to_lists(found)
        return pa.table(rows)


class _FileSeries:
    """Parquet files one after the other, each of whole episodes and at most so many bytes."""

    def __init__(self, root: Path, pattern: str, file_bytes: int) -> None:
        self._root, self._pattern, self._file_bytes = root, pattern, file_bytes
        self._number, self._bytes = -1, 0
        self._writer: pq.ParquetWriter | None = None

    def write(
        self, table: pa.Table, lengths: np.ndarray, prefix: str = ""
    ) -> list[tuple[int, int]]:
        """Append rows, cut between episodes where a file is full.

        Args:
            lengths: rows of each episode of the table.
            prefix: of two columns to add that say in which chunk and file a row is.

        Returns:
            Chunk and file of each episode.
        """
        stops = np.cumsum(lengths)
        row_bytes = max(1.0, table.nbytes / max(1, table.num_rows))
        places: list[tuple[int, int]] = []
        first = 0
        while first < len(lengths):
            begin = int(stops[first] - lengths[first])
            room = self._file_bytes - self._bytes
            stop = int(np.searchsorted(stops, begin + room / row_bytes, side="right"))
            if stop <= first and self._bytes:
                self.close()
                continue
            stop = max(stop, first + 1)
            part = table.slice(begin, int(stops[stop - 1]) - begin)
            places += self._append(part, stop - first, prefix)
            first = stop
        return places

    def _append(self, part: pa.Table, episodes: int, prefix: str) -> list[tuple[int, int]]:
        if self._writer is None:
            self._number += 1
        chunk, file = divmod(self._number, FILES_A_CHUNK)
        if prefix:
            for name, value in (("chunk_index", chunk), ("file_index", file)):
                column = pa.array(np.full(part.num_rows, value, np.int64))
                part = part.append_column(f"{prefix}/{name}", column)
        if self._writer is None:
            path = self._root / self._pattern.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, part.schema, compression="snappy")
        self._writer.write_table(part)
        self._bytes += part.nbytes
        return [(chunk, file)] * episodes

    def close(self) -> None:
        """End the file at hand."""
        if self._writer is not None:
            self._writer.close()
        self._writer, self._bytes = None, 0


def _feature_column(rows: np.ndarray) -> pa.Array:
    """A feature's column: LeRobot keeps shape (1,) as plain numbers."""
    return to_arrow(rows.reshape(-1) if rows.shape[1:] == (1,) else rows)


def _task_words(table: pa.Table, group_by: tuple[str, str]) -> list[str]:
    """What an episode is to do, in words: the column `task`, or the schema's `group_by`."""
    where, what = (table.column(name).to_pylist() for name in group_by)
    made = [f"{skill} on {terrain}" for terrain, skill in zip(where, what, strict=True)]
    if "task" not in table.column_names or not pa.types.is_string(table.schema.field("task").type):
        return made
    given = table.column("task").to_pylist()
    return [task or other for task, other in zip(given, made, strict=True)]


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """The tasks as pandas writes a frame whose index holds them, for LeRobot reads it as one."""
    table = pa.table({"task_index": np.arange(len(tasks)), "task": pa.array(tasks, pa.string())})
    column = {"field_name": "task_index", "name": "task_index", "metadata": None}
    index = {"field_name": "task", "name": "task", "metadata": None}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [
            column | {"pandas_type": "int64", "numpy_type": "int64"},
            index | {"pandas_type": "unicode", "numpy_type": "object"},
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)


def _info(selection: Selection, tasks: int, fps: float, file_mb: int) -> dict[str, Any]:
    schema = selection.store.schema
    return {
        "codebase_version": VERSION,
        "robot_type": schema.robot,
        "total_episodes": len(selection),
        "total_frames": selection.steps,
        "total_tasks": tasks,
        "chunks_size": FILES_A_CHUNK,
        "data_files_size_in_mb": file_mb,
        "video_files_size_in_mb": file_mb,
        "fps": fps,
        "splits": {"train": f"0:{len(selection)}"},
        "data_path": DATA_PATH,
        "video_path": None,
        "features": features(schema),
    }


def _as_json(stats: Mapping[str, Stats]) -> dict[str, Any]:
    return {
        name: {key: values.tolist() for key, values in each.items()} for name, each in stats.items()
    }


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1, allow_nan=False), encoding="utf-8")


def _write_notes(root: Path, selection: Selection) -> None:
    """What LeRobot has no place for: the schema; the catalog with the fields an episode."""
    _write_json(root / SCHEMA_NOTE, selection.store.schema.to_json())
    writer: pq.ParquetWriter | None = None
    try:
        for unit in bounded_units(selection):
            part = Selection(
                selection.store,
                selection.catalog,
                selection.rows[unit.first : unit.stop].copy(),
            )
            table = part.episodes().drop_columns(["part", "start"])
            for name in selection.store.schema.names("episode"):
                column = to_arrow(selection.read_unit(name, unit))
                table = table.append_column(f"{NOTED_FIELD}{name}", column)
            if writer is None:
                writer = pq.ParquetWriter(root / EPISODES_NOTE, table.schema, compression="zstd")
            writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()
