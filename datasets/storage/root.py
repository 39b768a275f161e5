"""A store's record in its root `zarr.json`: layout version, schema and collection plan.

Versions of the layout:

1. The attribute `gaitforge` is the schema with its version number.
2. The attribute holds `schema` and `plan`; parts may be merged, and versions tagged.
3. The schema names the two catalog columns that episodes are grouped by (`group_by`). Before,
   they were always `terrain` and `skill`; in stores of Gymnasium, D4RL and Minari data they are
   now `task` and `quality`. Older catalog files keep the old names on disk and are read under
   the new ones. The data is the same, and so are the hashes of the parts and of the dataset.
4. As 3; the store has edits (see `catalog.edits`), which programs of version 3 would not see.
   Written at the first edit only, so that other stores stay readable for older programs.

An older store is migrated in memory and can be read. Writing to it needs `migrate_store` first,
because programs of its version could not read what is written.
"""

import copy
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gaitforge.datasets.catalog.manifest import canonical_json
from gaitforge.datasets.errors import DatasetError
from gaitforge.datasets.files import fsync_path, fsync_tree, write_bytes_durably
from gaitforge.datasets.layout import ATTRIBUTE, CATALOG, PARTS, ROOT_FILE, STAGING
from gaitforge.datasets.schema import Schema, older_group_by

SCHEMA_VERSION = 3
"""Version of the store's layout that this program writes."""

EDITED_VERSION = 4
"""Version of a store with edits."""

DIGEST = "sha256"
"""Key of the record's SHA-256, of its other entries."""

GROUP = {"zarr_format": 3, "node_type": "group"}
"""What the metadata of a Zarr group holds beside its attributes."""


@dataclass(frozen=True)
class RootRecord:
    """A store's schema, collection plan (JSON values or None) and layout version on disk."""

    schema: Schema
    plan: Mapping[str, Any] | None = None
    version: int = SCHEMA_VERSION

    def to_json(self) -> dict[str, object]:
        """The attribute's value in the current version."""
        tree: dict[str, object] = {
            "schema_version": max(self.version, SCHEMA_VERSION),
            "schema": self.schema.to_json(),
            "plan": None if self.plan is None else dict(self.plan),
        }
        return tree | {DIGEST: _digest(tree)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "RootRecord":
        """Read a record of any supported version; DatasetError for others and for damage."""
        try:
            current = migrated(tree)
            written = tree.get(DIGEST)  # older programs wrote none
            if tree["schema_version"] >= SCHEMA_VERSION and written not in (None, _digest(tree)):
                raise DatasetError("its record has changed since it was written")
            return cls(Schema.from_json(current["schema"]), current["plan"], tree["schema_version"])
        except (KeyError, TypeError, AttributeError) as error:
            raise DatasetError(f"the stored schema is damaged: {error!r}") from error


def _digest(tree: Mapping[str, Any]) -> str:
    content = {name: value for name, value in tree.items() if name != DIGEST}
    return hashlib.sha256(canonical_json(content)).hexdigest()


def _from_1(tree: Mapping[str, Any]) -> dict[str, Any]:
    schema = {key: value for key, value in tree.items() if key != "schema_version"}
    return {"schema_version": 2, "schema": schema, "plan": None}


def _from_2(tree: Mapping[str, Any]) -> dict[str, Any]:
    schema = {**tree["schema"], "group_by": older_group_by(tree["schema"]["attributes"])}
    return {**tree, "schema_version": 3, "schema": schema}


MIGRATIONS: dict[int, Callable[[Mapping[str, Any]], dict[str, Any]]] = {1: _from_1, 2: _from_2}
"""Version -> the function that turns its record into the next version's."""


def migrated(tree: Mapping[str, Any]) -> dict[str, Any]:
    """The record in the current version; DatasetError for a newer or an unknown version."""
    found = tree.get("schema_version")
    known = isinstance(found, int) and not isinstance(found, bool)
    if not known or found not in (*MIGRATIONS, SCHEMA_VERSION, EDITED_VERSION):
        newer = known and found is not None and found > EDITED_VERSION
        hint = "; a newer program wrote it: update this one" if newer else ""
        raise DatasetError(
            f"schema version {found} is not supported; this program reads versions "
            f"{min(MIGRATIONS)} to {EDITED_VERSION}{hint}"
        )
    current = copy.deepcopy(dict(tree))
    while current["schema_version"] < SCHEMA_VERSION:
        current = MIGRATIONS[current["schema_version"]](current)
    return current


def read_root(root: Path, address: str = "") -> RootRecord:
    """The record of the store at `root`; DatasetError if it is none or of a newer version."""
    shown = address or root
    if not root.exists():
        raise DatasetError(f"no store at {shown}; give the path of an existing store")
    try:
        tree = json.loads((root / ROOT_FILE).read_bytes())
        attribute = tree["attributes"][ATTRIBUTE]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{shown} is not a store of gaitforge; give a folder that holds a {ROOT_FILE} with "
            f"the attribute {ATTRIBUTE!r}"
        ) from error
    if not isinstance(attribute, dict):
        raise DatasetError(f"store {shown}: {ROOT_FILE} is damaged: {attribute!r:.80}")
    try:
        return RootRecord.from_json(attribute)
    except DatasetError as error:
        raise DatasetError(f"store {shown}, {ROOT_FILE}: {error}") from error


def migrate_root(root: Path) -> int:
    """Bring a store's root record to the current version; returns its previous version.

    One file is replaced atomically; parts and the dataset's hash do not change. Programs of the old
    version cannot open the store afterwards. DatasetError as `read_root`, or if it cannot be
    written.
    """
    record = read_root(root)
    if record.version < SCHEMA_VERSION:
        try:
            _rewrite_root(root, record)
        except OSError as error:
            raise DatasetError(f"store {root} cannot be migrated: {error.strerror}") from error
    return record.version


def raise_version(root: Path) -> None:
    """Mark a store as one with edits, so that older programs refuse it; OSError as for files."""
    record = read_root(root)
    if record.version != EDITED_VERSION:
        _rewrite_root(root, replace(record, version=EDITED_VERSION))


def _rewrite_root(root: Path, record: RootRecord) -> None:
    tree = json.loads((root / ROOT_FILE).read_bytes())
    tree["attributes"][ATTRIBUTE] = record.to_json()
    write_bytes_durably(root / ROOT_FILE, json.dumps(tree, indent=2).encode())


def plain_plan(plan: Mapping[str, Any] | None) -> dict[str, object] | None:
    """A copy of `plan` in JSON values; DatasetError if it has others."""
    try:
        return None if plan is None else json.loads(json.dumps(dict(plan), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise DatasetError(f"a store's plan must be plain JSON values: {error}") from error


def write_skeleton(folder: Path, record: RootRecord) -> None:
    """Make the new `folder` an empty store."""
    import zarr  # slow to import: 0.14 s, which a query should not pay
    from zarr.storage import LocalStore

    folder.mkdir()
    zarr.create_group(
        LocalStore(folder), zarr_format=3, attributes={ATTRIBUTE: record.to_json()}
    ).create_group(PARTS)
    (folder / CATALOG).mkdir()
    (folder / STAGING).mkdir()
    fsync_tree(folder)
    fsync_path(folder.parent)
