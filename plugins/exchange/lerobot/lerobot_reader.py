"""Import of LeRobot datasets, version 3, without the lerobot package."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.common.errors import DatasetError, amount
from gaitforge.datasets.formats import sources
from gaitforge.datasets.formats.protocol import Carried, Importer, NoOptions, PartInput
from gaitforge.datasets.formats.sources import Span, check_notes, read_json, refuse
from gaitforge.datasets.schema import DTYPES, STREAM_KEYS, Field, Schema
from gaitforge.plugins.exchange.lerobot import lerobot_schema as layout
from gaitforge.plugins.exchange.lerobot.files import LerobotFolder
from gaitforge.plugins.exchange.lerobot.parquet_rows import ParquetRows, to_rows

_FLAGS = (*layout.ENDINGS, layout.SUCCESS)
_REMEDY = f"delete the folder {layout.NOTES}"


class LerobotImporter(Importer):
    """See `protocol.Importer`."""

    def __init__(self, source: str, options: NoOptions) -> None:
        root = Path(source)
        self._folder = folder = LerobotFolder(root)
        self.files = folder.files
        self._notes: ParquetRows | None = None
        if (root / layout.SCHEMA_NOTE).is_file():
            self._notes = notes = ParquetRows(root / layout.EPISODES_NOTE)
            self.files = [*self.files, root / layout.SCHEMA_NOTE, notes.path]
            self.schema = _schema_of_notes(root / layout.SCHEMA_NOTE, folder)
            self._features = {name: layout.feature_of(name) for name in self.schema.names("step")}
            self.carried = Carried(kept=("everything that gaitforge wrote",))
            if not np.array_equal(notes.read_integers(["length"])["length"], folder.lengths):
                refuse(notes.path, "length", f"not the dataset's episodes; {_REMEDY}")
        else:
            self._features, self.schema, self.carried = _described(folder)
        stats = {name: folder.stats.get(feature) for name, feature in self._features.items()}
        self.statistics = {name: entry for name, entry in stats.items() if isinstance(entry, dict)}
        flags = (layout.TERMINATED, layout.TRUNCATED) if self._notes else _FLAGS
        self._flags = [name for name in flags if name in folder.features]
        fields = {feature: self.schema.field(name) for name, feature in self._features.items()}
        self._kinds = {feature: (field.shape, field.dtype) for feature, field in fields.items()}
        self._kinds |= dict.fromkeys(self._flags, ((), "bool"))
        if not self._notes and "task_index" in folder.features:
            self._kinds["task_index"] = (), "int64"
        self.identity = sources.identity(self.files)
        self.parts = sources.cut_spans(folder.lengths, self.schema.fields)

    @classmethod
    def recognises(cls, source: Path) -> bool:
        """See `protocol.Importer`."""
        meta = source / Path(layout.INFO).parent
        return (source / layout.INFO).is_file() or any(meta.glob("episodes*"))

    def read_part(self, part: Span) -> PartInput:
        """See `protocol.Importer`."""
        arrays = self._folder.read(part, self._kinds)
        steps = {name: arrays[feature] for name, feature in self._features.items()}
        ends = {name.removeprefix("next."): arrays[name][part.stops - 1] for name in self._flags}
        if self._notes is not None:
            return self._with_notes(self._notes, steps, ends, part)
        if layout.SUCCESS in arrays:
            ends["success"] = np.logical_or.reduceat(arrays[layout.SUCCESS], part.starts)
        return PartInput(steps, self._columns(steps, ends, arrays.get("task_index"), part))

    def _with_notes(
        self,
        notes: ParquetRows,
        steps: Mapping[str, np.ndarray],
        ends: Mapping[str, np.ndarray],
        part: Span,
    ) -> PartInput:
        path = notes.path
        first = part.first
        table = notes.read(notes.schema.names, first, part.episodes.stop)
        arguments: dict[str, Any] = {"remedy": f"{_REMEDY} to use the arrays", **ends}
        if "reward" in steps and steps["reward"].ndim == 1:
            arguments["rewards"] = steps["reward"]
        check_notes(path, "", table, part, **arguments)
        arrays = dict(steps)
        for name in self.schema.names("episode"):
            key = f"{layout.NOTES_FIELD}{name}"
            field = self.schema.field(name)
            if key not in table.column_names:
                refuse(path, key, "the column is missing")
            values = to_rows(path, key, table.column(key), field.shape, field.dtype, first)
            arrays[name], table = values, table.drop_columns([key])
        return PartInput(arrays, table)

    def _columns(
        self,
        steps: Mapping[str, np.ndarray],
        ends: dict[str, np.ndarray],
        task_index: np.ndarray | None,
        part: Span,
    ) -> dict[str, Any]:
        """Catalog columns; `done` means truncated where nothing else says how episodes ended."""
        folder = self._folder
        done = ends.pop("done", None)
        columns: dict[str, Any] = dict(ends)
        if done is not None and not {"terminated", "truncated"} & ends.keys():
            columns["truncated"] = done
        if "reward" in steps:
            columns["return"] = sources.episode_returns(steps["reward"], part.lengths)
        if task_index is not None and folder.tasks:
            tasks = [folder.tasks.get(n, "unknown") for n in task_index[part.starts].tolist()]
            columns |= {"skill": tasks, "task": tasks}
        if folder.splits is not None:
            columns["split"] = folder.splits[part.episodes].tolist()
        source = {"robot": self.schema.robot, "simulator": "LeRobot dataset"}
        return self.catalog(part, **source, **columns)


def _schema_of_notes(path: Path, folder: LerobotFolder) -> Schema:
    """The schema in the notes, whose fields per step must be the dataset's features."""
    try:
        schema = Schema.from_json(read_json(path, "LeRobot dataset"))
    except DatasetError as error:
        refuse(path, "", f"gaitforge's notes are damaged: {error}")
    for name in schema.names("step"):
        field = schema.field(name)
        feature = folder.features.get(layout.feature_of(name), {})
        shape = layout.feature_shape(field)
        if feature.get("dtype") != field.dtype or tuple(feature["shape"]) != shape:
            refuse(
                path,
                name,
                f"not the dataset's feature {layout.feature_of(name)}; delete {layout.NOTES}",
            )
    return schema


