"""Edits of a store, fields added after its collection, and differences between its versions.

Episodes are dropped, annotated or trimmed; each edit is one commit, and no part is touched.

A field added after the collection is an array in a store below `overlays/`, committed by an edit.
The store of a field has the same parts as the store that it is added to, with the field's rows of
the episodes as collected. It is written part by part; the edit comes last and names its parts'
content hashes.

The comparison of two versions of a store reads no array.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, amount, listed
from gaitforge.datasets.catalog.catalog import (
    EXACT_INTEGERS,
    STORE_COLUMNS,
    AddedField,
    Catalog,
    required_columns,
)
from gaitforge.datasets.catalog.edit_log import ROW_COLUMNS, Edit, changed_columns
from gaitforge.datasets.catalog.episodes import COLUMN_NAME
from gaitforge.datasets.catalog.summaries import group_counts
from gaitforge.datasets.schema import Field, Schema
from gaitforge.datasets.selection import EpisodeSelection, final_of
from gaitforge.datasets.storage.store import PartStore

# Edits that drop, annotate or trim episodes.
Value = str | bool | int | float

REWARD = "reward"
RETURN_TOLERANCE = 1e-3
"""Relative tolerance between `return`, summed in float32, and the sum of the rewards."""


def drop(selection: EpisodeSelection, arguments: Mapping[str, Any] | None = None) -> Edit:
    """Leave the selected episodes out of the store's later versions; a tag keeps them.

    `arguments` (JSON values), such as the condition, are kept in the edit's origin. DatasetError
    for an empty selection, one of an earlier version, a tag, or a disk that cannot be written.
    """
    return _commit(selection, "drop", {}, arguments)


def annotate(
    selection: EpisodeSelection,
    values: Mapping[str, Value],
    arguments: Mapping[str, Any] | None = None,
) -> Edit:
    """Set columns of the selected episodes, such as `{"note": "limps", "checked": True}`.

    Other episodes keep their values; a new column is null for them. DatasetError as for `drop`,
    and for a required column, a name that is not allowed, or a value of another type than the
    column's.
    """
    if not values:
        raise DatasetError("nothing to annotate; give at least one column and its value")
    catalog = selection.catalog
    columns: dict[str, pa.Array] = {}
    for name, value in values.items():
        _check_column(selection, name)
        kind = _type_of(name, value)
        if name in catalog.column_names and (has := catalog.schema.field(name).type) != kind:
            if not (pa.types.is_floating(has) and kind == pa.int64()):
                raise DatasetError(f"column {name} has type {has}, and {value!r} has type {kind}")
            if isinstance(value, int) and abs(value) > EXACT_INTEGERS:
                raise DatasetError(
                    f"column {name} has type {has}, which holds whole numbers of up to 2**53 only, "
                    f"not {value}"
                )
            kind = has
        columns[name] = pa.array([value] * len(selection), kind)
    return _commit(selection, "annotate", columns, arguments)


def trim(
    selection: EpisodeSelection,
    head: int = 0,
    tail: int = 0,
    length: int | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Edit:
    """Shorten the selected episodes: without the first and last steps, to at most `length`.

    `return` becomes the sum of the rewards that are left (in float64). An episode that loses its
    end is truncated, not terminated, and its `final_obs` is the stored observation that follows.
    All other columns, `success` too, stay those of the whole episode. DatasetError as for `drop`;
    also if an episode would have no step left, none would change, or the store has no scalar
    reward whose sum is `return` (unless it has no rewards and no returns), or episode fields other
    than `final_<step field>`.
    """
    if min(head, tail) < 0 or (length is not None and length < 1):
        raise DatasetError("trim takes head and tail of 0 or more steps, and a length of 1 or more")
    selection.store.check_writable()  # before the rewards are read
    schema = selection.schema
    if whole := whole_episode_fields(schema):
        raise DatasetError(
            f"episode fields {listed(whole)} tell of whole episodes: cannot be trimmed"
        )
    left = selection.lengths - head - tail
    if short := int((left < 1).sum()):
        raise DatasetError(
            f"{amount(short, 'episode')} would have no step left; drop them, or trim fewer steps"
        )
    left = left if length is None else np.minimum(left, length)
    changes = left != selection.lengths
    if len(selection) and not changes.any():
        raise DatasetError("no episode would change; give head, tail, or a smaller length")
    shorter = selection.with_rows(selection.rows[changes])
    left = left[changes]
    cut = head + left < shorter.lengths
    catalog = shorter.catalog
    rows = shorter.rows
    settings = {"head": head, "tail": tail, "length": length}
    columns = {
        "start": pa.array(shorter.starts + head),
        "length": pa.array(left),
        "return": pa.array(_returns(shorter, head, left)),
        "terminated": pa.array(catalog.numbers("terminated")[rows] & ~cut),
        "truncated": pa.array(catalog.numbers("truncated")[rows] | cut),
    }
    return _commit(shorter, "trim", columns, settings | dict(arguments or {}))


def whole_episode_fields(schema: Schema) -> list[str]:
    """Episode fields that are wrong of a part of an episode: all but `final_<step field>`."""
    return [name for name in schema.names("episode") if final_of(schema, name) is None]


def rows_of(selection: EpisodeSelection, columns: Mapping[str, pa.Array]) -> pa.Table:
    """The rows of an edit of the selected episodes that sets `columns`."""
    parts = [pa.nulls(0, pa.string())]
    rows = [np.zeros(0, np.int64)]
    for part_id, part_rows in selection.rows_by_part():
        parts.append(pa.array([part_id] * len(part_rows), pa.string()))
        rows.append(part_rows)
    named = {"part": pa.chunked_array(parts), "row": pa.array(np.concatenate(rows))}
    return pa.table({**named, **columns}).combine_chunks()


def _commit(
    selection: EpisodeSelection,
    kind: str,
    columns: Mapping[str, pa.Array],
    arguments: Mapping[str, Any] | None,
) -> Edit:
    store = selection.store
    if not len(selection):
        raise DatasetError(f"no episode to {kind}; choose at least one")
    edits = store.edits()
    if selection.catalog.edits != tuple(edit.sha256 for edit in edits):
        raise DatasetError(f"store {store.address} was edited since the selection; select again")
    origin = {"command": kind, "arguments": dict(arguments or {}), "episodes": len(selection)}
    return store.edit(kind, {}, rows_of(selection, columns), origin, edits)


def _returns(selection: EpisodeSelection, head: int, left: np.ndarray) -> np.ndarray:
    """(E,) float64 sums of the rewards of `left` (E,) steps from `head` on."""
    schema = selection.schema
    recorded = selection.catalog.numbers("return")[selection.rows]
    if REWARD not in schema.names("step") and not recorded.any():
        return np.zeros(len(selection))  # a recording without rewards, as LeRobot's often are
    if REWARD not in schema.names("step") or schema.field(REWARD).shape:
        raise DatasetError(f"trimming needs a scalar step field {REWARD!r}, to sum the return")
    sums = np.empty(len(selection))
    whole = np.empty(len(selection))
    for unit in selection.units():
        rows = slice(unit.first, unit.stop)
        rewards = selection.read_unit(REWARD, unit).astype(np.float64)
        starts, lengths = selection.unit_rows(unit)
        whole[rows] = np.add.reduceat(rewards, starts)
        step = np.arange(len(rewards)) - np.repeat(starts, lengths)
        kept = (step >= head) & (step < np.repeat(head + left[rows], lengths))
        counts = left[rows]
        sums[rows] = np.add.reduceat(rewards[kept], np.cumsum(counts) - counts)
    if not np.allclose(whole, recorded, rtol=RETURN_TOLERANCE, atol=RETURN_TOLERANCE):
        raise DatasetError(
            "the column return is not the sum of the stored rewards, so that of a trimmed episode "
            "is unknown"
        )
    return sums


def _check_column(selection: EpisodeSelection, name: str) -> None:
    schema = selection.schema
    fixed = {*STORE_COLUMNS, *required_columns(schema.group_by), *ROW_COLUMNS, *schema.names()}
    if name.lower() in {column.lower() for column in fixed}:
        raise DatasetError(f"column {name} is the store's own and cannot be annotated")
    if not COLUMN_NAME.fullmatch(name):
        raise DatasetError(
            f"column name {name!r} is not allowed: letters, digits and underscores only"
        )
    for column in selection.catalog.column_names:
        if column != name and column.lower() == name.lower():
            raise DatasetError(
                f"column {name!r} differs from {column!r} in upper and lower case only"
            )


def _type_of(name: str, value: Any) -> pa.DataType:
    for kind, arrow in ((bool, pa.bool_()), (int, pa.int64()), (float, pa.float64())):
        if isinstance(value, kind):
            if kind is int and not -(2**63) <= value < 2**63:
                raise DatasetError(f"column {name}: {value} does not fit in 64 bits")
            if kind is float and not math.isfinite(value):
                raise DatasetError(
                    f"column {name}: {value} is no finite number; give one, or text in quotes"
                )
            return arrow
    if isinstance(value, str) and not any("\ud800" <= character <= "\udfff" for character in value):
        return pa.string()
    raise DatasetError(f"column {name}: {value!r} is neither text, a number, nor true or false")


# Fields added after the collection.
def check_new_field(store: PartStore, field: Field, folder: str) -> None:
    """DatasetError if the store cannot get this field, whose arrays are in the overlay `folder`.

    A field `reward` takes the place of the present one, and `return` becomes its sum.
    """
    store.check_writable()
    store.check_local("add fields to a local copy and push that to a new address")
    catalog = store.catalog()
    added = catalog.fields.get(field.name)
    taken = [*store.schema.names(), *catalog.fields]
    if field.name == REWARD:
        if field.shape or field.per != "step" or REWARD not in store.schema.names("step"):
            raise DatasetError(f"a new {REWARD} needs the shape () per step, as that of the store")
    elif field.name in taken and (added is None or added.folder != folder):
        raise DatasetError(
            f"{store.address} has a field {field.name!r} already; give another name than "
            f"{listed(taken)}"
        )


def add_field(
    store: PartStore, folder: str, arguments: Mapping[str, Any] | None = None
) -> Edit | None:
    """Commit the field whose arrays are in `overlays/<folder>`; None if it is committed.

    `arguments` (JSON values) say in the edit's origin where the field comes from. DatasetError as
    `check_new_field`, for missing or other parts there, and if the disk cannot be written.
    """
    overlay = store.overlay(folder)
    [field] = overlay.schema.fields
    check_new_field(store, field, folder)
    edits = store.edits()
    catalog = store.catalog()
    computed = overlay.collected()
    for part_id, manifest in catalog.manifests.items():
        part = computed.manifests.get(part_id)
        if part is None or (part.steps, part.episodes) != (manifest.steps, manifest.episodes):
            raise DatasetError(f"field {field.name}: part {part_id} is not made yet, or is another")
    parts = {part_id: computed.manifests[part_id].content_hash for part_id in catalog.manifests}
    if catalog.fields.get(field.name) == AddedField(field, folder, parts):
        return None
    episodes = np.zeros(0, np.int64)
    columns = dict[str, pa.Array]()
    if field.name == REWARD:
        episodes = np.arange(catalog.num_rows)
        columns["return"] = pa.array(
            _returns_of_field(EpisodeSelection(store, catalog, episodes), overlay)
        )
    rows = rows_of(EpisodeSelection(store, catalog, episodes), columns)
    content = {"field": field.to_json(), "folder": folder, "parts": parts}
    origin = {"command": "field", "arguments": dict(arguments or {}), "episodes": catalog.num_rows}
    return store.edit("field", content, rows, origin, edits)


def _returns_of_field(episodes: EpisodeSelection, overlay: PartStore) -> np.ndarray:
    """(E,) float64 sums of the new rewards over each episode's remaining steps."""
    sums = [np.zeros(0)]
    computed = overlay.collected()
    for part_id, (first, stop) in episodes.catalog.part_bounds.items():
        rewards = np.zeros(computed.manifests[part_id].steps, np.float32)
        with overlay.array_reader(computed, part_id, REWARD) as reader:
            reader.read_runs([(0, len(rewards))], rewards)
        starts = episodes.starts[first:stop]
        lengths = episodes.lengths[first:stop]
        bounds = np.stack([starts, starts + lengths], axis=1).reshape(-1)
        padded = np.append(rewards.astype(np.float64), 0.0)  # the last end may be the array's
        sums.append(np.add.reduceat(padded, bounds)[::2])
    return np.concatenate(sums)


