"""A format as another package would bring it: the plainest that the core's laws can be tried with.

A folder with the schema as JSON, the catalog as Parquet, and every field as it lies in memory.
Without notes the catalog has the lengths alone, and the schema the attribute of an import.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.files import join_inside
from gaitforge.datasets import DatasetError, Field, Schema
from gaitforge.datasets.formats import FORMATS, FormatEntry
from gaitforge.datasets.formats.protocol import (
    Advance,
    Carried,
    Exporter,
    ExportOptions,
    Importer,
    PartInput,
)
from gaitforge.datasets.formats.sources import (
    Span,
    blocks,
    check_finite,
    check_option,
    cut_parts,
    damage_named,
    identity,
    read_json,
    refuse,
    refuse_unreadable,
)
from gaitforge.datasets.selection import EpisodeSelection

NAME = "rows"
SCHEMA = "schema.json"
EPISODES = "episodes.parquet"


@dataclass(frozen=True)
class RowsOptions:
    """How a folder is read: `quality` says what its episodes are."""

    quality: str = "unknown"
    horizon: int = 0

    def __post_init__(self) -> None:
        check_option("horizon", self.horizon, "steps", int)


@dataclass(frozen=True)
class RowsWriting(ExportOptions):
    """Whether the catalog is written."""

    notes: bool = True


class RowsImporter(Importer):
    Options = RowsOptions

    def __init__(self, source: str, options: RowsOptions) -> None:
        self._folder = folder = Path(source)
        schema_file = join_inside(folder, SCHEMA)
        tree = read_json(schema_file, "folder of rows")
        episodes = join_inside(folder, EPISODES)
        with damage_named(schema_file):
            try:
                self.schema = Schema.from_json(tree)
            except DatasetError as error:
                raise ValueError(error) from None
        if not episodes.is_file():
            refuse(episodes, "", "no such file")
        with open(episodes, "rb") as stream:
            whole = stream.read(4) == b"PAR1"
        if not whole:
            refuse_unreadable(episodes, "Parquet", "it has another beginning")
        with damage_named(episodes):
            self._table = pq.read_table(episodes, page_checksum_verification=True)
            lengths = self._table.column("length").to_numpy().astype(np.int64)
        self._paths = {field.name: self._path(field, lengths) for field in self.schema.fields}
        self.files = [schema_file, episodes, *self._paths.values()]
        self.identity = identity(self.files, options)
        self._quality = options.quality
        self.parts = cut_parts(episodes, "length", lengths, self.schema.fields, "cut it in two")
        self.carried = Carried(kept=tuple(self._paths))

    def _path(self, field: Field, lengths: np.ndarray) -> Path:
        path = join_inside(self._folder, f"{field.name}.bin")
        if not path.is_file():
            refuse(path, "", "no such file")
        rows = lengths.sum() if field.per == "step" else len(lengths)
        size = int(rows) * _row_bytes(field)
        if path.stat().st_size != size or not len(lengths) or lengths.min() < 1:
            refuse_unreadable(path, f"{rows} rows", f"{path.stat().st_size} bytes, not {size}")
        return path

    @classmethod
    def recognises(cls, source: Path) -> bool:
        return (source / EPISODES).is_file() or any(source.glob("*.bin"))

    def read_part(self, part: Span) -> PartInput:
        arrays = {}
        for field in self.schema.fields:
            first, rows = part.first_step, part.n_steps
            if field.per == "episode":
                first, rows = part.first, len(part.lengths)
            path = self._paths[field.name]
            count = rows * _row_bytes(field) // np.dtype(field.dtype).itemsize
            offset = first * _row_bytes(field)
            values = np.fromfile(path, field.dtype, count, offset=offset)
            arrays[field.name] = values.reshape(rows, *field.shape)
            check_finite(path, field.name, arrays[field.name], first)
        table = self._table.slice(part.first, len(part.lengths))
        if table.column_names == ["length"]:
            return PartInput(arrays, self.catalog(part, expert=self._quality))
        return PartInput(arrays, table)


class RowsExporter(Exporter):
    Options = RowsWriting

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        temporary.mkdir()
        schema = selection.schema
        table = selection.episodes().drop_columns(["part", "start"])
        if not self._options.notes:
            schema = replace(schema, attributes={"format": NAME})
            table = table.select(["length"])
        (temporary / SCHEMA).write_text(json.dumps(schema.to_json()))
        pq.write_table(table, temporary / EPISODES, write_page_checksum=True)
        names = selection.schema.names()
        for block in blocks(selection):
            for name, values in block.read(names).items():
                with open(temporary / f"{name}.bin", "ab") as stream:
                    stream.write(np.ascontiguousarray(values).data)
            advance(block.n_steps)
        return Carried(kept=tuple(names))


def _row_bytes(field: Field) -> int:
    return int(np.prod(field.shape, dtype=np.int64)) * np.dtype(field.dtype).itemsize


ENTRY = FormatEntry(
    "values as they lie in memory", "folder",
    f"{__name__}:RowsImporter", f"{__name__}:RowsExporter",
)  # fmt: skip


def register() -> None:
    """Make the format known in a process of its own."""
    FORMATS[NAME] = ENTRY


@contextmanager
def registered() -> Iterator[None]:
    """The format is known in the block."""
    register()
    try:
        yield
    finally:
        del FORMATS[NAME]


def spoil(source: Path, rows: slice = slice(5, 6), field: str = "action") -> None:
    """Make some numbers of a field infinite."""
    values = np.fromfile(source / f"{field}.bin", "<f4")
    values[rows] = np.inf
    values.tofile(source / f"{field}.bin")


def source_of(path: Path, lengths: list[int]) -> Path:
    """A folder of random episodes without notes."""
    schema = Schema((Field("obs", (3,)), Field("action", (2,)), Field("reward")), 0.02, "hopper")
    path.mkdir()
    (path / SCHEMA).write_text(json.dumps(schema.to_json()))
    pq.write_table(pa.table({"length": lengths}), path / EPISODES)
    rng = np.random.default_rng(0)
    for field in schema.fields:
        shape = (sum(lengths), *field.shape)
        rng.normal(size=shape).astype(field.dtype).tofile(path / f"{field.name}.bin")
    return path
