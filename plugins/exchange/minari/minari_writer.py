"""Export of a selection as a Minari dataset, written through the `minari` library.

To load it, give `load_dataset` its id, with the folder above it as MINARI_DATASETS_PATH, or open
`minari.MinariDataset(folder / "data")`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError
from gaitforge.datasets.catalog.catalog import STORE_COLUMNS
from gaitforge.datasets.formats.protocol import (
    README,
    Advance,
    Carried,
    Exporter,
    ExportOptions,
    readme,
)
from gaitforge.datasets.formats.sources import blocks, check_fields, check_room
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection import EpisodeSelection, final_of
from gaitforge.datasets.storage.about import read_about
from gaitforge.plugins.exchange.minari.minari_schema import (
    LARGE_SEED,
    NOTES,
    catalog_seed,
    minari_library,
    most_steps,
    schema_note,
)

NEEDED = ("obs", "action", "reward")
_ROWS = 4096
"""Catalog rows that are converted to Python objects at a time, about 1 kB each."""


@dataclass(frozen=True)
class MinariExportOptions(ExportOptions):
    """How a dataset is written.

    Attributes:
        storage: "hdf5", "arrow" or "parquet".
        dataset_id: Minari's id; empty for the destination's name.
        author, description: for its metadata; empty for what the store says.
        notes: embed the schema and the catalog in the metadata, so that an import gives back the
            same store; other readers ignore them.
        actions: see `ExportOptions`.
    """

    storage: Annotated[str, ("hdf5", "arrow", "parquet")] = "hdf5"
    dataset_id: str = ""
    author: str = ""
    description: str = ""
    notes: bool = True


class MinariExporter(Exporter):
    """See `protocol.Exporter`."""

    Options = MinariExportOptions

    def __init__(self, options: MinariExportOptions) -> None:
        super().__init__(options)
        self._id = ""

    def check(self, selection: EpisodeSelection, destination: Path) -> None:
        """See `protocol.Exporter`."""
        from minari.dataset.minari_dataset import DATASET_ID_RE

        check_fields(selection, "a Minari dataset", NEEDED)
        schema = selection.schema
        storage = self._options.storage
        if not schema.field("obs").shape or not schema.field("action").shape:
            raise DatasetError("a Minari dataset needs obs and action of at least one number each")
        name = destination.name if "-v" in destination.name else f"{destination.name}-v0"
        self._id = self._options.dataset_id or name.replace(".", "-")
        if not DATASET_ID_RE.fullmatch(self._id):
            problem = "is no id of a Minari dataset; give dataset_id=NAMESPACE/NAME-v0"
            raise DatasetError(f"'{self._id}' {problem}")
        if storage == "hdf5":
            check_room(selection, destination, ", or with storage=arrow")
        most = most_steps(storage)
        longest = int(selection.lengths.max())
        if most is not None and longest > most:
            limit = f"Minari reads back {most:,} steps of an episode from its {storage} storage"
            raise DatasetError(f"{limit}, and one here has {longest:,}; export with storage=hdf5")
        for _ in _seeds(selection, selection.rows):
            pass

    def write(self, selection: EpisodeSelection, temporary: Path, advance: Advance) -> Carried:
        """See `protocol.Exporter`."""
        minari = minari_library()
        from minari.dataset.minari_storage import MinariStorage

        schema = selection.schema
        options = self._options
        temporary.mkdir()
        storage = MinariStorage.new(
            temporary / "data",
            observation_space=_space(schema.field("obs")),
            action_space=_space(schema.field("action")),
            data_format=options.storage,
            jpeg_encoding=False,
        )
        # The library measures the whole folder after every episode, in time quadratic in their
        # number; once at the end gives the same figure.
        measure = storage.get_size
        storage.get_size = lambda: 0.0
        writer = _Episodes(selection, advance)
        storage.update_episodes(writer.buffers())
        storage.update_episode_metadata(writer.notes(options.notes))
        storage.get_size = measure
        metadata: dict[str, Any] = {
            "dataset_id": self._id,
            "minari_version": minari.__version__,
            "dataset_size": float(measure()),
            **_about(selection, options),
            NOTES: schema_note(writer.kept_schema, writer.columns) if options.notes else None,
        }
        text = readme(selection, self._id, f'import minari\n\nminari.load_dataset("{self._id}")')
        (temporary / README).write_text(text, encoding="utf-8")
        storage.update_metadata({key: value for key, value in metadata.items() if value})
        return self._carried(writer)

    def _carried(self, writer: "_Episodes") -> Carried:
        kept = [
            "obs -> observations, final_obs their last",
            "action -> actions",
            "reward -> rewards",
            *(f"{name} -> infos/{name}" for name in writer.infos),
            "seed, terminated and truncated -> Minari's own",
        ]
        held = writer.kept_schema.names()
        dropped = [name for name in writer.schema.names() if name not in held]
        left = [f"{name}: Minari has no place for a field per episode" for name in dropped]
        notes = ["observation and action spaces are unbounded: a store does not know bounds"]
        if "final_obs" not in writer.finals:
            notes.append("the final observation is unknown: the last one is repeated")
        if self._options.notes:
            kept.append(f"the catalog and schema -> {NOTES} in the metadata")
        else:
            left += ["the rest of the catalog", "the schema's units and names"]
        return Carried(tuple(kept), tuple(left), tuple(notes))


def _about(selection: EpisodeSelection, options: MinariExportOptions) -> dict[str, Any]:
    """Minari's metadata of who made the dataset: the options, else what the store says."""
    about = read_about(selection.store)
    people = [options.author] if options.author else about.authors
    parts = [person.rstrip("> ").partition("<") for person in people]
    return {
        "author": {name.strip() for name, _, _ in parts if name.strip()},
        "author_email": {email.strip() for _, _, email in parts if email.strip()},
        "description": options.description or about.description,
    }


