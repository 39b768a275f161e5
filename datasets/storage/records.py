"""What a store's folder holds beside parts: its root record, the log of its edits, and tags."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures, failures, names_allowed
from gaitforge.common.files import (
    create_durably,
    fsync_path,
    fsync_tree,
    visible,
    write_bytes_durably,
)
from gaitforge.common.locks import again_if_stale, exclusive_lock, read_current
from gaitforge.datasets.catalog.catalog import json_sha256, sealed, unsealed
from gaitforge.datasets.catalog.edit_log import Edit, edit_name, is_edit_name, read_edit
from gaitforge.datasets.layout import ATTRIBUTE, CATALOG, EDITS, PARTS, ROOT_FILE, STAGING, TAGS
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


LEFT_OUT = "parts_left_out"
"""Key in a plan: parts of the imported sources that a store was made of, which it was made without.

An import would otherwise bring them back.
"""


def parts_left_out(plan: Any) -> set[str]:
    """The parts that a plan, or one of the plans that it is made of, names under `LEFT_OUT`."""
    if isinstance(plan, list):
        return set[str]().union(*map(parts_left_out, plan))
    if not isinstance(plan, Mapping):
        return set()
    return set(plan.get(LEFT_OUT, ())).union(*map(parts_left_out, plan.values()))


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


LOCK = f"{EDITS}.lock"
"""Held while an edit is committed, in `.staging`."""


def last_sha256(edits: Sequence[Edit]) -> str:
    """`sha256` of the last edit; empty for none."""
    return edits[-1].sha256 if edits else ""


class EditLog:
    """The edits of the store at `root`, read again only when their files change."""

    def __init__(self, root: Path, address: str) -> None:
        self._root = root
        self._address = address
        self._read: dict[str, tuple[tuple[int, int], Edit]] = {}
        self._last: tuple[Edit, ...] = ()

    @property
    def folder(self) -> Path:
        """Folder of the edits' files; it need not exist."""
        return self._root / EDITS

    def names(self) -> list[str]:
        """Names of the edits' files in order."""
        try:
            return sorted(name for name in os.listdir(self.folder) if is_edit_name(name))
        except FileNotFoundError:
            return []

    def load(self) -> tuple[Edit, ...]:
        """All edits in order: the same tuple while none is added.

        DatasetError if one is damaged, missing, or does not follow the one before it.
        """
        edits: list[Edit] = []
        for name in self.names():
            edit = self._edit(name)
            if (edit.number, edit.previous) != (len(edits) + 1, last_sha256(edits)):
                raise DatasetError(
                    f"edit {name} of {self._address} does not follow the edit before it: a file of "
                    f"{EDITS}/ was removed or added"
                )
            edits.append(edit)
        if [id(edit) for edit in edits] != [id(edit) for edit in self._last]:
            self._last = tuple(edits)
        return self._last

    def _edit(self, name: str) -> Edit:
        path = self.folder / name
        status = again_if_stale(path, path.stat)
        stamp = (status.st_size, status.st_mtime_ns)
        entry = self._read.get(name)
        if entry is None or entry[0] != stamp:
            entry = self._read[name] = (stamp, read_edit(path, self._address))
        return entry[1]

    def append(
        self,
        kind: str,
        content: Mapping[str, Any],
        rows: pa.Table,
        origin: Mapping[str, Any],
        after: str,
    ) -> Edit:
        """Commit an edit (see `Edit`); its file's appearance is the commit.

        The time is added to an `origin` without one. DatasetError, and nothing changed, if the
        disk fails or the last edit's `sha256` is not `after` (empty for none).
        """
        with disk_failures(f"store {self._address} cannot be edited"):
            (self._root / STAGING).mkdir(exist_ok=True)
            with exclusive_lock(self._root / STAGING / LOCK):
                edits = self.load()
                if last_sha256(edits) != after:
                    raise DatasetError(
                        f"store {self._address} was edited by another process meanwhile; nothing "
                        "was changed: run the same again"
                    )
                if not edits:
                    self.folder.mkdir(exist_ok=True)
                    fsync_path(self._root)
                now = datetime.now(UTC).isoformat(timespec="seconds")
                edit = Edit(len(edits) + 1, kind, content, {"made": now, **origin}, after, rows)
                written = edit.to_bytes()
                write_bytes_durably(self.folder / edit_name(edit.number, written), written)
                return self.load()[-1]


TAG_VERSION = 2

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")


@dataclass(frozen=True)
class Tag:
    """A named version: the dataset's hash and size as in `Store.info`, and its parts' hashes.

    `edits` are the SHA-256 of the edits' files that it includes, in order.
    """

    name: str
    hash: str
    steps: int
    episodes: int
    parts: Mapping[str, str]
    edits: Sequence[str] = ()


def write_tag(root: Path, tag: Tag, address: str = "") -> Tag:
    """Write a tag; DatasetError if its name is not allowed or taken, or it cannot be written."""
    if not _NAME.fullmatch(tag.name):
        raise DatasetError(
            f"tag {tag.name!r} is not allowed: use up to 80 letters, digits, '_', '-', '.'"
        )
    content = sealed({"tag_version": TAG_VERSION, **asdict(tag), "edits": list(tag.edits)})
    path = _path(root, tag.name)
    with disk_failures(f"tag {tag.name} cannot be written"):
        if not path.parent.is_dir():
            path.parent.mkdir(exist_ok=True)
            fsync_path(root)
        created = create_durably(path, content)
    if not created and read_tag(root, tag.name, address) != tag:
        raise DatasetError(
            f"tag {tag.name} of {address or root} exists with other content, and tags never "
            "change: give another name"
        )
    return tag


def read_tag(root: Path, name: str, address: str = "") -> Tag:
    """Read a tag; DatasetError if there is none of this name or its file is damaged."""
    if not _NAME.fullmatch(name) or not _path(root, name).is_file():
        choices = names_allowed(name, tag_names(root), limit=24)
        raise DatasetError(f"no tag {name!r} in {address or root}; {choices}")
    problem = f"tag {name} of {address or root} cannot be read"
    with failures(problem, OSError, ValueError, KeyError, TypeError, AttributeError):
        body = unsealed(_path(root, name).read_bytes(), "tag_version", TAG_VERSION)
        if body["name"] != name:
            raise ValueError("its SHA-256 does not match")
        body["edits"] = tuple(body["edits"])
        return Tag(**body)


def tag_names(root: Path) -> list[str]:
    """Names of the tags, sorted."""
    return [path.stem for path in visible(root / TAGS) if path.suffix == ".json"]


def _path(root: Path, name: str) -> Path:
    return root / TAGS / f"{name}.json"