# Differences between two versions.
@dataclass(frozen=True)
class Difference:
    """The changes from the first of two versions to the second.

    Attributes:
        hashes: of both versions.
        parts_added, parts_removed: parts as collected.
        columns_added, columns_removed: of the catalog.
        columns_changed: column -> episodes of both versions with another value.
        added, dropped, changed: episodes; changed ones are in both, with another value or trimmed.
        groups: one dict per group of the schema's `group_by` with a change: its keys, `added`,
            `dropped` and `changed`.
    """

    hashes: tuple[str, str]
    parts_added: list[str]
    parts_removed: list[str]
    columns_added: list[str]
    columns_removed: list[str]
    columns_changed: dict[str, int]
    added: int
    dropped: int
    changed: int
    groups: list[dict[str, Any]]


def difference(first: PartStore, second: PartStore) -> Difference:
    """Compare two versions of a store, such as two tags of it.

    DatasetError if a part of one name has other content: they are not versions of one store.
    """
    a = first.catalog()
    b = second.catalog()
    shared = [part_id for part_id in a.manifests if part_id in b.manifests]
    for part_id in shared:
        if a.manifests[part_id].content_hash != b.manifests[part_id].content_hash:
            raise DatasetError(
                f"part {part_id} has other content in {second.address} than in {first.address}: "
                "they are not versions of one dataset"
            )
    rows_a = _rows(a, shared)
    rows_b = _rows(b, shared)
    both = a.is_shown[rows_a] & b.is_shown[rows_b]
    kept_a = rows_a[both]
    kept_b = rows_b[both]
    columns = changed_columns(a, b, kept_a, kept_b)
    changed = np.any([np.zeros(len(kept_b), bool), *columns.values()], axis=0)
    dropped = np.setdiff1d(a.shown, kept_a, assume_unique=True)
    added = np.setdiff1d(b.shown, kept_b, assume_unique=True)
    names = first.schema.group_by
    counted = {
        "added": group_counts(b, added, names),
        "dropped": group_counts(a, dropped, names),
        "changed": group_counts(b, kept_b[changed], names),
    }
    keys = sorted({key for counts in counted.values() for key in counts})
    return Difference(
        hashes=(first.info().hash, second.info().hash),
        parts_added=[part_id for part_id in b.manifests if part_id not in a.manifests],
        parts_removed=[part_id for part_id in a.manifests if part_id not in b.manifests],
        columns_added=[name for name in b.column_names if name not in a.column_names],
        columns_removed=[name for name in a.column_names if name not in b.column_names],
        columns_changed={name: int(flags.sum()) for name, flags in columns.items() if flags.any()},
        added=len(added),
        dropped=len(dropped),
        changed=int(changed.sum()),
        groups=[
            dict(zip(names, key, strict=True))
            | {change: counts.get(key, 0) for change, counts in counted.items()}
            for key in keys
        ],
    )


def _rows(catalog: Catalog, parts: list[str]) -> np.ndarray:
    """Row numbers of the parts' episodes, part after part."""
    runs = [np.arange(*catalog.part_bounds[part_id]) for part_id in parts]
    return np.concatenate([np.zeros(0, np.int64), *runs])