def _described(folder: LerobotFolder) -> tuple[dict[str, str], Schema, Carried]:
    """Field -> feature, the schema, and what is converted, for a dataset without notes."""
    info = folder.info
    features = folder.features
    fields: dict[str, Field] = {}
    names: dict[str, str] = {}
    kept = []
    left = []
    for feature in features:
        if feature in (*layout.COUNTERS, *_FLAGS):
            continue
        name, field = _field_of(feature, features[feature])
        if isinstance(field, Field) and name not in fields:
            fields[name] = field
            names[name] = feature
            kept.append(f"{feature} -> {name}")
        else:
            left.append(f"{feature}: {field if isinstance(field, str) else f'{name} is taken'}")
    if folder.unused:
        left.append(f"{amount(folder.unused, 'row')} of data after the last episode")
    if not fields:
        refuse(folder.files[0], "features", "none of them is one of numbers")
    if flags := [name for name in _FLAGS if name in features]:
        kept.append(f"{', '.join(flags)} -> columns of the catalog")
    notes = ["timestamps: a frame's number in its episode times the time step"]
    if layout.TERMINATED not in features and layout.TRUNCATED not in features:
        notes.append(
            "next.done at an episode's last frame: it was complete (truncated)"
            if layout.DONE in features
            else "no feature says how episodes end: they count as cut off"
        )
    if folder.tasks:
        kept.append("the task of an episode's first frame -> skill and task")
    channels = {name: features[feature].get("names") for name, feature in names.items()}
    channels = {name: labels for name, labels in channels.items() if labels}
    attributes = {"format": "lerobot", "channel_names": channels}
    robot = str(info.get("robot_type") or "unknown")
    schema = Schema(tuple(fields.values()), 1.0 / info["fps"], robot, attributes)
    return names, schema, Carried(tuple(kept), tuple(left), tuple(notes))


def _field_of(feature: str, spec: Mapping[str, Any]) -> tuple[str, Field | str]:
    """The field for a feature, or why there is none."""
    main = {value: key for key, value in layout.MAIN_FEATURES.items()}
    name = main.get(feature) or sources.field_name(feature)
    name = f"feature_{name}" if name in STREAM_KEYS or not name[0].isalpha() else name
    dtype = spec["dtype"]
    shape = tuple(spec["shape"])
    if dtype in ("image", "video"):
        return name, f"{dtype}s are not imported: a store holds numbers only"
    if dtype not in DTYPES:
        return name, f"dtype {dtype} is not one of numbers"
    if shape == (1,) and name not in ("obs", "action"):
        shape = ()
    slices = {"state": (0, shape[0])} if name == "obs" and len(shape) == 1 else {}
    try:
        text = f"{feature} of LeRobot"
        return name, Field(name, shape, dtype, description=text, slices=slices)
    except DatasetError as error:
        return name, str(error)
