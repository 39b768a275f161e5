"""Fields added after the collection: arrays in a store below `overlays/`, committed by an edit.

The store of a field has the same parts, with the field's rows of the episodes as collected. It is
written part by part; the edit comes last and names its parts' content hashes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, listed
from gaitforge.datasets.catalog.catalog import AddedField
from gaitforge.datasets.catalog.edit_log import Edit
from gaitforge.datasets.edits.operations import REWARD, rows_of
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection.selection import EpisodeSelection
from gaitforge.datasets.storage.store import PartStore


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
        columns["return"] = pa.array(_returns(EpisodeSelection(store, catalog, episodes), overlay))
    rows = rows_of(EpisodeSelection(store, catalog, episodes), columns)
    content = {"field": field.to_json(), "folder": folder, "parts": parts}
    origin = {"command": "field", "arguments": dict(arguments or {}), "episodes": catalog.num_rows}
    return store.edit("field", content, rows, origin, edits)


def _returns(episodes: EpisodeSelection, overlay: PartStore) -> np.ndarray:
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
