"""Edits: what was dropped, noted or trimmed after collection, laid over the committed parts.

Parts never change. An edit is one Parquet file whose rows name episodes by `part` and `row`
(the row within the part as collected, which `compact` keeps) and hold the values of the columns
that it sets. Its metadata holds a record as canonical JSON. The file's name has its number and the
first `NAMED_DIGITS` digits of its SHA-256, so that a changed byte is noticed, and each record has
the SHA-256 of the edit before it. Edits are applied in order to the catalog as it was collected.
"""

import hashlib
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from gaitforge.common.errors import DatasetError, failures
from gaitforge.common.limits import check_parquet
from gaitforge.common.locks import read_current
from gaitforge.datasets.catalog.catalog import (
    AddedField,
    Catalog,
    canonical_json,
    json_sha256,
    stored_type,
)
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.schema import Field

EDIT_VERSION = 1
RECORD_KEY = b"gaitforge_edit"
NAMED_DIGITS = 32
ROW_COLUMNS: dict[str, pa.DataType] = {"part": pa.string(), "row": pa.int64()}
"""Columns of every edit: the episodes that it touches."""

_FILE = re.compile(rf"(?P<number>\d{{5}})-(?P<digest>[0-9a-f]{{{NAMED_DIGITS}}})\.parquet")


@dataclass(frozen=True)
class Edit:
    """One edit of a store.

    Attributes:
        number: 1 for a store's first.
        kind: one of `EFFECTS`.
        content: what it does beside its rows, as JSON values; part of the dataset's hash.
        origin: where it came from, as JSON values: `command`, `arguments`, `made` (UTC) and
            `store`, the dataset's hash before; not part of the hash.
        previous: `sha256` of the edit before it; empty for the first.
        rows: `part`, `row` and the columns that it sets.
        sha256: SHA-256 of its file.
    """

    number: int
    kind: str
    content: Mapping[str, Any]
    origin: Mapping[str, Any]
    previous: str
    rows: pa.Table = field(repr=False)
    sha256: str = ""

    @cached_property
    def digest(self) -> str:
        """SHA-256 of kind, content and rows; the same whenever and by whomever it is made."""
        return json_sha256(self._effect())

    def _effect(self) -> dict[str, Any]:
        digest = episodes_digest(self.rows)
        return {"kind": self.kind, "content": dict(self.content), "rows": digest}

    @property
    def columns(self) -> list[str]:
        """Names of the columns that it sets."""
        return [name for name in self.rows.column_names if name not in ROW_COLUMNS]

    def to_bytes(self) -> bytes:
        """The edit as a Parquet file; `read_edit` is the inverse."""
        record = {
            "edit_version": EDIT_VERSION,
            "number": self.number,
            "previous": self.previous,
            "origin": dict(self.origin),
            **self._effect(),
        }
        table = self.rows.replace_schema_metadata({RECORD_KEY: canonical_json(record)})
        out = io.BytesIO()
        pq.write_table(table, out, compression="zstd", write_page_checksum=True)
        return out.getvalue()


def edit_name(number: int, content: bytes) -> str:
    """The name of an edit's file."""
    return f"{number:05d}-{hashlib.sha256(content).hexdigest()[:NAMED_DIGITS]}.parquet"


def is_edit_name(name: str) -> bool:
    """Whether a file's name is that of an edit."""
    return _FILE.fullmatch(name) is not None


def read_edit(path: Path, address: str) -> Edit:
    """The edit at `path`; DatasetError if it is damaged or of a newer version."""
    kinds = OSError, ValueError, KeyError, TypeError, pa.ArrowException
    with failures(f"edit {path.name} of {address} cannot be read", *kinds):
        content = read_current(path)[0]
        sha256 = hashlib.sha256(content).hexdigest()
        named = _FILE.fullmatch(path.name)
        if named is None or named["digest"] != sha256[:NAMED_DIGITS]:
            raise DatasetError("its bytes are not the ones that were written")
        # pq.read_table would load pandas.
        stored = pq.ParquetFile(pa.BufferReader(content))
        check_parquet("its table", stored.metadata, len(content))
        table = stored.read(use_threads=False)
        record = json.loads((table.schema.metadata or {})[RECORD_KEY])
        if record["edit_version"] != EDIT_VERSION or record["kind"] not in EFFECTS:
            kind = f"version {record['edit_version']}, kind {record['kind']!r}"
            raise DatasetError(f"{kind} is unknown; a newer program wrote it: update this one")
        names = ("number", "kind", "content", "origin", "previous")
        rows = table.replace_schema_metadata(None)
        edit = Edit(**{name: record[name] for name in names}, rows=rows, sha256=sha256)
        if edit.number != int(named["number"]) or episodes_digest(edit.rows) != record["rows"]:
            raise DatasetError("its record is not that of its rows")
    return edit


