"""The catalog of a store, and the commit records of its parts.

The catalog is all committed episodes at one moment; its columns are read when used.

The commit record of a part is a `Manifest`, kept in the Parquet metadata of its catalog file.
"""

import hashlib
import json
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, failures, listed
from gaitforge.datasets.catalog.rows import array_to_numpy, from_numpy, to_numpy, valid_rows
from gaitforge.datasets.schema import Field

# Commit records of parts.
MANIFEST_KEY = b"gaitforge_manifest"
DIGEST_KEY = b"gaitforge_manifest_sha256"

PART_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")
"""Names of parts, of which paths are made."""


@dataclass(frozen=True)
class PartRecord:
    """Sizes and content hash of one committed part."""

    part_id: str
    steps: int
    episodes: int
    bytes: int
    content_hash: str


@dataclass(frozen=True)
class Manifest:
    """The commit record of one part.

    Attributes:
        arrays: field -> digest of the uncompressed array.
        objects: object name below the part's folder -> (bytes, SHA-256); a member has those of
            the merged folder.
        members: records of the parts that were merged into this one, in row order; empty for a
            part as collected.
    """

    part_id: str
    schema_hash: str
    steps: int
    episodes: int
    episodes_digest: str
    arrays: Mapping[str, str]
    objects: Mapping[str, tuple[int, str]]
    members: tuple["Manifest", ...] = ()

    @cached_property
    def content_hash(self) -> str:
        """Hash of the values, independent of compression, merging and Parquet encoding."""
        entries = ("part_id", "schema_hash", "steps", "episodes", "episodes_digest")
        content = {name: getattr(self, name) for name in entries} | {"arrays": dict(self.arrays)}
        return json_sha256(content)

    @cached_property
    def objects_hash(self) -> str:
        """Hash of the objects' names, sizes and contents."""
        return json_sha256(dict(self.objects))

    @property
    def collected(self) -> tuple["Manifest", ...]:
        """The records of the parts as collected: the members, or this one."""
        return self.members or (self,)

    @property
    def stored_bytes(self) -> int:
        """Bytes of the objects in the part's folder."""
        return sum(size for size, _ in self.objects.values())

    @property
    def record(self) -> PartRecord:
        """The summary that callers get."""
        return PartRecord(
            self.part_id, self.steps, self.episodes, self.stored_bytes, self.content_hash
        )

    def to_json(self) -> dict[str, object]:
        """The record as JSON values; `from_json` is the inverse."""
        tree = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name != "members"
        } | {"arrays": dict(self.arrays), "objects": dict(self.objects)}
        if self.members:
            tree["members"] = [replace(member, objects={}).to_json() for member in self.members]
        return tree

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "Manifest":
        """The inverse of `to_json`; DatasetError for anything else."""
        try:
            if not PART_ID.fullmatch(tree["part_id"]):
                raise ValueError(f"{tree['part_id']!a:.100} is no part's name")
            objects = {name: (int(size), sha) for name, (size, sha) in tree["objects"].items()}
            members = tuple(
                replace(cls.from_json(member), objects=objects)
                for member in tree.get("members", ())
            )
            return cls(**{**tree, "objects": objects, "members": members})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DatasetError(f"its commit record is damaged: {error!r}") from error

    def to_metadata(self) -> dict[bytes, bytes]:
        """Parquet key-value metadata: the record and its digest."""
        content = canonical_json(self.to_json())
        return {MANIFEST_KEY: content, DIGEST_KEY: hashlib.sha256(content).hexdigest().encode()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes]) -> "Manifest":
        """The inverse of `to_metadata`; DatasetError if it is absent or damaged."""
        content = metadata.get(MANIFEST_KEY, b"")
        if hashlib.sha256(content).hexdigest().encode() != metadata.get(DIGEST_KEY):
            raise DatasetError("its commit record is absent or damaged")
        return cls.from_json(json.loads(content))


