"""Export of a selection as a LeRobot dataset; `lerobot_schema.py` describes the layout."""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.formats.protocol import (
    README,
    Advance,
    Carried,
    Exporter,
    ExportOptions,
    readme,
)
from gaitforge.datasets.formats.sources import Block, blocks
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.plugins.exchange.lerobot import lerobot_schema
from gaitforge.plugins.exchange.lerobot import lerobot_schema as layout
from gaitforge.plugins.exchange.lerobot.lerobot_schema import NOTES, Stats, feature_of
from gaitforge.plugins.exchange.lerobot.parquet_rows import to_arrow, to_lists

_LOAD = """from lerobot.datasets.lerobot_dataset import LeRobotDataset

dataset = LeRobotDataset("owner/name", root="FOLDER")
dataset[0]["action"]"""


@dataclass(frozen=True)
class LerobotExportOptions(ExportOptions):
    """How a dataset is written.

    Attributes:
        notes: embed the schema, the catalog and the fields per episode in `meta/gaitforge`, so
            that an import gives back the same store; other readers ignore them.
        episode_stats: write statistics of every episode, 80 bytes per channel. LeRobot's
            loader does without them, its tools that split and merge datasets do not.
        file_mb: size of a data file in mebibytes.
        actions: see `ExportOptions`.
    """

    notes: bool = True
    episode_stats: bool = True
    file_mb: int = layout.FILE_MB

    def __post_init__(self) -> None:
        if self.file_mb < 1:
            raise DatasetError(f"option file_mb must be 1 or more, not {self.file_mb}")


class LerobotExporter(Exporter):
    """See `protocol.Exporter`."""

    Options = LerobotExportOptions
    _name = ""

    def check(self, selection: EpisodeSelection, destination: Path) -> None:
        """See `protocol.Exporter`."""
        self._name = destination.name
        for field in selection.schema.fields:
            if field.per == "step" and len(field.shape) > layout.MOST_AXES:
                most = f"a LeRobot feature has at most {layout.MOST_AXES} axes"
                raise DatasetError(f"field {field.name}: {most}, not {len(field.shape)}")

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """See `protocol.Exporter`."""
        schema = selection.schema
        options = self._options
        names = schema.names("step")
        file_bytes = options.file_mb * 2**20
        frames = _Frames(selection)
        data = _FileSeries(temporary, layout.DATA_PATH, file_bytes)
        described = _FileSeries(temporary, layout.EPISODES_PATH, file_bytes)
        with closing(data), closing(described):
            for block, computed in frames.blocks():
                stored = {feature_of(name): rows for name, rows in block.read(names).items()}
                columns = stored | computed
                arrays = {name: _feature_column(rows) for name, rows in columns.items()}
                places = data.write(pa.table(arrays), block.lengths)
                rows = frames.episode_rows(block, places, columns if options.episode_stats else {})
                described.write(rows, np.ones(len(block.lengths), np.int64), "meta/episodes")
                advance(block.n_steps)
        _write_tasks(temporary / layout.TASKS, frames.tasks)
        info = _info(selection, len(frames.tasks), frames.fps, options.file_mb)
        _write_json(temporary / layout.INFO, info)
        stats = {feature_of(name): lerobot_schema.field_stats(selection, name) for name in names}
        stats |= frames.own_stats()
        lists = {name: {key: entry[key].tolist() for key in entry} for name, entry in stats.items()}
        _write_json(temporary / layout.STATS, lists)
        if options.notes:
            _write_notes(temporary, selection)
        text = readme(selection, self._name, _LOAD, ("LeRobot",))
        (temporary / README).write_text(text, encoding="utf-8")
        return self._carried(schema)

    def _carried(self, schema: Schema) -> Carried:
        kept = [f"{name} -> {feature_of(name)}" for name in schema.names("step")]
        kept.append("terminated, truncated -> next.terminated, next.truncated and next.done")
        kept.append("the column task, or the grouping columns -> the task")
        left = []
        if self._options.notes:
            kept.append(f"the catalog, schema and fields per episode -> {NOTES}")
        else:
            left = ["the catalog's other columns", "units and the names of slices"]
            names = schema.names("episode")
            left += [f"{name}: LeRobot has no field per episode" for name in names]
        return Carried(tuple(kept), tuple(left))


class _Frames:
    """The selection's episodes in order, and the features computed from them.

    Attributes:
        tasks: descriptions by task index; fps: frames a second.
    """

    def __init__(self, selection: EpisodeSelection) -> None:
        table = selection.episodes()
        descriptions = _task_descriptions(table, selection.schema.group_by)
        self.tasks = sorted(set(descriptions))
        codes = {task: code for code, task in enumerate(self.tasks)}
        self.fps = layout.frames_per_second(selection.schema.control_dt_s)
        self._selection = selection
        self._episodes = {
            "terminated": table.column("terminated").to_numpy().astype(bool),
            "truncated": table.column("truncated").to_numpy().astype(bool),
            "task_index": np.array([codes[task] for task in descriptions], np.int64),
        }

    def blocks(self) -> Iterator[tuple[Block, dict[str, np.ndarray]]]:
        """Each block with its computed features."""
        for block in blocks(self._selection):
            rows = {name: values[block.episodes] for name, values in self._episodes.items()}
            yield block, layout.own_columns(block, rows, self.fps)

    def own_stats(self) -> dict[str, Stats]:
        """Statistics of the computed features."""
        return {
            name: lerobot_schema.scalar_stats(computed[name] for _, computed in self.blocks())
            for name in layout.OWN_FEATURES
        }

    def episode_rows(
        self, block: Block, places: list[tuple[int, int]], columns: Mapping[str, np.ndarray]
    ) -> pa.Table:
        """One row per episode: its chunk, its data file, and statistics of `columns`."""
        tasks = [self.tasks[code] for code in self._episodes["task_index"][block.episodes]]
        chunks, files = np.array(places, np.int64).T
        rows: dict[str, Any] = {
            "episode_index": np.arange(block.episodes.start, block.episodes.stop),
            "tasks": pa.array([[task] for task in tasks], pa.list_(pa.string())),
            "length": block.lengths,
            "data/chunk_index": chunks,
            "data/file_index": files,
            "dataset_from_index": block.first_step + block.starts,
            "dataset_to_index": block.first_step + block.stops,
        }
        for name, values in columns.items():
            for stat, per_episode in lerobot_schema.episode_stats(values, block.lengths).items():
                rows[f"stats/{name}/{stat}"] = to_lists(per_episode)
        return pa.table(rows)


