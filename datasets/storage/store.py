"""The store: immutable parts, a catalog that commits them, and selections of their episodes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from datasets.catalog.catalog import Catalog
from datasets.catalog.catalog_files import CatalogFolder
from datasets.catalog.grouping import select_rows
from datasets.catalog.manifest import Manifest, PartRecord
from datasets.errors import DatasetError
from datasets.files import exclusive_lock, replace_durably
from datasets.layout import MERGED_PREFIX, SHARD_STEPS, STAGING
from datasets.schema import Schema
from datasets.selection.selection import Selection
from datasets.storage.root import SCHEMA_VERSION, RootRecord, plain_plan, read_root, write_skeleton
from datasets.storage.s3.bucket import is_bucket_url
from datasets.storage.tags import Tag, read_tag, tag_names, write_tag

if TYPE_CHECKING:
    from datasets.storage.shards import ArrayReader

# Imports inside the functions that write or read arrays: Zarr alone takes longer to import than a
# query needs to answer.

_PART_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")


class Store:
    """A dataset on a local file system; make one with ``create`` or ``open``.

    Layout: ``zarr.json`` (a Zarr v3 group whose attributes hold the schema), ``parts/<id>/`` (a
    group a part), ``catalog/<id>.parquet`` (an episode a row; its appearance is the commit),
    ``tags/<name>.json``.

    Attributes:
        path: its folder.
        address: what messages call it: its folder, or its URL.
        schema: its fields.
        plan: the collection plan as JSON values that was given at its creation, or None.
        tag_name: the tag it was opened at, or None: what ``select`` and ``info`` show.
        files: its committed catalog files.
    """

    def __init__(
        self, path: Path, record: RootRecord, tag: Tag | None = None, address: str = ""
    ) -> None:
        self.path = path
        self.address = address or str(path)
        self.schema = record.schema
        self.plan = record.plan
        self.tag_name = tag.name if tag else None
        self.files = CatalogFolder(path, record.schema.hash, self.address)
        self._version = record.version
        self._tag = tag
        self._tagged: tuple[Catalog, Catalog] | None = None
        self._layouts: dict[tuple[str, str], Any] = {}

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        schema: Schema,
        plan: Mapping[str, Any] | None = None,
    ) -> Store:
        """Create a store, or open the one there if it has an equal schema.

        Args:
            path: of the new folder.
            schema: the fields.
            plan: JSON values to keep with it; a store that exists keeps its own.

        Raises:
            DatasetError: another schema is there, the path is something else, or cannot be written;
                nothing is left behind.
        """
        root = Path(path)
        record = RootRecord(schema, plain_plan(plan))
        if _is_there(root):
            return cls._open_equal(root, schema)
        temporary = root.with_name(f".{root.name}.{uuid.uuid4().hex}.tmp")
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            write_skeleton(temporary, record)
            replace_durably(temporary, root)
        except OSError as error:
            if _is_there(root):  # another process was faster
                return cls._open_equal(root, schema)
            raise DatasetError(
                f"cannot create a store at {root}: {error.strerror}; give a path in a folder that "
                "can be written"
            ) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        return cls(root, record)

    @classmethod
    def open(cls, path: str | os.PathLike[str], tag: str | None = None) -> Store:
        """Open an existing store, at one of its tags if ``tag`` is given.

        Raises:
            DatasetError: nothing there, not a store, a schema version this program cannot read, or
                no such tag.
        """
        root = Path(path)
        return cls(root, read_root(root), None if tag is None else read_tag(root, tag))

    @classmethod
    def _open_equal(cls, root: Path, schema: Schema) -> Store:
        store = cls.open(root)
        if store.schema != schema:
            raise DatasetError(
                f"store {root} has another schema; open it with its own, or give a new path"
            )
        store._check_writable()
        return store

    def parts(self) -> list[str]:
        """Ids of the committed parts as they were collected, sorted."""
        return self.files.part_ids() if self._tag is None else sorted(self._tag.parts)

    def missing(self, part_ids: Iterable[str]) -> list[str]:
        """Those of ``part_ids`` that are not committed, in the given order."""
        committed = set(self.parts())
        return [part_id for part_id in part_ids if part_id not in committed]

    def write_part(
        self,
        part_id: str,
        steps: Mapping[str, npt.ArrayLike],
        episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table,
        per_episode: Mapping[str, npt.ArrayLike] | None = None,
    ) -> PartRecord:
        """Write and commit one part; a committed part is left as it is and its record returned.

        Args:
            part_id: letters, digits, ``_``, ``-`` and ``.``.
            steps: field -> (T, *shape), the episodes' steps one after the other.
            episodes: column -> one value an episode (``catalog.REQUIRED_COLUMNS`` and any further
                numbers or text); ``length`` must sum to T.
            per_episode: field -> (E, *shape) for the fields an episode.

        Raises:
            DatasetError: the input does not fit the schema (nothing is written), or the disk
                refuses (nothing is committed).
        """
        from datasets.catalog.episodes import episode_table
        from datasets.storage.commit import commit_part
        from datasets.storage.parts import check_arrays

        self._check_writable()
        if not _PART_ID.fullmatch(part_id) or part_id.startswith(MERGED_PREFIX):
            raise DatasetError(
                f"part id {part_id!r} is not allowed: use up to 120 letters, digits, '_', '-', "
                f"'.', not beginning with {MERGED_PREFIX!r}"
            )
        try:
            table = episode_table(episodes, part_id)
            arrays = check_arrays(self.schema, steps, per_episode or {}, table.num_rows)
            total = len(arrays[self.schema.names("step")[0]])
            summed = sum(table.column("length").to_pylist())
            if summed != total:
                raise DatasetError(f"lengths sum to {summed}, the fields have {total} steps")
        except DatasetError as error:
            raise DatasetError(f"part {part_id}: {error}") from error
        try:
            with self.part_lock(part_id):
                if self.missing([part_id]):
                    return commit_part(self.path, self.schema, part_id, table, arrays).record
                return self.files.find(part_id).record
        except OSError as error:
            raise DatasetError(
                f"part {part_id} was not committed to {self.address}: {error.strerror or error}"
            ) from error

    @contextlib.contextmanager
    def part_lock(self, part_id: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the right to write ``part_id``; yields False if another process has it."""
        (self.path / STAGING).mkdir(exist_ok=True)
        with exclusive_lock(self.path / STAGING / f"{part_id}.lock", wait=wait) as held:
            yield held

    def catalog(self) -> Catalog:
        """All committed episodes, or the tag's; files that did not change are not read again.

        Raises:
            DatasetError: a catalog file is damaged or from another schema, or a part of the tag is
                absent.
        """
        catalog = self.files.catalog()
        if self._tag is None:
            return catalog
        if self._tagged is None or self._tagged[0] is not catalog:
            try:
                self._tagged = catalog, catalog.restricted(self._tag.parts)
            except DatasetError as error:
                raise DatasetError(f"tag {self.tag_name} of {self.address}: {error}") from error
        return self._tagged[1]

    def info(self) -> dict[str, Any]:
        """Version hash, sizes and schema version: what identifies the dataset.

        ``hash`` covers the schema and the contents (every value of every field and catalog column)
        of the committed parts as they were collected, and nothing else: not the files that hold
        them, nor compression, nor whether parts were merged. ``parts`` counts them as collected;
        ``bytes`` counts the folders and catalog files that readers use.
        """
        catalog = self.catalog()
        manifests = list(catalog.manifests.values())
        folders = {
            location.folder: catalog.manifests[part_id].stored_bytes
            for part_id, location in catalog.locations.items()
        }
        return {
            "hash": dataset_hash(self.schema, manifests),
            "steps": sum(each.steps for each in manifests),
            "episodes": sum(each.episodes for each in manifests),
            "parts": len(manifests),
            "bytes": sum(folders.values())
            + sum(self.files.path(folder).stat().st_size for folder in folders),
            "schema_version": self._version,
        }

    def tag(self, name: str) -> Tag:
        """Keep the committed parts as the version ``name``; the same again changes nothing.

        Raises:
            DatasetError: a name that is not allowed, or was given to another version.
        """
        self._check_writable()
        catalog, info = self.catalog(), self.info()
        hashes = {part_id: each.content_hash for part_id, each in catalog.manifests.items()}
        sizes = info["hash"], info["steps"], info["episodes"]
        return write_tag(self.path, Tag(name, *sizes, hashes), self.address)

    def tags(self) -> list[Tag]:
        """The named versions, sorted by name; DatasetError when one's file is damaged."""
        return [read_tag(self.path, name, self.address) for name in tag_names(self.path)]

    def verify(self) -> list[str]:
        """Faults of the store, a line each that names the part; empty when all is as written."""
        from datasets.storage.integrity import verify_store

        return verify_store(self)

    def gc(self) -> list[str]:
        """Remove what uncommitted writers left, and parts that ``compact`` replaced.

        A part that another process is writing at this moment is left alone. Readers that opened the
        store before a compaction find the merged parts by themselves.

        Returns:
            The removed paths below the store.

        Raises:
            DatasetError: the folder cannot be written, or a merged part is damaged, so that the
                parts it replaces must stay.
        """
        from datasets.storage.integrity import remove_leftovers

        self._check_writable()
        return remove_leftovers(self)

    def compact(self, target_steps: int = SHARD_STEPS) -> list[PartRecord]:
        """Merge small parts and bring the catalog index up to date; see ``compaction``."""
        from datasets.storage.compaction import compact_store

        self._check_writable()
        return compact_store(self, target_steps)

    def select(
        self,
        terrain: str | Sequence[str] | None = None,
        skill: str | Sequence[str] | None = None,
        level: int | Sequence[int] | None = None,
        part: str | Sequence[str] | None = None,
        **equals: Any,
    ) -> Selection:
        """Episodes whose columns take one of the given values; no argument selects them all.

        Raises:
            DatasetError: an unknown column, or a value that no episode has; lists what there is.
        """
        wanted = {"terrain": terrain, "skill": skill, "level": level, "part": part, **equals}
        catalog = self.catalog()
        given = {name: value for name, value in wanted.items() if value is not None}
        return Selection(self, catalog, select_rows(catalog, given, self.address))

    def array_reader(self, catalog: Catalog, part_id: str, field: str) -> ArrayReader:
        """A reader of one field's rows in one part as collected; use it as a context manager.

        Raises:
            DatasetError: unknown field, or the array's metadata is missing or damaged.
        """
        from datasets.storage.part_arrays import open_array

        return open_array(self, catalog, part_id, field, self._layouts)

    def _check_writable(self) -> None:
        if self._tag is not None:
            raise DatasetError(
                f"store {self.address} was opened at tag {self.tag_name}, which never changes; "
                "open it without a tag to write to it"
            )
        if self._version != SCHEMA_VERSION:
            raise DatasetError(
                f"store {self.address} has schema version {self._version} and can only be read; "
                f"migrate it to version {SCHEMA_VERSION} to write to it (datasets.migrate_store)"
            )


def open_store(address: str | os.PathLike[str], tag: str | None = None) -> Store:
    """Open an existing store, at one of its tags if ``tag`` is given; see ``Store.open``.

    Args:
        address: a folder, or ``s3://bucket/prefix``.
    """
    return _kind_of(address).open(address, tag)


def create_store(
    address: str | os.PathLike[str], schema: Schema, plan: Mapping[str, Any] | None = None
) -> Store:
    """Create a store, or open the one there if it has an equal schema; see ``Store.create``.

    Args:
        address: a folder, or ``s3://bucket/prefix``.
    """
    return _kind_of(address).create(address, schema, plan)


def _kind_of(address: str | os.PathLike[str]) -> type[Store]:
    if not is_bucket_url(address):
        return Store
    from datasets.storage.s3.object_store import RemoteStore

    return RemoteStore


def dataset_hash(schema: Schema, manifests: Iterable[Manifest]) -> str:
    """SHA-256 of a schema and the content hashes of parts as collected, in the order of names."""
    content = [schema.hash, *(each.content_hash for each in manifests)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _is_there(root: Path) -> bool:
    try:
        return root.is_file() or any(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DatasetError(f"cannot read {root}: {error.strerror}") from error
