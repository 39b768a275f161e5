"""A selection as a Minari data set, written through the ``minari`` library; see ``minari_layout``.

To use it there, give ``load_dataset`` its id with the folder that holds it as MINARI_DATASETS_PATH,
or open ``minari.MinariDataset(folder / "data")``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from datasets.catalog.catalog import STORE_COLUMNS
from datasets.errors import DatasetError, listed
from datasets.formats.interface import Advance, Carried
from datasets.formats.minari.metadata import LARGE_SEED, catalog_seed
from datasets.formats.minari.schema import FORMATS, NOTES, most_steps, schema_note
from datasets.formats.sources import bounded_units, check_room
from datasets.schema import Field
from datasets.selection.selection import Selection

NEEDED = ("obs", "action", "reward")
_ROWS = 4096
"""Catalog rows that are turned into Python's objects at a time, about 1 kB each."""


@dataclass(frozen=True)
class MinariExportOptions:
    """How a data set is written.

    Attributes:
        storage: "hdf5", "arrow" or "parquet".
        dataset_id: Minari's id; empty for the destination's name.
        author, description: for its metadata.
        notes: keep the schema and the catalog in the metadata, so that an import gives back the
            same store; other readers may ignore them.
    """

    storage: str = "hdf5"
    dataset_id: str = ""
    author: str = ""
    description: str = ""
    notes: bool = True


class MinariExporter:
    """See ``interface.Exporter``."""

    Options = MinariExportOptions

    def __init__(self, options: MinariExportOptions) -> None:
        if options.storage not in FORMATS:
            raise DatasetError(f"option storage must be one of {listed(FORMATS)}")
        self._options = options
        self._id = ""

    def check(self, selection: Selection, destination: Path) -> None:
        """See ``interface.Exporter``."""
        from minari.dataset.minari_dataset import DATASET_ID_RE

        schema, address = selection.store.schema, selection.store.address
        if missing := [name for name in NEEDED if name not in schema.names("step")]:
            raise DatasetError(
                f"a Minari data set needs the fields {listed(NEEDED)} a step; {address} lacks "
                f"{listed(missing)}"
            )
        if schema.field("reward").shape:
            raise DatasetError("a Minari data set needs one reward a step")
        if not schema.field("obs").shape or not schema.field("action").shape:
            raise DatasetError("a Minari data set needs obs and action of at least one number each")
        name = destination.name if "-v" in destination.name else f"{destination.name}-v0"
        self._id = self._options.dataset_id or name.replace(".", "-")
        if not DATASET_ID_RE.fullmatch(self._id):
            raise DatasetError(
                f"'{self._id}' is no id of a Minari data set; give dataset_id=NAMESPACE/NAME-v0"
            )
        if self._options.storage == "hdf5":
            check_room(selection, destination, ", or with storage=arrow")
        most, longest = most_steps(self._options.storage), int(selection.lengths.max())
        if most is not None and longest > most:
            raise DatasetError(
                f"Minari gives back {most:,} steps of an episode from its {self._options.storage} "
                f"storage, and one here has {longest:,}; export with storage=hdf5"
            )
        for _ in _seeds(selection, selection.rows):
            pass

    def write(self, selection: Selection, temporary: Path, advance: Advance) -> Carried:
        """See ``interface.Exporter``."""
        import minari
        from minari.dataset.minari_storage import MinariStorage

        schema = selection.store.schema
        temporary.mkdir()
        storage = MinariStorage.new(
            temporary / "data",
            observation_space=_space(schema.field("obs")),
            action_space=_space(schema.field("action")),
            data_format=self._options.storage,
            jpeg_encoding=False,
        )
        # The library measures the whole folder after every episode, in time quadratic in their
        # number; once at the end gives the same figure.
        measure = storage.get_size
        storage.get_size = lambda: 0.0
        writer = _Episodes(selection, advance)
        storage.update_episodes(writer.buffers())
        storage.update_episode_metadata(writer.notes(self._options.notes))
        storage.get_size = measure
        metadata: dict[str, Any] = {
            "dataset_id": self._id,
            "minari_version": minari.__version__,
            "dataset_size": float(measure()),
        }
        if self._options.author:
            metadata["author"] = {self._options.author}
        if self._options.description:
            metadata["description"] = self._options.description
        if self._options.notes:
            metadata[NOTES] = schema_note(writer.kept_schema, writer.columns)
        storage.update_metadata(metadata)
        return self._carried(writer)

    def _carried(self, writer: _Episodes) -> Carried:
        schema = writer.kept_schema
        kept = [
            "obs -> observations, final_obs their last",
            "action -> actions",
            "reward -> rewards",
            *(f"{name} -> infos/{name}" for name in writer.infos),
            "seed, terminated and truncated -> theirs",
        ]
        left = [
            f"{name}: Minari has no place for a field an episode"
            for name in writer.schema.names()
            if name not in schema.names()
        ]
        notes = ["observation and action spaces are unbounded: a store does not know bounds"]
        if "final_obs" not in schema.names():
            notes.append("the final observation is unknown: the last one stands there again")
        if self._options.notes:
            kept.append(f"the catalog and schema -> {NOTES} in the metadata")
        else:
            left += ["the rest of the catalog", "the schema's units and names"]
        return Carried(tuple(kept), tuple(left), tuple(notes))


