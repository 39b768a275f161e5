"""The store: immutable parts, a catalog that commits them, and selections of their episodes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import zarr
from zarr.storage import LocalStore

from datasets.catalog import (
    Catalog,
    episode_table,
    episodes_digest,
    read_catalog_file,
    write_catalog_file,
)
from datasets.errors import DatasetError
from datasets.files import exclusive_lock, fsync_path, fsync_tree, replace_durably, sha256_file
from datasets.integrity import remove_uncommitted, verify_store
from datasets.layout import ATTRIBUTE, CATALOG, PARTS, STAGING
from datasets.manifest import Manifest, PartRecord
from datasets.parts import array_digest, check_arrays, object_hashes, write_arrays
from datasets.schema import SCHEMA_VERSION, Schema
from datasets.selection import Selection, select_rows
from datasets.shards import ArrayLayout, ArrayReader, sizes_below

CATALOG_READ_THREADS = 4

_PART_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,119}")


class Store:
    """A dataset on a local file system; make one with ``create`` or ``open``.

    Layout: ``zarr.json`` (a Zarr v3 group whose attributes hold the schema), ``parts/<id>/`` (a
    group a part), ``catalog/<id>.parquet`` (an episode a row; its appearance is the commit).
    """

    def __init__(self, path: Path, schema: Schema) -> None:
        self.path = path
        self.schema = schema
        self._files: dict[str, tuple[tuple[int, int], Manifest, pa.Table]] = {}
        self._catalog: Catalog | None = None
        self._layouts: dict[tuple[str, str], ArrayLayout] = {}

    @classmethod
    def create(cls, path: str | os.PathLike[str], schema: Schema) -> Store:
        """Create a store, or open the one there if it has an equal schema.

        Raises:
            DatasetError: another schema is there, the path is something else, or cannot be written;
                nothing is left behind.
        """
        root = Path(path)
        if _is_there(root):
            return cls._open_equal(root, schema)
        temporary = root.with_name(f".{root.name}.{uuid.uuid4().hex}.tmp")
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            _write_skeleton(temporary, schema)
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
        return cls(root, schema)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Store:
        """Open an existing store.

        Raises:
            DatasetError: nothing there, not a store, or a schema version this program cannot read.
        """
        root = Path(path)
        if not root.exists():
            raise DatasetError(f"no store at {root}; give the path of an existing store")
        try:
            tree = json.loads((root / "zarr.json").read_bytes())
            attributes = tree["attributes"][ATTRIBUTE]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DatasetError(
                f"{root} is not a store of this program; give a folder that holds a zarr.json with "
                f"the attribute {ATTRIBUTE!r}"
            ) from error
        try:
            return cls(root, Schema.from_json(attributes))
        except DatasetError as error:
            raise DatasetError(f"store {root}: {error}") from error

    @classmethod
    def _open_equal(cls, root: Path, schema: Schema) -> Store:
        store = cls.open(root)
        if store.schema != schema:
            raise DatasetError(
                f"store {root} has another schema; open it with its own, or give a new path"
            )
        return store

    def parts(self) -> list[str]:
        """Ids of the committed parts, sorted."""
        return sorted(path.stem for path in (self.path / CATALOG).glob("*.parquet"))

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
        if not _PART_ID.fullmatch(part_id):
            raise DatasetError(
                f"part id {part_id!r} is not allowed: use up to 120 letters, digits, '_', '-', '.'"
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
            (self.path / STAGING).mkdir(exist_ok=True)
            with self.part_lock(part_id):
                if self.missing([part_id]):
                    self._commit(part_id, table, arrays, total)
                return self._catalog_file(part_id)[0].record
        except OSError as error:
            raise DatasetError(
                f"part {part_id} was not committed to {self.path}: {error.strerror or error}"
            ) from error

    def _commit(
        self, part_id: str, table: pa.Table, arrays: Mapping[str, np.ndarray], total: int
    ) -> None:
        staged = self.path / STAGING / part_id
        staged_catalog = staged.with_name(f"{part_id}.parquet")
        target = self.path / PARTS / part_id
        try:
            shutil.rmtree(staged, ignore_errors=True)
            write_arrays(staged, self.schema, part_id, arrays)
            fsync_tree(staged)
            manifest = Manifest(
                part_id=part_id,
                schema_hash=self.schema.hash,
                steps=total,
                episodes=table.num_rows,
                episodes_digest=episodes_digest(table),
                arrays={name: array_digest(array) for name, array in arrays.items()},
                objects=object_hashes(staged),
            )
            write_catalog_file(staged_catalog, table, manifest)
            if target.exists():  # left by a writer that died before its commit
                shutil.rmtree(target)
            replace_durably(staged, target)
            replace_durably(staged_catalog, self.path / CATALOG / f"{part_id}.parquet")
        finally:
            shutil.rmtree(staged, ignore_errors=True)
            staged_catalog.unlink(missing_ok=True)

    @contextlib.contextmanager
    def part_lock(self, part_id: str, *, wait: bool = True) -> Iterator[bool]:
        """Hold the right to write ``part_id``; yields False if another process has it."""
        with exclusive_lock(self.path / STAGING / f"{part_id}.lock", wait=wait) as held:
            yield held

    def catalog(self) -> Catalog:
        """All committed episodes; files that did not change are not read again.

        Raises:
            DatasetError: a catalog file is damaged or from another schema.
        """
        names = self.parts()
        with ThreadPoolExecutor(CATALOG_READ_THREADS) as threads:
            loaded = list(threads.map(self._catalog_file, names))
        if self._catalog is None or list(self._catalog.manifests.values()) != [
            manifest for manifest, _ in loaded
        ]:
            self._catalog = Catalog.join(loaded)
        return self._catalog

    def _catalog_file(self, part_id: str) -> tuple[Manifest, pa.Table]:
        path = self.path / CATALOG / f"{part_id}.parquet"
        try:
            status = path.stat()
        except FileNotFoundError as error:
            raise DatasetError(f"no part {part_id} in {self.path}") from error
        stamp = (status.st_mtime_ns, status.st_size)
        known = self._files.get(part_id)
        if known is None or known[0] != stamp:
            manifest, table = read_catalog_file(path)
            if manifest.schema_hash != self.schema.hash:
                raise DatasetError(f"part {part_id} of {self.path} is of another schema")
            known = self._files[part_id] = (stamp, manifest, table)
        return known[1], known[2]

    def info(self) -> dict[str, Any]:
        """Version hash, sizes and schema version: what identifies the dataset.

        ``hash`` covers the schema and the content hashes of the committed parts; ``bytes`` counts
        the parts' objects and the catalog files.
        """
        manifests = list(self.catalog().manifests.values())
        content = [self.schema.hash, *(manifest.content_hash for manifest in manifests)]
        files = [self.path / CATALOG / f"{each.part_id}.parquet" for each in manifests]
        return {
            "hash": hashlib.sha256("\n".join(content).encode()).hexdigest(),
            "steps": sum(each.steps for each in manifests),
            "episodes": sum(each.episodes for each in manifests),
            "parts": len(manifests),
            "bytes": sum(each.record.bytes for each in manifests)
            + sum(file.stat().st_size for file in files),
            "schema_version": SCHEMA_VERSION,
        }

    def verify(self) -> list[str]:
        """Faults of the store, a line each that names the part; empty when all is as written."""
        return verify_store(self)

    def gc(self) -> list[str]:
        """Remove what uncommitted writers left; returns the removed paths below the store.

        A part that another process is writing at this moment is left alone.
        """
        return remove_uncommitted(self)

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
        return Selection(self, catalog, select_rows(catalog, given, self.path))

    def array_reader(self, catalog: Catalog, part_id: str, field: str) -> ArrayReader:
        """A reader of one field's rows in one part; use it as a context manager.

        Raises:
            DatasetError: unknown field, or the array's metadata is missing or damaged.
        """
        self.schema.field(field)
        manifest = catalog.manifests[part_id]
        folder = self.path / PARTS / part_id / field
        label = f"part {part_id} of {self.path}, field {field}"
        key = (manifest.content_hash, field)
        if key not in self._layouts:
            path = folder / "zarr.json"
            try:
                damaged = sha256_file(path) != manifest.objects[f"{field}/zarr.json"][1]
            except OSError as error:
                raise DatasetError(f"{label}: zarr.json is missing") from error
            if damaged:
                raise DatasetError(f"{label}: zarr.json is not the file that was written")
            self._layouts[key] = ArrayLayout.parse(path.read_bytes())
        return ArrayReader(folder, self._layouts[key], sizes_below(manifest.objects, field), label)


def open_store(path: str | os.PathLike[str]) -> Store:
    """Open an existing store; see ``Store.open``."""
    return Store.open(path)


def _is_there(root: Path) -> bool:
    try:
        return root.is_file() or any(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DatasetError(f"cannot read {root}: {error.strerror}") from error


def _write_skeleton(folder: Path, schema: Schema) -> None:
    folder.mkdir()
    zarr.create_group(
        LocalStore(folder), zarr_format=3, attributes={ATTRIBUTE: schema.to_json()}
    ).create_group(PARTS)
    (folder / CATALOG).mkdir()
    (folder / STAGING).mkdir()
    fsync_tree(folder)
    fsync_path(folder.parent)