class LaterParsed(Mapping[str, Any]):
    """A JSON object that is parsed when it is first used; its lists become tuples."""

    def __init__(self, text: str) -> None:
        self._text = text

    @cached_property
    def _values(self) -> dict[str, Any]:
        values = json.loads(self._text)
        return {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def canonical_json(tree: object) -> bytes:
    """The canonical JSON text of a tree, for hashing."""
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()


def json_sha256(tree: object) -> str:
    """SHA-256 of a tree's canonical JSON text."""
    return hashlib.sha256(canonical_json(tree)).hexdigest()


def sealed(tree: Mapping[str, object]) -> bytes:
    """A record as a JSON file with its SHA-256; `unsealed` is the inverse."""
    return json.dumps({**tree, "sha256": json_sha256(tree)}, indent=1).encode()


def unsealed(content: bytes, key: str, version: int) -> dict[str, Any]:
    """A sealed record without the version under `key`; ValueError for another, and for damage."""
    tree = json.loads(content)
    if tree.pop("sha256") != json_sha256(tree):
        raise ValueError("its SHA-256 does not match")
    if (written := tree.pop(key)) != version:
        raise ValueError(f"version {written}; this program reads version {version}")
    return tree


# The catalog.
REQUIRED_COLUMNS: dict[str, pa.DataType] = {
    "episode": pa.int64(),
    "length": pa.int64(),
    "seed": pa.int64(),
    "level": pa.int64(),
    "robot": pa.string(),
    "simulator": pa.string(),
    "simulator_version": pa.string(),
    "expert": pa.string(),
    "expert_hash": pa.string(),
    "return": pa.float64(),
    "success": pa.bool_(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
}
"""Columns of every episode, beside `Schema.group_by`; `episode` is its id in the plan."""

STORE_COLUMNS: dict[str, pa.DataType] = {"part": pa.string(), "start": pa.int64()}
"""Columns added by the store: the part, and the episode's first row in its step arrays."""

HELD_BYTES = 1 << 28
"""Most bytes of columns that a catalog keeps in memory; the one read first is dropped first."""

CODED = pa.dictionary(pa.int32(), pa.string())
"""In-memory type of text columns: few distinct values, compared as integers."""


class Source(Protocol):
    """Source of the catalog's rows: a table in memory, a file of the index, or the parts' files."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, with text as `CODED`."""

    def column(self, name: str) -> pa.ChunkedArray:
        """All values of one column."""


@dataclass(frozen=True)
class CommittedFile:
    """One catalog file, `stem` without suffix; `source` has its episodes from row `first` on."""

    stem: str
    manifest: Manifest
    source: Source
    first: int


@dataclass(frozen=True)
class Location:
    """Location of a part's arrays: a folder below `parts/`, and its first rows there."""

    folder: str
    first_step: int
    first_episode: int


@dataclass(frozen=True)
class AddedField:
    """A field that was added after the collection: its arrays are in a store of their own.

    Attributes:
        field: its name, shape and description; it replaces a collected field of its name.
        folder: of the store, below `overlays/`.
        parts: part -> content hash there.
    """

    field: Field
    folder: str
    parts: Mapping[str, str]


@dataclass(frozen=True)
class Piece:
    """The episodes of one part as collected."""

    manifest: Manifest
    location: Location
    source: Source
    first: int


class Catalog:
    """All committed episodes, ordered by the part in which they were collected.

    Merged parts appear as they were collected, so `compact` changes nothing here. `manifests`,
    `locations` and `part_bounds` give each part's commit record, the place of its arrays and
    its (first, stop) row; `schema` has the columns' plain types. `shown` are the ascending
    numbers of the rows that no edit dropped, `edits` the SHA-256 of the edits' files, and
    `fields` those added since, by name.
    """

    def __init__(self, pieces: Sequence[Piece], group_by: tuple[str, str]) -> None:
        self._pieces = list(pieces)
        self._group_by = group_by
        self.manifests = {piece.manifest.part_id: piece.manifest for piece in pieces}
        self.locations = {piece.manifest.part_id: piece.location for piece in pieces}
        stops = np.cumsum([piece.manifest.episodes for piece in pieces], dtype=np.int64).tolist()
        self.part_bounds = {
            piece.manifest.part_id: (stop - piece.manifest.episodes, stop)
            for piece, stop in zip(pieces, stops, strict=True)
        }
        self.num_rows: int = stops[-1] if stops else 0
        self.schema = _common_schema(pieces, group_by)
        self._columns: dict[str, pa.ChunkedArray] = {}
        self._codes: dict[str, tuple[np.ndarray, list[Any]]] = {}
        self._lock = threading.Lock()
        self.shown: np.ndarray = np.arange(self.num_rows)
        self.fields: Mapping[str, AddedField] = {}
        self._overlaid: dict[str, pa.ChunkedArray] = {}
        self.edits: tuple[str, ...] = ()
        self._collected: Catalog | None = None

    def restricted(self, content_hashes: Mapping[str, str]) -> "Catalog":
        """The catalog of the given parts (part id -> content hash); DatasetError if one differs."""
        for part_id, content_hash in content_hashes.items():
            manifest = self.manifests.get(part_id)
            if manifest is None or manifest.content_hash != content_hash:
                state = "absent" if manifest is None else "not as it was"
                raise DatasetError(f"part {part_id} is {state}")
        pieces = [piece for piece in self._pieces if piece.manifest.part_id in content_hashes]
        return Catalog(pieces, self._group_by)

    def overlaid(
        self,
        dropped: np.ndarray,
        columns: Mapping[str, pa.ChunkedArray],
        fields: Mapping[str, AddedField],
        edits: tuple[str, ...],
    ) -> "Catalog":
        """The same rows with some `dropped` (E,) bool, and some columns replaced or added.

        Dropped rows keep their numbers and are missing in `shown` only. `edits` are the
        SHA-256 of the edits' files.
        """
        catalog = Catalog(self._pieces, self._group_by)
        catalog._collected = self
        catalog.shown = np.flatnonzero(~dropped)
        catalog.fields = dict(fields)
        catalog._overlaid = dict(columns)
        catalog.edits = edits
        types = dict(zip(self.schema.names, self.schema.types, strict=True))
        types |= {name: _plain_type(values.type) for name, values in columns.items()}
        catalog.schema = pa.schema(types)
        return catalog

    @property
    def collected(self) -> "Catalog":
        """The catalog without edits."""
        return self._collected or self

    @property
    def column_names(self) -> list[str]:
        """Names of the columns in order."""
        return self.schema.names

    def check_column(self, name: str) -> str:
        """Return `name` if it is a column; DatasetError names the nearest column."""
        if name not in self.schema.names:
            nearest = get_close_matches(name, self.column_names, 1, cutoff=0.0)
            raise DatasetError(
                f"unknown column {name!r}; nearest: {listed(nearest)}; "
                "gaitforge info STORE --columns explains all columns"
            )
        return name

    @property
    def is_shown(self) -> np.ndarray:
        """(E,) bool, a new array: the rows that no edit dropped."""
        is_shown = np.zeros(self.num_rows, bool)
        is_shown[self.shown] = True
        return is_shown

    @cached_property
    def starts(self) -> np.ndarray:
        """(E,) first step row of each episode within its part as collected."""
        return self.numbers("start")

    @cached_property
    def lengths(self) -> np.ndarray:
        """(E,) steps of each episode."""
        return self.numbers("length")

    @property
    def overlaid_names(self) -> list[str]:
        """Names of the columns that edits set."""
        return list(self._overlaid)

    @cached_property
    def stops_cut(self) -> np.ndarray | None:
        """(E,) bool: episodes that were trimmed at their end; None if no episode was trimmed."""
        if "length" not in self._overlaid:
            return None
        start, length = (to_numpy(self._joined(name)) for name in ("start", "length"))
        return self.starts + self.lengths < start + length

    @cached_property
    def trimmed(self) -> np.ndarray | None:
        """(E,) bool: episodes that were trimmed; None if none was."""
        if "length" not in self._overlaid:
            return None
        return self.lengths != to_numpy(self._joined("length"))

    def numbers(self, name: str, rows: np.ndarray | None = None) -> np.ndarray:
        """(E,) values of a numeric or boolean column without missing values.

        rows: (K,) ascending rows, of which the values are given; None for all.
        """
        return to_numpy(self._column(name), rows)

    def codes(self, name: str) -> tuple[np.ndarray, list[Any]]:
        """A column as (E,) integer codes and the distinct values they index; None if missing."""
        if name not in self._codes:
            self._codes[name] = _coded(self._column(name))
        return self._codes[name]

    def stored(self, names: Iterable[str]) -> pa.Table:
        """The given columns, with text coded."""
        columns = {name: self._column(name) for name in names}
        return pa.Table.from_arrays(list(columns.values()), names=list(columns))

    def rows(self, rows: np.ndarray | None, names: Sequence[str] | None = None) -> pa.Table:
        """The given rows and columns (None: all) in plain types."""
        columns = self.column_names if names is None else list(names)
        # `pa.array` would import pandas, where that is installed.
        numbers = None if rows is None else from_numpy(np.ascontiguousarray(rows, np.int64))
        taken = []
        for name in columns:  # one by one: all columns of millions of episodes take gigabytes
            column = self._column(name)
            taken.append(column if numbers is None else column.take(numbers))
        schema = pa.schema([self.schema.field(name) for name in columns])
        return pa.Table.from_arrays(taken, names=columns).cast(schema).combine_chunks()

    def _column(self, name: str) -> pa.ChunkedArray:
        self.check_column(name)
        with self._lock:
            if name not in self._columns:
                overlaid = self._overlaid.get(name)
                self._columns[name] = self._joined(name) if overlaid is None else overlaid
                while sum(column.nbytes for column in self._columns.values()) > HELD_BYTES:
                    if name == (oldest := next(iter(self._columns))):
                        break
                    del self._columns[oldest]
            return self._columns[name]

    @cached_property
    def _runs(self) -> list[tuple[Source, int, int]]:
        """(source, first row, rows) of pieces that are adjacent in a source."""
        runs: list[tuple[Source, int, int]] = []
        stop = -1
        for piece in self._pieces:
            count = piece.manifest.episodes
            if runs and runs[-1][0] is piece.source and stop == piece.first:
                source, first, rows = runs[-1]
                runs[-1] = (source, first, rows + count)
            else:
                runs.append((piece.source, piece.first, count))
            stop = piece.first + count
        return runs

    def _joined(self, name: str) -> pa.ChunkedArray:
        kind = stored_type(self.schema.field(name).type)
        chunks: list[pa.Array] = []
        read: dict[int, pa.ChunkedArray] = {}
        for source, first, count in self._runs:
            if name in source.schema.names:
                if id(source) not in read:
                    read[id(source)] = source.column(name)
                values = read[id(source)].slice(first, count)
                with failures(f"column {name} cannot be read", pa.ArrowException):
                    chunks += (values if values.type == kind else values.cast(kind)).chunks
            else:
                chunks.append(pa.nulls(count, kind))
        return pa.chunked_array(chunks, kind)


def required_columns(group_by: Iterable[str]) -> dict[str, pa.DataType]:
    """Name -> type of the columns every episode of a store has; see `Schema.group_by`."""
    return REQUIRED_COLUMNS | dict.fromkeys(group_by, pa.string())


def stored_type(plain: pa.DataType) -> pa.DataType:
    """The type in which a column is held in memory: `CODED` for text."""
    return CODED if pa.types.is_string(plain) else plain


def _plain_type(stored: pa.DataType) -> pa.DataType:
    return pa.string() if stored == CODED else stored


def coded(table: pa.Table) -> pa.Table:
    """The table with its text columns as `CODED`."""
    for number, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            column = table.column(number).dictionary_encode()
            table = table.set_column(number, field.name, column)
    return table


def common_schema(schemas: Iterable[pa.Schema]) -> pa.Schema:
    """Columns of all the schemas; DatasetError if their types cannot be reconciled."""
    plain = [schema.remove_metadata() for schema in schemas]
    with failures("the parts' catalog columns do not agree", pa.ArrowException):
        return pa.unify_schemas(plain, promote_options="permissive")


EXACT_INTEGERS = 2**53
"""Whole numbers up to this, above and below 0, are exact in float64, which has 53 binary digits."""


def check_agreement(present: Catalog, added: Catalog | pa.Table) -> None:
    """DatasetError if columns of two catalogs cannot be columns of one.

    Names may not differ in upper and lower case only. Types must be equal, or whole numbers and
    floats, of which the whole numbers are at most `EXACT_INTEGERS`.
    """
    columns = present.schema.names
    folded = {name.lower(): name for name in columns}
    for column in added.schema:
        name = folded.get(column.name.lower(), column.name)
        if column.name not in columns and name != column.name:
            raise DatasetError(
                f"column {column.name!r} differs from {name!r} in upper and lower case only"
            )
        if column.name in columns and present.schema.field(column.name).type != column.type:
            kinds = [column_kind(rows, column.name) for rows in (present, added)]
            if not kinds_agree(*kinds):
                raise DatasetError(f"column {column.name} has {kinds[1]}, not {kinds[0]} as before")


def column_kind(rows: Catalog | pa.Table, name: str) -> str:
    """The type of a column's values in words, which tell whole numbers above `EXACT_INTEGERS`."""
    kind = rows.schema.field(name).type
    if kind == pa.int64():
        values = rows.rows(None, [name]) if isinstance(rows, Catalog) else rows.select([name])
        numbers = [array_to_numpy(chunk)[valid_rows(chunk)] for chunk in values.column(0).chunks]
        present = [array for array in numbers if len(array)]
        if any(max(int(n.max()), -int(n.min())) > EXACT_INTEGERS for n in present):
            return LARGE
    return f"type {kind}"


LARGE = "whole numbers above 2**53"
_NUMBERS = {"type int64", "type double"}


def kinds_agree(first: str, second: str) -> bool:
    """Whether columns of these kinds (`column_kind`) can be one column."""
    kinds = {first, second}
    return len(kinds) == 1 or kinds == _NUMBERS or kinds == {LARGE, "type int64"}


def _common_schema(pieces: Sequence[Piece], group_by: tuple[str, str]) -> pa.Schema:
    empty = pa.schema(STORE_COLUMNS | required_columns(group_by))
    held = pa.schema([(field.name, stored_type(field.type)) for field in empty])
    sources = {id(piece.source): piece.source for piece in pieces}
    joined = common_schema([held, *(source.schema for source in sources.values())])
    return pa.schema([(field.name, _plain_type(field.type)) for field in joined])


def collected_pieces(files: Sequence[CommittedFile]) -> list[Piece]:
    """One piece per collected part, sorted; a part that was also merged counts once, as merged."""
    pieces: dict[str, Piece] = {}
    for file in sorted(files, key=lambda file: len(file.manifest.members)):
        step = episode = 0
        for manifest in file.manifest.collected:
            location = Location(file.stem, step, episode)
            earlier = pieces.get(manifest.part_id)
            if earlier is not None and earlier.manifest.content_hash != manifest.content_hash:
                raise DatasetError(
                    f"part {manifest.part_id} is committed twice with other content: by catalog "
                    f"files {earlier.location.folder} and {file.stem}"
                )
            pieces[manifest.part_id] = Piece(manifest, location, file.source, file.first + episode)
            step += manifest.steps
            episode += manifest.episodes
    return [pieces[part_id] for part_id in sorted(pieces)]


def distinct(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(N,) sorted distinct values, and (E,) the place of each value there; no sort of few values.

    `np.unique` sorts: seconds for millions of rows.
    """
    if len(values) and values.dtype.kind in "bi":
        low = int(values.min())
        high = int(values.max())
        if high - low <= len(values):
            shifted = values.astype(np.int64, copy=False) - low
            is_present = np.bincount(shifted) > 0
            places = np.cumsum(is_present) - 1
            return (np.flatnonzero(is_present) + low).astype(values.dtype), places[shifted]
    return np.unique(values, return_inverse=True)


def _coded(column: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    if column.null_count == 0 and not pa.types.is_dictionary(column.type):
        values, codes = distinct(to_numpy(column))
        return codes, values.tolist()
    encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    encoded = encoded.unify_dictionaries()
    if encoded.num_chunks == 0:
        return np.zeros(0, np.int64), []
    values = encoded.chunk(0).dictionary.to_pylist()
    indices = [chunk.indices for chunk in encoded.chunks]
    if column.null_count:  # `fill_null` imports pyarrow.compute, which is slow
        indices = [chunk.fill_null(len(values)) for chunk in indices]
        values.append(None)
    return np.concatenate([array_to_numpy(chunk) for chunk in indices]), values
