"""LeRobot datasets of version 3 as a store, without the lerobot package; see ``lerobot_schema``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from datasets.errors import DatasetError
from datasets.formats.interface import Carried, PartInput
from datasets.formats.lerobot.files import LerobotFolder, read_json
from datasets.formats.lerobot.schema import (
    COUNTERS,
    DONE,
    ENDINGS,
    EPISODES_NOTE,
    MAIN_FEATURES,
    NOTED_FIELD,
    NOTES,
    SCHEMA_NOTE,
    SUCCESS,
    TERMINATED,
    TRUNCATED,
    feature_of,
    feature_shape,
)
from datasets.formats.notes import check_noted
from datasets.formats.parquet_rows import ParquetRows, is_list, to_rows
from datasets.formats.sources import (
    catalog_columns,
    episode_returns,
    identity,
    pack_episodes,
    refuse,
)
from datasets.schema import DTYPES, STREAM_KEYS, Field, Schema

_FLAGS = (*ENDINGS, SUCCESS)


@dataclass(frozen=True)
class LerobotOptions:
    """How a dataset becomes a store: nothing of it is a matter of choice."""


class LerobotImporter:
    """Reads a dataset's folder; see ``interface.Importer``.

    Raises:
        DatasetError: names file and key.
    """

    Options: ClassVar[type[Any]] = LerobotOptions

    def __init__(self, source: str, options: LerobotOptions) -> None:
        root = Path(source)
        self._folder = folder = LerobotFolder(root)
        self.files = folder.files
        self._notes: ParquetRows | None = None
        if (root / SCHEMA_NOTE).is_file():
            self._notes = ParquetRows(root / EPISODES_NOTE)
            self.files = [*self.files, root / SCHEMA_NOTE, self._notes.path]
            self.schema = _noted_schema(root / SCHEMA_NOTE, folder)
            self._features = {name: feature_of(name) for name in self.schema.names("step")}
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            self._check_noted_lengths(self._notes)
            self._flags = [name for name in (TERMINATED, TRUNCATED) if name in folder.features]
        else:
            self._features, self.schema, self.carried = _described(folder)
            self._flags = [name for name in _FLAGS if name in folder.features]
        self.identity = identity(self.files)
        row_bytes = sum(each.row_bytes for each in self.schema.fields if each.per == "step")
        self.part_lengths = pack_episodes(folder.lengths, row_bytes)
        self._firsts = np.cumsum([0, *map(len, self.part_lengths)])

    def close(self) -> None:
        """See ``interface.Importer``."""
        self._folder.close()
        if self._notes is not None:
            self._notes.close()

    def read_part(self, number: int) -> PartInput:
        """See ``interface.Importer``."""
        first, stop = (int(each) for each in self._firsts[number : number + 2])
        fields = {feature: self.schema.field(name) for name, feature in self._features.items()}
        single = ["task_index"] if not self._notes and "task_index" in self._folder.features else []
        parts: dict[str, list[np.ndarray]] = {name: [] for name in (*fields, *self._flags, *single)}
        for rows in self._folder.frames(first, stop):
            table = self._folder.read(rows, list(parts))
            for name, found in parts.items():
                column, path = table.column(name), rows.file.path
                shape = fields[name].shape if name in fields else ()
                dtype = fields[name].dtype if name in fields else _dtype_of_own(name)
                wanted = shape if is_list(column.type) or shape != (1,) else ()
                values = to_rows(path, name, column, wanted, dtype, rows.first)
                found.append(values.reshape(-1, *shape))
        arrays = {name: np.concatenate(found) for name, found in parts.items()}
        steps = {name: arrays[feature] for name, feature in self._features.items()}
        if self._notes is not None:
            return self._with_notes(self._notes, steps, arrays, first, stop)
        return PartInput(steps, self._columns(steps, arrays, first, stop), {})

    def _check_noted_lengths(self, notes: ParquetRows) -> None:
        table = notes.read(["length"], 0, notes.num_rows)
        lengths = to_rows(notes.path, "length", table.column("length"), (), "int64")
        if not np.array_equal(lengths, self._folder.lengths):
            refuse(notes.path, "length", f"not the dataset's episodes; delete the folder {NOTES}")

    def _with_notes(
        self,
        notes: ParquetRows,
        steps: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],
        first: int,
        stop: int,
    ) -> PartInput:
        table = notes.read(notes.schema.names, first, stop)
        self._check_noted(notes, table, steps, arrays, first)
        per_episode = {}
        for name in self.schema.names("episode"):
            key, field = f"{NOTED_FIELD}{name}", self.schema.field(name)
            if key not in table.column_names:
                refuse(notes.path, key, "the column is missing")
            per_episode[name] = to_rows(
                notes.path, key, table.column(key), field.shape, field.dtype, first
            )
            table = table.drop_columns([key])
        return PartInput(steps, table, per_episode)

    def _check_noted(
        self,
        notes: ParquetRows,
        table: pa.Table,
        steps: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],
        first: int,
    ) -> None:
        lengths = self._folder.lengths[first : first + table.num_rows]
        lasts, rewards = np.cumsum(lengths) - 1, steps.get("reward")
        check_noted(
            notes.path,
            "",
            table,
            first,
            lengths,
            remedy=f"delete the folder {NOTES} to go by these",
            rewards=rewards if rewards is not None and rewards.ndim == 1 else None,
            **{
                name.removeprefix("next."): arrays[name][lasts]
                for name in (TERMINATED, TRUNCATED)
                if name in arrays
            },
        )

    def _columns(
        self,
        steps: Mapping[str, np.ndarray],
        arrays: Mapping[str, np.ndarray],
        first: int,
        stop: int,
    ) -> dict[str, Any]:
        folder, lengths = self._folder, self._folder.lengths[first:stop]
        lasts = np.cumsum(lengths) - 1
        known: dict[str, Any] = {}
        if TERMINATED in arrays or TRUNCATED in arrays:
            for name in (TERMINATED, TRUNCATED):
                if name in arrays:
                    known[name.removeprefix("next.")] = arrays[name][lasts]
        elif DONE in arrays:
            known["truncated"] = arrays[DONE][lasts]
        if SUCCESS in arrays:
            known["success"] = np.logical_or.reduceat(arrays[SUCCESS], lasts + 1 - lengths)
        if "reward" in steps:
            known["return"] = episode_returns(steps["reward"], lengths)
        if "task_index" in arrays and folder.tasks:
            numbers = arrays["task_index"][lasts + 1 - lengths].tolist()
            words = [folder.tasks.get(number, "unknown") for number in numbers]
            known |= {"skill": words, "task": words}
        if folder.splits is not None:
            known["split"] = folder.splits[first:stop].tolist()
        return catalog_columns(
            first,
            lengths,
            self.identity,
            robot=self.schema.robot,
            simulator="LeRobot dataset",
            **known,
        )


def _dtype_of_own(feature: str) -> str:
    return "bool" if feature in _FLAGS else "int64"


def _noted_schema(path: Path, folder: LerobotFolder) -> Schema:
    """The schema that an export kept, whose fields a step must be the dataset's features."""
    try:
        schema = Schema.from_json(read_json(path))
    except DatasetError as error:
        refuse(path, "", f"gaitforge's notes are damaged: {error}")
    for name in schema.names("step"):
        field, given = schema.field(name), folder.features.get(feature_of(name), {})
        if given.get("dtype") != field.dtype or tuple(given["shape"]) != feature_shape(field):
            refuse(path, name, f"not the dataset's feature {feature_of(name)}; delete {NOTES}")
    return schema


