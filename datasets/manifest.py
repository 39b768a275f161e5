"""What a part's commit record says about it, kept in its catalog file's Parquet metadata."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from datasets.errors import DatasetError

MANIFEST_KEY = b"gaitforge_manifest"
DIGEST_KEY = b"gaitforge_manifest_sha256"


@dataclass(frozen=True)
class PartRecord:
    """What ``write_part`` returns: sizes and the content hash of one committed part."""

    part_id: str
    steps: int
    episodes: int
    bytes: int
    content_hash: str


@dataclass(frozen=True)
class Manifest:
    """The commit record of one part.

    Attributes:
        part_id: the part.
        schema_hash: hash of the schema it was written under.
        steps: rows of the fields a step.
        episodes: rows of the catalog file.
        episodes_digest: digest of the catalog's values.
        arrays: field -> digest of the uncompressed array.
        objects: object name below the part's folder -> (bytes, SHA-256).
    """

    part_id: str
    schema_hash: str
    steps: int
    episodes: int
    episodes_digest: str
    arrays: Mapping[str, str]
    objects: Mapping[str, tuple[int, str]]

    @property
    def content_hash(self) -> str:
        """Hash of what the part holds, independent of compression and Parquet encoding."""
        content = {
            "part_id": self.part_id,
            "schema_hash": self.schema_hash,
            "steps": self.steps,
            "episodes": self.episodes,
            "episodes_digest": self.episodes_digest,
            "arrays": dict(self.arrays),
        }
        return hashlib.sha256(_canonical(content)).hexdigest()

    @property
    def record(self) -> PartRecord:
        """The summary that callers get."""
        total = sum(size for size, _ in self.objects.values())
        return PartRecord(self.part_id, self.steps, self.episodes, total, self.content_hash)

    def to_metadata(self) -> dict[bytes, bytes]:
        """Parquet key-value metadata: the record and its digest."""
        tree = {name: getattr(self, name) for name in self.__dataclass_fields__}
        content = _canonical(tree)
        return {
            MANIFEST_KEY: content,
            DIGEST_KEY: hashlib.sha256(content).hexdigest().encode(),
        }

    @classmethod
    def from_metadata(cls, metadata: Mapping[bytes, bytes]) -> Manifest:
        """Read the record back; DatasetError when it is absent or damaged."""
        content = metadata.get(MANIFEST_KEY, b"")
        if hashlib.sha256(content).hexdigest().encode() != metadata.get(DIGEST_KEY):
            raise DatasetError("its commit record is absent or damaged")
        tree: dict[str, Any] = json.loads(content)
        tree["objects"] = {name: (size, sha) for name, (size, sha) in tree["objects"].items()}
        return cls(**tree)


def _canonical(tree: object) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":")).encode()