class _Episodes:
    """A selection's episodes as Minari's buffers, read a bounded unit at a time."""

    def __init__(self, selection: Selection, advance: Advance) -> None:
        self._selection = selection
        self._advance = advance
        self.columns = pa.schema(
            [each for each in selection.catalog.schema if each.name not in STORE_COLUMNS]
        )
        self.schema = selection.store.schema
        self.infos = [name for name in self.schema.names("step") if name not in NEEDED]
        finals = {"final_obs", *(f"final_{name}" for name in self.infos)}
        kept = [
            field
            for field in self.schema.fields
            if field.per == "step" or (field.name in finals and self._is_final(field))
        ]
        self.kept_schema = replace(self.schema, fields=tuple(kept))
        self._finals = [field.name for field in kept if field.per == "episode"]

    def _is_final(self, field: Field) -> bool:
        step = self.schema.field(field.name.removeprefix("final_"))
        return (step.shape, step.dtype) == (field.shape, field.dtype)

    def buffers(self) -> Iterator[Any]:
        """Every episode in order."""
        from minari.data_collector import EpisodeBuffer

        names = [*self.schema.names("step"), *self._finals]
        catalog = self._selection.catalog
        ends = [catalog.numbers(name) for name in ("terminated", "truncated")]
        for unit in bounded_units(self._selection):
            arrays = {name: self._selection.read_unit(name, unit) for name in names}
            members = self._selection.rows[unit.first : unit.stop]
            seeds = _seeds(self._selection, members)
            starts, lengths = (each.tolist() for each in self._selection.unit_rows(unit))
            for number, (member, seed) in enumerate(zip(members, seeds, strict=True)):
                length = lengths[number]
                rows = slice(starts[number], starts[number] + length)
                infos = {
                    name: _listed(self._extended(name, arrays, rows, number)) for name in self.infos
                }
                yield EpisodeBuffer(
                    seed=seed,
                    observations=_in_space(self._extended("obs", arrays, rows, number)),  # pyright: ignore[reportArgumentType]
                    actions=_in_space(arrays["action"][rows]),  # pyright: ignore[reportArgumentType]
                    rewards=arrays["reward"][rows],  # pyright: ignore[reportArgumentType]
                    terminations=_at_end(length, ends[0][member]),  # pyright: ignore[reportArgumentType]
                    truncations=_at_end(length, ends[1][member]),  # pyright: ignore[reportArgumentType]
                    infos=infos or None,
                )
                self._advance(length)

    def _extended(
        self, name: str, arrays: Mapping[str, np.ndarray], rows: slice, number: int
    ) -> np.ndarray:
        """(T + 1, ...) the rows and what came after the last step, or the last one again."""
        key, steps = "final_obs" if name == "obs" else f"final_{name}", arrays[name][rows]
        last = arrays[key][number] if key in self._finals else steps[-1]
        return np.concatenate([steps, np.asarray(last)[None]])

    def notes(self, with_rows: bool) -> Iterator[dict[str, Any]]:
        """What the metadata of each episode hold beside Minari's own."""
        for table in _catalog_rows(self._selection, self._selection.rows, self.columns.names):
            for row in table.to_pylist():
                yield {NOTES: json.dumps(row)} if with_rows else {}


def _catalog_rows(
    selection: Selection, rows: np.ndarray, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Some columns of the catalog's rows, a bounded number at a time."""
    for first in range(0, len(rows), _ROWS):
        yield selection.catalog.rows(rows[first : first + _ROWS], names)


def _seeds(selection: Selection, rows: np.ndarray) -> Iterator[int | None]:
    """The seeds of some episodes; DatasetError for one that is none."""
    large = [LARGE_SEED] if LARGE_SEED in selection.catalog.column_names else []
    for table in _catalog_rows(selection, rows, ["seed", *large]):
        yield from map(catalog_seed, *(column.to_pylist() for column in table.columns))


def _space(field: Field) -> Any:
    """The unbounded space of a field."""
    from gymnasium import spaces

    dtype: Any = np.dtype(field.dtype)
    if dtype.kind == "b":
        return spaces.MultiBinary(field.shape)
    if dtype.kind == "f":
        return spaces.Box(-np.inf, np.inf, field.shape, dtype)
    limits = np.iinfo(dtype)
    return spaces.Box(limits.min, limits.max, field.shape, dtype)


def _in_space(rows: np.ndarray) -> np.ndarray:
    """Rows in the dtype of their space, which for booleans is int8."""
    return rows.astype(np.int8) if rows.dtype == np.bool_ else rows


def _at_end(length: int, flag: bool) -> np.ndarray:
    flags = np.zeros(length, bool)
    flags[-1] = flag
    return flags


def _listed(rows: np.ndarray) -> Any:
    """Rows as the library's Arrow storage takes them: it cannot decode arrays of one dimension."""
    return rows if rows.ndim > 1 else list(rows)
