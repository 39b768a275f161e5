"""The store, which is immutable parts and a catalog that commits them, and the commit of a part.

A part is written atomically: in a staging folder, then renamed, its catalog file last.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures, failures
from gaitforge.common.files import (
    check_inside,
    files_under,
    fsync_tree,
    join_inside,
    replace_durably,
    sha256_file,
    temporary_name,
    visible,
)
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.catalog.catalog import (
    LARGE,
    PART_ID,
    REQUIRED_COLUMNS,
    Catalog,
    Location,
    Manifest,
    PartRecord,
    check_agreement,
    column_kind,
)
from gaitforge.datasets.catalog.catalog_files import CatalogFolder, write_catalog_file
from gaitforge.datasets.catalog.edit_log import Edit, edited
from gaitforge.datasets.catalog.episodes import episode_table, episodes_digest
from gaitforge.datasets.layout import CATALOG, MERGED_PREFIX, OVERLAYS, PARTS, STAGING
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.parts import (
    ArrayLayout,
    ArrayReader,
    array_digest,
    check_arrays,
    object_hashes,
    open_array,
    write_arrays,
)
from gaitforge.datasets.storage.records import (
    SCHEMA_VERSION,
    EditLog,
    RootRecord,
    Tag,
    last_sha256,
    plain_plan,
    read_root,
    read_tag,
    tag_names,
    write_skeleton,
    write_tag,
)

COLUMNS_LOCK = f"{MERGED_PREFIX}columns"


def commit_part(
    root: Path,
    schema: Schema,
    part_id: str,
    table: pa.Table,
    arrays: Mapping[str, np.ndarray],
    members: tuple[Manifest, ...] = (),
) -> Manifest:
    """Write a part's checked arrays and catalog file; the caller holds the part's lock.

    `members` are the records of the parts that it merges. OSError if the disk fails; then nothing
    is committed, and the staged files are removed.
    """
    staged = root / STAGING / part_id
    staged_catalog = staged.with_name(f"{part_id}.parquet")
    target = root / PARTS / part_id
    try:
        shutil.rmtree(staged, ignore_errors=True)
        write_arrays(staged, schema, part_id, arrays)
        fsync_tree(staged)
        manifest = Manifest(
            part_id=part_id,
            schema_hash=schema.hash,
            steps=len(arrays[schema.names("step")[0]]),
            episodes=table.num_rows,
            episodes_digest=episodes_digest(table),
            arrays={name: array_digest(array) for name, array in arrays.items()},
            objects=object_hashes(staged),
            members=members,
        )
        write_catalog_file(staged_catalog, table, manifest)
        if target.exists():  # left by a writer killed before its commit
            shutil.rmtree(target)
        replace_durably(staged, target)
        replace_durably(staged_catalog, root / CATALOG / f"{part_id}.parquet")
        return manifest
    finally:
        shutil.rmtree(staged, ignore_errors=True)
        staged_catalog.unlink(missing_ok=True)


@dataclass(frozen=True)
class StoreInfo:
    """A store's hash and sizes.

    `hash` covers the schema, all values of the committed parts and the edits, not how they are
    stored, compressed or merged. `steps` and `episodes` leave out what was dropped or trimmed.
    `parts` counts them as collected; `bytes` counts the folders and catalog files in use.
    `schema_version` is that of the layout on disk.
    """

    hash: str
    steps: int
    episodes: int
    parts: int
    bytes: int
    schema_version: int
    edits: int = 0


class PartStore:
    """A dataset in a local folder; `create` and `open` make one.

    Layout: `zarr.json` (a Zarr v3 group whose attributes hold the schema), `parts/<id>/` (one
    group per part), `catalog/<id>.parquet` (one row per episode; commits the part),
    `tags/<name>.json`, `edits/` (what was dropped, noted or trimmed; see `catalog.edit_log`),
    `overlays/<field>-<digest>/` (a store for each added field; see `edits.operations`).

    Attributes:
        path, address: its folder, and its folder or URL in messages.
        schema, plan: its collected fields, and the plan given at its creation or None.
        tag_name: the tag it was opened at, or None.
        files, log: its committed catalog files, and its edits' files.
    """

    def __init__(
        self, path: Path, record: RootRecord, tag: Tag | None = None, address: str = ""
    ) -> None:
        # pyarrow takes a relative path with a colon in its first component for a URL.
        self.path = path.absolute()
        self.address = address or str(path)
        self.schema = record.schema
        self.plan = record.plan
        self.tag_name = tag.name if tag else None
        self.files = CatalogFolder(self.path, record.schema, self.address)
        self.log = EditLog(self.path, self.address)
        self._tag = tag
        self._agreed: pa.Schema | None = None
        self._tagged: tuple[Catalog, Catalog] | None = None
        self._edited: tuple[Catalog, tuple[Edit, ...], Catalog] | None = None
        self._layouts: dict[tuple[Path, str], ArrayLayout] = {}
        self._overlays: dict[str, tuple[Self, Catalog]] = {}

    @classmethod
    def create(
        cls, path: str | os.PathLike[str], schema: Schema, plan: Mapping[str, Any] | None = None
    ) -> Self:
        """Create a store, or open an existing one with an equal schema, which keeps its own plan.

        DatasetError if something else is there or the path cannot be written; it leaves nothing.
        """
        root = Path(path)
        record = RootRecord(schema, plain_plan(plan))
        if _is_there(root):
            return cls._open_equal(root, schema)
        temporary = temporary_name(root)
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
    def open(cls, path: str | os.PathLike[str], tag: str | None = None) -> Self:
        """Open an existing store, at one of its tags if `tag` is given; DatasetError if none."""
        root = Path(path)
        check_inside(root, root.glob("*"))
        return cls(root, read_root(root), None if tag is None else read_tag(root, tag))

    @classmethod
    def _open_equal(cls, root: Path, schema: Schema) -> Self:
        store = cls.open(root)
        store.check_schema(schema)
        store.check_writable()
        return store

    @property
    def full_address(self) -> str:
        """The address that opens the store from any folder or machine."""
        return os.fspath(self.path.resolve())

    def refresh(self, *, anew: bool = False) -> None:
        """Bring local copies of a remote store up to date (`anew`: fetch all again)."""

    def children(self, folder: str = "") -> list[str]:
        """What is directly in the store or a folder of it and not hidden; a folder ends in "/"."""
        paths = visible(self.path / folder)
        return [f"{path.name}/" if path.is_dir() else path.name for path in paths]

    def object_sizes(self, stem: str) -> dict[str, int]:
        """Object name -> its bytes, for a part's folder."""
        folder = self.path / PARTS / stem
        names = files_under(folder) if folder.is_dir() else []
        return {name: (folder / name).stat().st_size for name in names}

    def object_sha256(self, stem: str, name: str) -> str:
        """SHA-256 of a stored object."""
        return sha256_file(self.path / PARTS / stem / name)

    def parts(self) -> list[str]:
        """Ids of the committed parts as collected, sorted."""
        self.refresh()
        return self.files.part_ids() if self._tag is None else sorted(self._tag.parts)

    def missing(self, part_ids: Iterable[str]) -> list[str]:
        """The `part_ids` that are not committed, in their order."""
        committed = set(self.parts())
        return [part_id for part_id in part_ids if part_id not in committed]

    def write_part(
        self,
        part_id: str,
        steps: Mapping[str, npt.ArrayLike],
        episodes: Mapping[str, Sequence[Any] | np.ndarray] | pa.Table,
        per_episode: Mapping[str, npt.ArrayLike] | None = None,
    ) -> PartRecord:
        """Write and commit one part; a committed part is not changed, and its record returned.

        DatasetError, and nothing committed, if the input does not fit the schema or the disk fails.

        Args:
            part_id: letters, digits, `_`, `-` and `.`.
            steps: field -> (T, *shape), the episodes' steps end to end.
            episodes: column -> one value per episode (`catalog.REQUIRED_COLUMNS`, the schema's
                `group_by`, and any further numbers or text); `length` must sum to T.
            per_episode: field -> (E, *shape) for the episode fields.
        """
        self.check_writable()
        if not PART_ID.fullmatch(part_id) or part_id.startswith(MERGED_PREFIX):
            raise DatasetError(
                f"part id {part_id!r} is not allowed: use up to 120 letters, digits, '_', '-', "
                f"'.', not beginning with {MERGED_PREFIX!r}"
            )
        with failures(f"part {part_id}"):
            table = episode_table(episodes, part_id, self.schema.group_by)
            arrays = check_arrays(self.schema, steps, per_episode or {}, table.num_rows)
            total = len(arrays[self.schema.names("step")[0]])
            summed = sum(table.column("length").to_pylist())
            if summed != total:
                raise DatasetError(f"lengths sum to {summed}, the fields have {total} steps")
        problem = f"part {part_id} was not committed to {self.address}"
        with disk_failures(problem), self._agreeing(table), self.part_lock(part_id):
            if self.missing([part_id]):
                return commit_part(self.path, self.schema, part_id, table, arrays).record
            return self.files.find(part_id).record

    @contextmanager
    def _agreeing(self, table: pa.Table) -> Iterator[None]:
        """Check a new part's columns and hold the right to add them; DatasetError if they differ.

        Columns that the store has need no lock, unless they hold whole numbers that a column of
        floats, which another part may add meanwhile, could not hold. Beside a part whose catalog
        file is damaged nothing can be compared, and a collection goes on as well.
        """
        free = [name for name in table.column_names if name not in REQUIRED_COLUMNS]
        is_known = LARGE not in [column_kind(table, name) for name in free]
        if is_known and table.schema != self._agreed:
            catalog = self._undamaged_catalog()
            present = _types(catalog.schema) if catalog else {}
            is_known = _types(table.schema).items() <= present.items()
        with nullcontext() if is_known else self.columns_lock():
            if not is_known and (catalog := self._undamaged_catalog()):
                with failures(f"store {self.address}"):
                    check_agreement(catalog, table)
            yield
        self._agreed = table.schema

    def _undamaged_catalog(self) -> Catalog | None:
        try:
            return self.catalog()
        except DatasetError:
            return None

    def columns_lock(self) -> AbstractContextManager[bool]:
        """Hold the right to add parts with other columns than the present ones."""
        return self.part_lock(COLUMNS_LOCK)

    def part_lock(self, part_id: str, *, wait: bool = True) -> AbstractContextManager[bool]:
        """Hold the right to write `part_id`; yields False if another process has it."""
        (self.path / STAGING).mkdir(exist_ok=True)
        return exclusive_lock(self.path / STAGING / f"{part_id}.lock", wait=wait)

    def edits(self) -> tuple[Edit, ...]:
        """The edits in order, or the tag's; DatasetError if a file is damaged or missing."""
        self.refresh()
        edits = self.log.load()
        if self._tag is None:
            return edits
        kept = edits[: len(self._tag.edits)]
        if tuple(edit.sha256 for edit in kept) != tuple(self._tag.edits):
            raise DatasetError(
                f"tag {self.tag_name} of {self.address}: its edits are absent or not as they were"
            )
        return kept

    def catalog(self) -> Catalog:
        """All committed episodes, or the tag's, as edited; unchanged files are not read again.

        Raises DatasetError if a file is damaged or of another schema, or a tag's part is absent.
        """
        edits = self.edits()  # before the parts: an edit's parts were committed before it
        collected = self.collected()
        entry = self._edited
        if entry is None or entry[0] is not collected or entry[1] != edits:
            with failures(f"store {self.address}"):
                entry = self._edited = collected, edits, edited(collected, edits)
        return entry[2]

    def collected(self) -> Catalog:
        """As `catalog`, without the edits."""
        self.refresh()
        catalog = self.files.catalog()
        if self._tag is None:
            return catalog
        if self._tagged is None or self._tagged[0] is not catalog:
            with failures(f"tag {self.tag_name} of {self.address}"):
                self._tagged = catalog, catalog.restricted(self._tag.parts)
        return self._tagged[1]

    def info(self) -> StoreInfo:
        """The store's hash and sizes; reads no array."""
        edits = self.edits()
        catalog = self.catalog()
        manifests = list(catalog.manifests.values())
        places = catalog.locations.items()
        sizes = {
            location.folder: catalog.manifests[part_id].stored_bytes for part_id, location in places
        }
        catalog_bytes = sum(self.files.path(folder).stat().st_size for folder in sizes)
        overlays = [self.overlay(field.folder).info() for field in catalog.fields.values()]
        steps = sum(manifest.steps for manifest in manifests)
        return StoreInfo(
            hash=_dataset_hash(self.schema, manifests, edits),
            steps=int(catalog.lengths[catalog.shown].sum()) if edits else steps,
            episodes=len(catalog.shown),
            parts=len(manifests),
            bytes=sum(sizes.values()) + catalog_bytes + sum(overlay.bytes for overlay in overlays),
            schema_version=SCHEMA_VERSION,
            edits=len(edits),
        )

    def edit(
        self,
        kind: str,
        content: Mapping[str, Any],
        rows: pa.Table,
        origin: Mapping[str, Any],
        after: Sequence[Edit],
    ) -> Edit:
        """Commit an edit of the store as it was `after` these edits; see `EditLog.append`."""
        self.check_local("edit a local copy and push that to a new address")
        self.check_writable()
        origin = {**origin, "store": self.info().hash}
        return self.log.append(kind, content, rows, origin, last_sha256(after))

    def tag(self, name: str) -> Tag:
        """Name the committed parts as a version; DatasetError for the name of another version."""
        self.check_writable()
        catalog = self.catalog()
        info = self.info()
        parts = {part_id: manifest.content_hash for part_id, manifest in catalog.manifests.items()}
        edits = tuple(edit.sha256 for edit in self.edits())
        tag = Tag(name, info.hash, info.steps, info.episodes, parts, edits)
        return write_tag(self.path, tag, self.address)

    def tags(self) -> list[Tag]:
        """The named versions, sorted by name; DatasetError if a file is damaged."""
        self.refresh()
        return [read_tag(self.path, name, self.address) for name in tag_names(self.path)]

    def array_reader(self, catalog: Catalog, part_id: str, field: str) -> ArrayReader:
        """A reader of one field's rows in one part as collected; a context manager."""
        per = self.schema.field(field).per
        manifest, location = self._located(catalog, part_id)
        folder = self.part_folder(manifest, location) / field
        first_row = location.first_step if per == "step" else location.first_episode
        label = f"part {part_id} of {self.address}, field {field}"
        return open_array(folder, manifest, first_row, label, self._layouts)

    def part_folder(self, manifest: Manifest, location: Location) -> Path:
        """The folder from which a part's arrays are read."""
        return self.path / PARTS / location.folder

    def field_reader(self, catalog: Catalog, part_id: str, field: str) -> ArrayReader:
        """As `array_reader`, also of fields that were added after the collection."""
        if field not in catalog.fields:
            return self.array_reader(catalog, part_id, field)
        added = catalog.fields[field]
        if part_id not in added.parts:
            raise DatasetError(
                f"field {field} of {self.address} is absent in part {part_id}, which was collected "
                "later; run the command that added the field again"
            )
        entry = self._overlays.get(added.folder)
        if entry is None or part_id not in entry[1].manifests:
            overlay = self.overlay(added.folder)
            entry = self._overlays[added.folder] = overlay, overlay.collected()
        overlay, held = entry
        manifest = held.manifests.get(part_id)
        if manifest is None or manifest.content_hash != added.parts[part_id]:
            raise DatasetError(
                f"field {field}, part {part_id} of {self.address} is absent or not as it was added"
            )
        return overlay.array_reader(held, part_id, field)

    def overlay(self, folder: str) -> Self:
        """The store of an added field; DatasetError if it is absent, or its name leads out."""
        join_inside(self.path / OVERLAYS, folder)
        return type(self).open(f"{self.full_address}/{OVERLAYS}/{folder}")

    def _located(self, catalog: Catalog, part_id: str) -> tuple[Manifest, Location]:
        """A part's record and place; reads the catalog again if a merge removed its folder."""
        manifest = catalog.manifests[part_id]
        location = catalog.locations[part_id]
        if not self.part_folder(manifest, location).is_dir():
            latest = self.files.catalog()
            merged = latest.manifests.get(part_id)
            if merged is not None and merged.content_hash == manifest.content_hash:
                return merged, latest.locations[part_id]
        return manifest, location

    def check_schema(self, schema: Schema) -> None:
        """DatasetError for a store that does not have exactly this schema."""
        if self.schema != schema:
            raise DatasetError(
                f"store {self.address} has another schema, {self.schema.differences(schema)}; give "
                "a new path, or what it was made with"
            )

    def check_local(self, advice: str) -> None:
        """DatasetError with the advice for a store on object storage."""
        if "://" in self.address:
            raise DatasetError(f"{self.address} is on object storage: {advice}")

    def check_writable(self) -> None:
        """DatasetError for a store at a tag, or that is read-only."""
        if self._tag is not None:
            raise DatasetError(
                f"store {self.address} was opened at tag {self.tag_name}, which never changes; "
                "open it without a tag to write to it"
            )
        folders = [] if "://" in self.address else [self.path / PARTS, self.path / CATALOG]
        if not all(os.access(folder, os.W_OK) for folder in folders):
            raise DatasetError(
                f"store {self.address} is read-only here; give one in a place that can be written"
            )


def _dataset_hash(schema: Schema, manifests: Iterable[Manifest], edits: Sequence[Edit]) -> str:
    """SHA-256 of a schema and the parts' content hashes, sorted by name; then of it and edits."""
    content = [schema.hash, *(manifest.content_hash for manifest in manifests)]
    collected = hashlib.sha256("\n".join(content).encode()).hexdigest()
    if not edits:
        return collected
    content = [collected, *(edit.digest for edit in edits)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _types(columns: pa.Schema) -> dict[str, pa.DataType]:
    return dict(zip(columns.names, columns.types, strict=True))


def _is_there(root: Path) -> bool:
    try:
        return root.is_file() or any(root.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise DatasetError(f"cannot read {root}: {error.strerror}") from error
