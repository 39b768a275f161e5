"""Open a part's array where it lies now: in a folder of its own, or merged with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from datasets.catalog.catalog import Catalog, Location
from datasets.catalog.manifest import Manifest
from datasets.errors import DatasetError
from datasets.files import sha256_file
from datasets.layout import PARTS
from datasets.storage.shards import ArrayLayout, ArrayReader, sizes_below

if TYPE_CHECKING:
    from datasets.storage.store import Store


class MemberReader(ArrayReader):
    """Reads a part's rows, counted from its own first, out of an array that begins before it.

    Args:
        first_row: where the part begins; the others as for ``ArrayReader``.
    """

    def __init__(
        self,
        folder: Path,
        layout: ArrayLayout,
        sizes: Mapping[str, int],
        label: str,
        first_row: int,
    ) -> None:
        super().__init__(folder, layout, sizes, label)
        self._first_row = first_row

    def read_runs(self, runs: Iterable[tuple[int, int]], out: np.ndarray) -> None:
        """As ``ArrayReader.read_runs``."""
        first = self._first_row
        super().read_runs([(start + first, stop + first) for start, stop in runs], out)


def open_array(
    store: Store,
    catalog: Catalog,
    part_id: str,
    field: str,
    layouts: dict[tuple[str, str], ArrayLayout],
) -> ArrayReader:
    """A reader of one field's rows in one part as collected.

    Args:
        catalog: holds the part.
        layouts: (digest of an array's metadata, field) -> layout, filled as arrays are opened.

    Raises:
        DatasetError: unknown field, or the array's metadata is missing or damaged.
    """
    per = store.schema.field(field).per
    manifest, location = _where(store, catalog, part_id)
    folder = store.path / PARTS / location.folder / field
    label = f"part {part_id} of {store.address}, field {field}"
    recorded = manifest.objects[f"{field}/zarr.json"][1]
    key = (f"{location.folder} {recorded}", field)
    if key not in layouts:
        path = folder / "zarr.json"
        try:
            damaged = sha256_file(path) != recorded
        except OSError as error:
            raise DatasetError(f"{label}: zarr.json is missing") from error
        if damaged:
            raise DatasetError(f"{label}: zarr.json is not the file that was written")
        layouts[key] = ArrayLayout.parse(path.read_bytes())
    first_row = location.first_step if per == "step" else location.first_episode
    sizes = sizes_below(manifest.objects, field)
    if first_row == 0:
        return ArrayReader(folder, layouts[key], sizes, label)
    return MemberReader(folder, layouts[key], sizes, label, first_row)


def _where(store: Store, catalog: Catalog, part_id: str) -> tuple[Manifest, Location]:
    """Where the part lies; looks again when its folder was merged away since the catalog."""
    manifest, location = catalog.manifests[part_id], catalog.locations[part_id]
    if not (store.path / PARTS / location.folder).is_dir():
        latest = store.files.catalog()
        found = latest.manifests.get(part_id)
        if found is not None and found.content_hash == manifest.content_hash:
            return found, latest.locations[part_id]
    return manifest, location
