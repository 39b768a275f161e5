"""A store's record in its root `zarr.json`: layout version, schema and collection plan."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gaitforge.common.errors import DatasetError, failures
from gaitforge.common.files import fsync_path, fsync_tree
from gaitforge.common.liveness import read_current
from gaitforge.datasets.catalog.manifest import json_sha256
from gaitforge.datasets.layout import ATTRIBUTE, CATALOG, PARTS, ROOT_FILE, STAGING
from gaitforge.datasets.schema import Schema, plain_json

SCHEMA_VERSION = 3
"""Version of the store's layout."""

DIGEST = "sha256"
GROUP = {"zarr_format": 3, "node_type": "group"}
"""What the metadata of a Zarr group holds beside its attributes."""


@dataclass(frozen=True)
class RootRecord:
    """A store's schema and collection plan (JSON values or None)."""

    schema: Schema
    plan: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, object]:
        """The attribute's value."""
        tree: dict[str, object] = {
            "schema_version": SCHEMA_VERSION,
            "schema": self.schema.to_json(),
            "plan": None if self.plan is None else dict(self.plan),
        }
        return tree | {DIGEST: _digest(tree)}

    @classmethod
    def from_json(cls, tree: Mapping[str, Any]) -> "RootRecord":
        """The inverse of `to_json`; DatasetError for another version and for damage."""
        version = tree.get("schema_version")
        if isinstance(version, bool) or version != SCHEMA_VERSION:
            raise DatasetError(
                f"schema version {version} is not supported; this program reads version "
                f"{SCHEMA_VERSION}"
            )
        try:
            if tree[DIGEST] != _digest(tree):
                raise DatasetError("its record is damaged: it has changed since it was written")
            return cls(Schema.from_json(tree["schema"]), tree["plan"])
        except (KeyError, TypeError, AttributeError) as error:
            raise DatasetError(f"the stored schema is damaged: {error!r}") from error


def _digest(tree: Mapping[str, Any]) -> str:
    return json_sha256({name: value for name, value in tree.items() if name != DIGEST})


def read_root(root: Path, address: str = "") -> RootRecord:
    """The record of the store at `root`; DatasetError for no store, or another version."""
    shown = address or root
    if not root.exists():
        raise DatasetError(f"no store at {shown}; give the path of an existing store")
    try:
        tree = json.loads(read_current(root / ROOT_FILE)[0])
        attribute = tree["attributes"][ATTRIBUTE]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DatasetError(
            f"{shown} is not a store of gaitforge; give a folder that holds a {ROOT_FILE} with "
            f"the attribute {ATTRIBUTE!r}"
        ) from error
    if not isinstance(attribute, dict):
        raise DatasetError(f"store {shown}: {ROOT_FILE} is damaged: {attribute!r:.80}")
    with failures(f"store {shown}, {ROOT_FILE}"):
        return RootRecord.from_json(attribute)


def plain_plan(plan: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """A copy of `plan` in JSON values; DatasetError if it has others."""
    return None if plan is None else plain_json(plan, "a store's plan")


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