class _Episodes:
    """A selection's episodes as Minari's buffers.

    Attributes:
        columns: of the catalog; schema: of the store.
        infos: fields per step that become infos; finals: fields per episode that hold a last row.
        kept_schema: the schema of what is written.
    """

    def __init__(self, selection: EpisodeSelection, advance: Advance) -> None:
        self._selection = selection
        self._advance = advance
        self.columns = pa.schema(
            [column for column in selection.catalog.schema if column.name not in STORE_COLUMNS]
        )
        self.schema = schema = selection.schema
        self.infos = [name for name in schema.names("step") if name not in NEEDED]
        finals = {name: final_of(schema, name) for name in schema.names("episode")}
        self.finals = [name for name, step in finals.items() if step in ("obs", *self.infos)]
        kept = [
            field for field in schema.fields if field.per == "step" or field.name in self.finals
        ]
        self.kept_schema = replace(schema, fields=tuple(kept))

    def buffers(self) -> Iterator[Any]:
        """The buffer of every episode, in order."""
        from minari.data_collector import EpisodeBuffer

        catalog = self._selection.catalog
        rows = self._selection.rows
        ends = [catalog.numbers(name)[rows] for name in ("terminated", "truncated")]
        for block in blocks(self._selection):
            arrays = block.read([*self.schema.names("step"), *self.finals])
            seeds = _seeds(self._selection, rows[block.episodes])
            for number, seed in enumerate(seeds):
                length = int(block.lengths[number])
                stop = int(block.stops[number])
                places = dict.fromkeys(self.finals, number)
                fields = {
                    name: rows[places.get(name, slice(stop - length, stop))]
                    for name, rows in arrays.items()
                }
                for name in ("obs", *self.infos):  # and the row after the last step
                    final = f"final_{name}"
                    last = fields[final] if final in self.finals else fields[name][-1]
                    fields[name] = np.concatenate([fields[name], np.asarray(last)[None]])
                flags = np.zeros((2, length), bool)
                flags[:, -1] = [column[block.first + number] for column in ends]
                values: dict[str, Any] = {
                    "observations": _in_space(fields["obs"]),
                    "actions": _in_space(fields["action"]),
                    "rewards": fields["reward"],
                    "terminations": flags[0],
                    "truncations": flags[1],
                    "infos": {name: _listed(fields[name]) for name in self.infos} or None,
                }
                yield EpisodeBuffer(seed=seed, **values)
                self._advance(length)

    def notes(self, with_rows: bool) -> Iterator[dict[str, Any]]:
        """The metadata of each episode beside Minari's own."""
        for table in _catalog_rows(self._selection, self._selection.rows, self.columns.names):
            for row in table.to_pylist():
                yield {NOTES: json.dumps(row)} if with_rows else {}


def _catalog_rows(
    selection: EpisodeSelection, rows: np.ndarray, names: Sequence[str]
) -> Iterator[pa.Table]:
    """Some columns of the catalog's rows, a bounded number at a time."""
    for first in range(0, len(rows), _ROWS):
        yield selection.catalog.rows(rows[first : first + _ROWS], names)


def _seeds(selection: EpisodeSelection, rows: np.ndarray) -> Iterator[int | None]:
    """The seeds of some episodes; DatasetError for a large one that is not a seed."""
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


def _listed(rows: np.ndarray) -> Any:
    """Rows as the library's Arrow storage takes them: it cannot decode arrays of one dimension."""
    return rows if rows.ndim > 1 else list(rows)