def _described(folder: LerobotFolder) -> tuple[dict[str, str], Schema, Carried]:
    """Field -> feature, the schema, and what is carried over, for a dataset of others."""
    info = folder.info
    fields: dict[str, Field] = {}
    names: dict[str, str] = {}
    kept, left = [], []
    for feature, given in folder.features.items():
        if feature in (*COUNTERS, *_FLAGS):
            continue
        name, field = _field_of(feature, given)
        if isinstance(field, str) or name in fields:
            left.append(f"{feature}: {field if isinstance(field, str) else f'{name} is taken'}")
            continue
        fields[name], names[name] = field, feature
        kept.append(f"{feature} -> {name}")
    if not fields:
        refuse(folder.files[0], "features", "none of them is one of numbers")
    if there := [name for name in _FLAGS if name in folder.features]:
        kept.append(f"{', '.join(there)} -> columns of the catalog")
    notes = ["timestamps: a frame's number in its episode by the rate"]
    if TERMINATED not in folder.features and TRUNCATED not in folder.features:
        notes.append(
            "next.done at an episode's last frame says that it was complete (truncated)"
            if DONE in folder.features
            else "no feature says how episodes end: they count as cut off"
        )
    if folder.tasks:
        kept.append("the task of an episode's first frame -> skill and task")
    channels = {
        name: folder.features[feature]["names"]
        for name, feature in names.items()
        if folder.features[feature].get("names")
    }
    schema = Schema(
        tuple(fields.values()),
        1.0 / info["fps"],
        str(info.get("robot_type") or "unknown"),
        {"format": "lerobot", "channel_names": channels},
    )
    return names, schema, Carried(tuple(kept), tuple(left), tuple(notes))


def _field_of(feature: str, given: Mapping[str, Any]) -> tuple[str, Field | str]:
    """The field for a feature, or why there is none."""
    main = {value: key for key, value in MAIN_FEATURES.items()}
    name = main.get(feature) or re.sub(r"[^a-z0-9_]", "_", feature.lower())
    name = f"feature_{name}" if name in STREAM_KEYS or not name[0].isalpha() else name
    if given["dtype"] in ("image", "video"):
        return name, f"{given['dtype']}s are not imported, for a store holds numbers alone"
    if given["dtype"] not in DTYPES:
        return name, f"dtype {given['dtype']} is not one of numbers"
    shape = tuple(given["shape"])
    if shape == (1,) and name not in ("obs", "action"):
        shape = ()
    slices = {"state": (0, shape[0])} if name == "obs" and len(shape) == 1 else {}
    try:
        field = Field(
            name, shape, given["dtype"], description=f"{feature} of LeRobot", slices=slices
        )
    except DatasetError as error:
        return name, str(error)
    return name, field
