"""The commit record of a part, kept in its catalog file's Parquet metadata."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gaitforge.common.errors import DatasetError

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