class _FileSeries:
    """Parquet files one after the other, each of whole episodes and at most `file_bytes`."""

    def __init__(self, root: Path, pattern: str, file_bytes: int) -> None:
        self._root = root
        self._pattern = pattern
        self._file_bytes = file_bytes
        self._number = -1
        self._bytes = 0
        self._writer: pq.ParquetWriter | None = None

    def write(
        self, table: pa.Table, lengths: np.ndarray, prefix: str = ""
    ) -> list[tuple[int, int]]:
        """Append whole episodes, in a new file when one is full; (chunk, file) of each episode.

        With a `prefix`, two columns are added: the chunk and the file of each row.
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
            places += [self._append(part, prefix)] * (stop - first)
            first = stop
        return places

    def _append(self, part: pa.Table, prefix: str) -> tuple[int, int]:
        if self._writer is None:
            self._number += 1
        chunk, file = divmod(self._number, layout.FILES_A_CHUNK)
        for name, value in (("chunk", chunk), ("file", file)) if prefix else ():
            column = pa.array(np.full(part.num_rows, value, np.int64))
            part = part.append_column(f"{prefix}/{name}_index", column)
        if self._writer is None:
            path = self._root / self._pattern.format(chunk_index=chunk, file_index=file)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(path, part.schema, compression="snappy")
        self._writer.write_table(part)
        self._bytes += part.nbytes
        return chunk, file

    def close(self) -> None:
        """Close the current file."""
        if self._writer is not None:
            self._writer.close()
        self._writer = None
        self._bytes = 0


def _feature_column(rows: np.ndarray) -> pa.Array:
    """A feature's column: LeRobot keeps shape (1,) as plain numbers."""
    return to_arrow(rows.reshape(-1) if rows.shape[1:] == (1,) else rows)


def _task_descriptions(table: pa.Table, group_by: tuple[str, str]) -> list[str]:
    """The description of each episode's task: the column `task`, or "SKILL on TERRAIN"."""
    terrains, skills = (table.column(name).to_pylist() for name in group_by)
    fallbacks = [f"{skill} on {terrain}" for skill, terrain in zip(skills, terrains, strict=True)]
    if "task" not in table.column_names or not pa.types.is_string(table.schema.field("task").type):
        return fallbacks
    tasks = table.column("task").to_pylist()
    return [task or fallback for task, fallback in zip(tasks, fallbacks, strict=True)]


def _write_tasks(path: Path, tasks: list[str]) -> None:
    """The tasks, with the metadata of a pandas frame with them as index, as LeRobot reads it."""
    table = pa.table({"task_index": np.arange(len(tasks)), "task": pa.array(tasks, pa.string())})
    text = {"pandas_type": "unicode", "numpy_type": "object"}
    whole = {"pandas_type": "int64", "numpy_type": "int64"}
    columns = {"task_index": whole | {"metadata": None}, "task": text | {"metadata": None}}
    nameless = {"name": None, "field_name": None, "metadata": {"encoding": "UTF-8"}}
    pandas = {
        "index_columns": ["task"],
        "column_indexes": [nameless | text],
        "columns": [
            {"name": name, "field_name": name} | column for name, column in columns.items()
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": None,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table.replace_schema_metadata({"pandas": json.dumps(pandas)}), path)


def _info(selection: EpisodeSelection, tasks: int, fps: float, file_mb: int) -> dict[str, Any]:
    schema = selection.schema
    return {
        "codebase_version": layout.VERSION,
        "robot_type": schema.robot,
        "total_episodes": len(selection),
        "total_frames": selection.steps,
        "total_tasks": tasks,
        "chunks_size": layout.FILES_A_CHUNK,
        "data_files_size_in_mb": file_mb,
        "video_files_size_in_mb": file_mb,
        "fps": fps,
        "splits": {"train": f"0:{len(selection)}"},
        "data_path": layout.DATA_PATH,
        "video_path": None,
        "features": layout.features(schema),
    }


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=1, allow_nan=False), encoding="utf-8")


def _write_notes(root: Path, selection: EpisodeSelection) -> None:
    """The notes: the schema; the catalog with the fields per episode."""
    _write_json(root / layout.SCHEMA_NOTE, selection.schema.to_json())
    catalog = selection.episodes().drop_columns(["part", "start"])
    path = root / layout.EPISODES_NOTE
    writer = None
    with ExitStack() as stack:
        for block in blocks(selection):
            table = catalog.slice(block.first, len(block.lengths))
            for name, values in block.read(selection.schema.names("episode")).items():
                table = table.append_column(f"{layout.NOTES_FIELD}{name}", to_arrow(values))
            if writer is None:
                opened = pq.ParquetWriter(path, table.schema, compression="zstd")
                writer = stack.enter_context(opened)
            writer.write_table(table)