@dataclass
class EditedRows:
    """A catalog's rows while edits are applied: what is dropped, columns and fields so far."""

    catalog: Catalog
    dropped: np.ndarray
    columns: dict[str, pa.ChunkedArray] = field(default_factory=dict)
    fields: dict[str, AddedField] = field(default_factory=dict)

    def numbers(self, edit: Edit) -> np.ndarray:
        """Row numbers of the catalog that an edit touches; DatasetError for an absent part."""
        encoded = edit.rows.column("part").combine_chunks().dictionary_encode()
        bounds = []
        codes = encoded.indices.to_numpy()
        parts = encoded.dictionary.to_pylist()
        for part_id in parts:
            if part_id not in self.catalog.part_bounds:
                raise DatasetError(f"edit {edit.number}: part {part_id} is absent")
            bounds.append(self.catalog.part_bounds[part_id])
        first, stop = np.asarray(bounds, np.int64).reshape(-1, 2)[codes].T
        rows = first + edit.rows.column("row").to_numpy()
        if len(rows) and not ((rows >= first) & (rows < stop)).all():
            raise DatasetError(f"edit {edit.number}: a part has fewer episodes")
        return rows

    def drop(self, edit: Edit) -> None:
        """Leave the edit's episodes out."""
        self.dropped[self.numbers(edit)] = True

    def set_columns(self, edit: Edit) -> None:
        """Set the edit's values in its episodes' rows; other rows keep theirs, or are null."""
        rows = self.numbers(edit)
        for name in edit.columns:
            values = edit.rows.column(name)
            base = self.columns.get(name)
            if base is None and name in self.catalog.column_names:
                base = self.catalog.rows(None, [name]).column(name)
            if base is None:
                base = pa.chunked_array([pa.nulls(self.catalog.num_rows, values.type)])
            with failures(f"edit {edit.number}, column {name}", pa.ArrowException):
                self.columns[name] = _replaced(base, rows, values)

    def add_field(self, edit: Edit) -> None:
        """Add a field, in place of one of its name, and set the edit's columns."""
        added = added_field(edit)
        self.fields[added.field.name] = added
        self.set_columns(edit)


EFFECTS: dict[str, Callable[[EditedRows, Edit], None]] = {
    "drop": EditedRows.drop,
    "annotate": EditedRows.set_columns,
    "trim": EditedRows.set_columns,
    "field": EditedRows.add_field,
}
"""Kind of an edit -> what it does to the catalog's rows."""


def edited(catalog: Catalog, edits: Sequence[Edit]) -> Catalog:
    """The catalog with the edits applied in order; DatasetError if one names an absent part."""
    if not edits:
        return catalog
    state = EditedRows(catalog, np.zeros(catalog.num_rows, bool))
    for edit in edits:
        EFFECTS[edit.kind](state, edit)
    columns = {
        name: column.cast(stored_type(column.type)) for name, column in state.columns.items()
    }
    hashes = tuple(edit.sha256 for edit in edits)
    return catalog.overlaid(state.dropped, columns, state.fields, hashes)


def added_field(edit: Edit) -> AddedField:
    """The field that an edit of the kind "field" adds."""
    content = edit.content
    return AddedField(Field.from_json(content["field"]), content["folder"], content["parts"])


def joint_type(*types: pa.DataType) -> pa.DataType:
    """The type that holds the values of all types, or else text."""
    kinds = [pa.schema([("value", value_type)]) for value_type in types]
    try:
        return pa.unify_schemas(kinds, promote_options="permissive").field(0).type
    except pa.ArrowException:  # a part committed later may have another type
        return pa.string()


def changed_columns(
    before: Catalog, after: Catalog, rows_before: np.ndarray, rows_after: np.ndarray
) -> dict[str, np.ndarray]:
    """Column that some edit set -> (E,) bool: which of the episodes have another value."""
    changed = {}
    for name in dict.fromkeys([*before.overlaid_names, *after.overlaid_names]):
        old, new = (
            catalog.rows(rows, [name]).column(name)
            if name in catalog.column_names
            else pa.chunked_array([pa.nulls(len(rows))])
            for catalog, rows in ((before, rows_before), (after, rows_after))
        )
        kind = joint_type(old.type, new.type)
        changed[name] = _differ(old.cast(kind), new.cast(kind))
    return changed


def _differ(before: pa.ChunkedArray, after: pa.ChunkedArray) -> np.ndarray:
    """(E,) bool: where the values are not equal; a missing one equals none, and NaN equals NaN."""
    values = pa.chunked_array([*before.chunks, *after.chunks], before.type).combine_chunks()
    codes = values.dictionary_encode("encode").indices.to_numpy()
    return codes[: len(before)] != codes[len(before) :]


def _replaced(base: pa.ChunkedArray, rows: np.ndarray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    """`base` with `base[rows] = values`, in the type that holds both, or else as text."""
    kind = joint_type(base.type, values.type)
    chunks = base.cast(kind).chunks + values.cast(kind).chunks
    index = np.arange(len(base), dtype=np.int64)
    index[rows] = len(base) + np.arange(len(rows))
    joined = pa.chunked_array(chunks, kind).combine_chunks()
    return pa.chunked_array([joined.take(pa.array(index))])
