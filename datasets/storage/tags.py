"""Tags: named, immutable versions of a dataset, as lists of parts with their hashes."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from gaitforge.common.errors import DatasetError, disk_failures, failures, listed
from gaitforge.common.files import create_durably, fsync_path, visible
from gaitforge.datasets.catalog.manifest import sealed, unsealed
from gaitforge.datasets.layout import TAGS

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
        tags = listed(tag_names(root))
        raise DatasetError(f"no tag {name!r} in {address or root}; allowed: {tags}")
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
