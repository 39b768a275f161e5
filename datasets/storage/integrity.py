"""Faults of a store, leftovers of killed writers, the files of a copy, and compaction.

Every fault of a store is found, and what killed writers left behind is removed.

The files of a local store are those that a copy of it must have.

Compaction merges small parts into large ones and rebuilds the catalog index. Only files change:
hash, selections, tags and stream order depend on the parts as collected, whose records the merged
part keeps. Readers use the merged part from its commit on; the parts it replaces stay until `gc`,
for readers that opened the store before. A crash leaves the old parts, with or without it.
"""

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures, listed
from gaitforge.common.files import (
    files_under,
    fsync_path,
    is_hidden,
    join_inside,
    remove_leftover,
    sha256_file,
    visible,
)
from gaitforge.datasets import layout
from gaitforge.datasets.catalog.catalog import (
    Catalog,
    CommittedFile,
    Manifest,
    PartRecord,
    column_kind,
    kinds_agree,
)
from gaitforge.datasets.catalog.edit_log import Edit, added_field, edited, read_edit
from gaitforge.datasets.catalog.episodes import episodes_digest
from gaitforge.datasets.catalog.index import Segment, segment_paths, stamp_of
from gaitforge.datasets.layout import MERGED_PREFIX, SHARD_STEPS
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.about import read_about
from gaitforge.datasets.storage.parts import array_digest
from gaitforge.datasets.storage.records import GROUP, read_root, read_tag, tag_names
from gaitforge.datasets.storage.store import PartStore, commit_part


# The files of a store.
def store_files(store: PartStore) -> dict[str, Path]:
    """Name below the store -> path of each of its files, each after those it relies on.

    Left out are parts that are not committed or were replaced by merged ones, fields that were
    never added, caches, and hidden files. DatasetError for a store on object storage, a damaged
    record, or a link that leads out of the store.
    """
    store.check_local("give a local copy")
    return {name: join_inside(store.path, name) for name in _names(store)}


def field_folders(store: PartStore) -> list[str]:
    """Folders, below `overlays/`, of the fields that the store's edits add."""
    return sorted({added_field(edit).folder for edit in store.log.load() if edit.kind == "field"})


def overlay_folders(store: PartStore) -> list[str]:
    """As `field_folders`, with the folders of fields that are not committed yet."""
    folders = {path.name for path in visible(store.path / layout.OVERLAYS) if path.is_dir()}
    return sorted(folders.union(field_folders(store)))


def used_stems(store: PartStore) -> list[str]:
    """The catalog files, and folders of parts, in which the committed episodes are."""
    return list(dict.fromkeys(location.folder for location in store.collected().locations.values()))


def _names(store: PartStore) -> Iterator[str]:
    stems = used_stems(store)
    yield from (layout.ROOT_FILE, f"{layout.PARTS}/{layout.ROOT_FILE}")
    for stem in stems:
        yield from (
            f"{layout.PARTS}/{stem}/{name}" for name in sorted(store.files.manifest(stem).objects)
        )
    for folder in field_folders(store):
        yield from (f"{layout.OVERLAYS}/{folder}/{name}" for name in _names(store.overlay(folder)))
    yield from (f"{layout.IMPORTS}/{name}" for name in files_under(store.path / layout.IMPORTS))
    if (store.path / layout.ABOUT).is_file():
        yield layout.ABOUT
    yield from (f"{layout.CATALOG}/{stem}.parquet" for stem in stems)
    yield from (f"{layout.EDITS}/{name}" for name in store.log.names())
    yield from (f"{layout.TAGS}/{name}.json" for name in tag_names(store.path))


# Faults, and leftovers of killed writers.
def verify_store(store: PartStore) -> list[str]:
    """One line per fault: unreadable catalog, missing or changed objects, inconsistent lengths.

    Reads every byte once, also of parts that merged ones have replaced and `gc` has not removed.
    """
    store.refresh(anew=True)
    faults = [*_root_faults(store), *_foreign_faults(store)]
    episodes: dict[str, list[int]] = {}
    kinds: dict[str, dict[str, str]] = {}
    contents: dict[str, str] = {}
    for stem in store.files.stamps():
        try:
            manifest, table = store.files.read(stem)
        except DatasetError as error:
            faults.append(str(error))
            continue
        part_faults = list(_catalog_faults(manifest, table, store.schema))
        part_faults += _column_faults(kinds, table, stem)
        part_faults += _object_faults(store, manifest, stem)
        faults += [f"part {stem}: {fault}" for fault in part_faults]
        first = 0
        for part in manifest.collected:
            ids = table.column("episode").slice(first, part.episodes).to_pylist()
            first += part.episodes
            if contents.setdefault(part.part_id, part.content_hash) != part.content_hash:
                faults.append(f"part {part.part_id}: committed twice, with other content")
            episodes[part.part_id] = ids
    counts = Counter(episode for ids in episodes.values() for episode in ids)
    if repeated := sorted(episode for episode, count in counts.items() if count > 1):
        faults.append(f"episode ids in more than one row: {listed(repeated)}")
    try:
        read_about(store)
    except DatasetError as error:
        faults.append(str(error))
    faults += [*_index_faults(store), *_edit_faults(store), *_tag_faults(store, contents)]
    return [*faults, *_overlay_faults(store)]


def remove_leftovers(store: PartStore) -> list[str]:
    """Remove what uncommitted writers left, and parts that merged ones replaced.

    Parts that another process is writing are skipped; readers that opened the store before a
    compaction find the merged parts. Returns the removed paths below the store. DatasetError if
    the folder cannot be written, or a merged part is damaged.
    """
    store.check_writable()
    with disk_failures(f"store {store.address} cannot be cleaned"):
        unfinished = [*_remove_uncommitted(store), *_remove_hidden(store)]
        removed = [*_remove_replaced(store), *unfinished]
        for folder in overlay_folders(store):
            left = remove_leftovers(store.overlay(folder))
            removed += [f"{layout.OVERLAYS}/{folder}/{name}" for name in left]
    return removed


def _remove_uncommitted(store: PartStore) -> list[str]:
    staging = store.path / layout.STAGING
    parts = store.path / layout.PARTS
    staged = {path.name.removesuffix(".lock").removesuffix(".parquet") for path in visible(staging)}
    present = {path.name for path in visible(parts) if path.is_dir()}
    removed: list[str] = []
    for name in sorted(staged | (present - set(store.files.stamps()))):
        with store.part_lock(name, wait=False) as held:
            if not held:
                continue
            leftovers = [staging / name, staging / f"{name}.parquet"]
            if name not in store.files.stamps():
                leftovers.append(parts / name)
            removed += _remove(store.path, leftovers)
    return removed


def _remove_hidden(store: PartStore) -> list[str]:
    """Remove temporary files of dead writers, and what macOS left."""
    removed = []
    for folder, folders, names in os.walk(store.path):
        paths = sorted(Path(folder, name) for name in names if is_hidden(name))
        left = filter(remove_leftover, paths)
        removed += [path.relative_to(store.path).as_posix() for path in left]
        if Path(folder) == store.path:
            folders[:] = [*layout.FOLDERS, layout.STAGING, layout.CACHE]
    return removed


def _remove_replaced(store: PartStore) -> list[str]:
    """Remove the parts that intact merged parts replaced, the catalog file first."""
    stems = list(store.files.stamps())
    merged = [stem for stem in stems if stem.startswith(layout.MERGED_PREFIX)]
    if not merged:
        return []
    used = set(used_stems(store))
    for stem in merged:
        manifest = store.files.manifest(stem)
        if stem in used and (faults := list(_object_faults(store, manifest, stem))):
            raise DatasetError(
                f"part {stem}: {faults[0]}; the parts it was merged from are kept: remove its "
                "catalog file to use them again"
            )
    removed: list[str] = []
    for stem in (name for name in stems if name not in used):
        with store.part_lock(stem, wait=False) as held:
            if held:
                removed += _remove(store.path, [store.files.path(stem)])
                fsync_path(store.path / layout.CATALOG)
                removed += _remove(store.path, [store.path / layout.PARTS / stem])
    return removed


def _remove(root: Path, paths: list[Path]) -> list[str]:
    present = [path for path in paths if path.exists()]
    for path in present:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    return [path.relative_to(root).as_posix() for path in present]


def _root_faults(store: PartStore) -> Iterator[str]:
    try:
        if read_root(store.path, store.address).schema != store.schema:
            yield f"{layout.ROOT_FILE}: the schema is not the one this store was opened with"
    except DatasetError as error:
        yield str(error)
    for name, attributes in (
        (layout.ROOT_FILE, [layout.ATTRIBUTE]),
        (f"{layout.PARTS}/{layout.ROOT_FILE}", list[str]()),
    ):
        try:
            tree = json.loads((store.path / name).read_bytes())
            if list(tree.pop("attributes")) != attributes or tree != GROUP:
                yield f"{name} is not the file that was written"
        except FileNotFoundError:
            yield f"{name} is missing"
        except (ValueError, TypeError, KeyError, AttributeError):
            yield f"{name} is damaged"


def _foreign_faults(store: PartStore) -> Iterator[str]:
    """Objects that are none of the store's: other programs' arrays, and files beside the parts."""
    folders = {f"{name}/" for name in (*layout.FOLDERS, layout.PICTURES)}
    known = {layout.ROOT_FILE, layout.ABOUT, *layout.PUBLISHED, *folders}
    # A published store may have further pages beside its card.
    objects = [name for name in store.children() if not name.endswith(".html")]
    foreign = [name for name in objects if name not in known]
    suffixes = {layout.CATALOG: ".parquet", layout.TAGS: ".json"}
    for folder, suffix in suffixes.items():
        names = store.children(folder)
        foreign += [f"{folder}/{name}" for name in names if not name.endswith(suffix)]
    # A writer that was killed before its commit leaves a part, or some of its arrays.
    of_a_part = {layout.ROOT_FILE, *(f"{name}/" for name in store.schema.names())}
    committed = {layout.ROOT_FILE, *(f"{stem}/" for stem in store.files.stamps())}
    for name in store.children(layout.PARTS):
        path = f"{layout.PARTS}/{name}"
        if name in committed:
            continue
        if not name.endswith("/") or not of_a_part.issuperset(store.children(path.rstrip("/"))):
            foreign.append(path)
    for name in foreign:
        yield f"object {name} is none of the store's; move it out"


def _catalog_faults(manifest: Manifest, table: pa.Table, schema: Schema) -> Iterator[str]:
    if manifest.schema_hash != schema.hash:
        yield "it was written under another schema"
    first = 0
    for part in manifest.collected:
        rows = table.slice(first, part.episodes)
        first += part.episodes
        within = f" of {part.part_id}" if manifest.members else ""
        starts, lengths = (rows.column(name).to_numpy() for name in ("start", "length"))
        if not np.array_equal(starts, np.cumsum(lengths) - lengths):
            yield f"episode starts{within} do not follow from the lengths"
        if int(lengths.sum()) != part.steps:
            yield f"episode lengths{within} sum to {int(lengths.sum())}, not {part.steps} steps"


def _column_faults(kinds: dict[str, dict[str, str]], table: pa.Table, stem: str) -> Iterator[str]:
    """Columns that cannot be those of the parts before; `kinds` is column -> kind -> a part."""
    for name in table.column_names:
        kind = column_kind(table, name)
        before = kinds.setdefault(name, {})
        for other, part in before.items():
            if not kinds_agree(other, kind):
                yield f"column {name} has {kind}, and {other} in part {part}: move one of them out"
        before.setdefault(kind, stem)


def _object_faults(store: PartStore, manifest: Manifest, stem: str) -> Iterator[str]:
    sizes = store.object_sizes(stem)
    for name, (size, sha256) in sorted(manifest.objects.items()):
        if name not in sizes:
            yield f"object {name} is missing"
        elif sizes[name] != size:
            yield f"object {name} has {sizes[name]} bytes, recorded {size}"
        elif store.object_sha256(stem, name) != sha256:
            yield f"object {name} does not have its recorded SHA-256"
    for name in sorted(set(sizes) - set(manifest.objects)):
        yield f"object {name} is not among the committed ones"


def _index_faults(store: PartStore) -> Iterator[str]:
    """Damage of the index, and rows used by queries that differ from the catalog files."""
    for path in segment_paths(store.files.index_folder):
        try:
            segment = Segment(path, store.files.read_columns)
            for file, rows in segment.rows_of_files():
                if not _are_same(store, segment, file, rows):
                    problem = f"the catalog index {path} has other rows"
                    yield f"part {file.stem}: {problem}; delete it, and it is rebuilt"
        except FileNotFoundError:  # merged meanwhile
            continue
        except DatasetError as error:
            yield str(error)


def _are_same(store: PartStore, segment: Segment, file: CommittedFile, rows: pa.Table) -> bool:
    """Whether rows of the index are those of their catalog file, if queries use them."""
    path = store.files.path(file.stem)
    try:
        if stamp_of(path) != segment.stamps[file.stem]:
            return True
        _, table = store.files.read_shown(file.stem)
    except (FileNotFoundError, DatasetError):
        return True  # it is gone, or reported by verify_store already
    try:
        return rows.select(table.column_names).cast(table.schema) == table
    except (KeyError, pa.ArrowException):
        return False


def _edit_faults(store: PartStore) -> Iterator[str]:
    """Edits that cannot be read, do not follow each other, or name absent parts or episodes."""
    names = store.log.names()
    for path in visible(store.log.folder):
        if path.name not in names:
            yield f"{layout.EDITS}/{path.name} is not an edit"
    edits: list[Edit] = []
    for name in names:
        try:
            edits.append(read_edit(store.log.folder / name, store.address))
        except DatasetError as error:
            yield str(error)
    if len(edits) == len(names):
        try:
            if store.log.load():
                edited(store.files.catalog(), edits)
        except DatasetError as error:
            yield str(error)


def _overlay_faults(store: PartStore) -> Iterator[str]:
    """Faults of the added fields' stores, and parts there that are not as they were added."""
    try:
        fields = [added_field(edit) for edit in store.log.load() if edit.kind == "field"]
        folders = overlay_folders(store)
    except DatasetError:  # reported by _edit_faults
        fields = []
        folders = [path.name for path in visible(store.path / layout.OVERLAYS)]
    for folder in folders:
        try:
            overlay = store.overlay(folder)
            yield from (f"{layout.OVERLAYS}/{folder}: {fault}" for fault in verify_store(overlay))
            manifests = overlay.collected().manifests
        except DatasetError as error:
            yield f"{layout.OVERLAYS}/{folder}: {error}"
            continue
        held = {(part_id, manifest.content_hash) for part_id, manifest in manifests.items()}
        added = {item for field in fields if field.folder == folder for item in field.parts.items()}
        for part_id, _ in sorted(added - held):
            yield f"{layout.OVERLAYS}/{folder}: part {part_id} is not there as it was added"


def _tag_faults(store: PartStore, contents: dict[str, str]) -> Iterator[str]:
    edits = [sha256_file(store.log.folder / name) for name in store.log.names()]
    for name in tag_names(store.path):
        try:
            tag = read_tag(store.path, name, store.address)
        except DatasetError as error:
            yield str(error)
            continue
        for part_id, content_hash in tag.parts.items():
            if contents.get(part_id) != content_hash:
                yield f"tag {name}: part {part_id} is not in the store as it was tagged"
        if edits[: len(tag.edits)] != list(tag.edits):
            yield f"tag {name}: its edits are not in the store as they were tagged"


# Compaction: small parts merged into large ones.
COMPACT_LOCK = f"{MERGED_PREFIX}lock"


def compact_store(store: PartStore, target_steps: int = SHARD_STEPS) -> list[PartRecord]:
    """Merge runs of small parts, and write the catalog index; returns the merged parts' records.

    Parts of up to half of `target_steps` are merged with their neighbours in the order of their
    names to at most `target_steps`, if their catalogs have the same columns; those of added
    fields too. One merged part is in memory at a time. DatasetError for a value that is not its
    commit record's, a disk that cannot be written, or another compaction.
    """
    store.check_local("compact a local copy and push that")
    store.check_writable()
    if not 1 <= target_steps <= SHARD_STEPS:
        raise DatasetError(f"target_steps must be in 1..{SHARD_STEPS}, not {target_steps}")
    with disk_failures(f"store {store.address} cannot be compacted"):
        with store.part_lock(COMPACT_LOCK, wait=False) as held:
            if not held:
                raise DatasetError(f"store {store.address} is being compacted by another process")
            merged = [_merge(store, group) for group in _groups(store, target_steps)]
            store.files.update_index()
        for folder in overlay_folders(store):
            compact_store(store.overlay(folder), target_steps)
    return merged


def _groups(store: PartStore, target_steps: int) -> list[list[str]]:
    """Catalog files (by stem) to merge with each other."""
    groups: list[list[str]] = [[]]
    steps = 0
    columns = pa.schema([])
    for stem in used_stems(store):
        manifest = store.files.manifest(stem)
        if manifest.steps > target_steps // 2:
            groups.append([])
            continue
        schema = store.files.columns(stem)
        if not groups[-1] or schema != columns or steps + manifest.steps > target_steps:
            groups.append([])
            steps = 0
            columns = schema
        groups[-1].append(stem)
        steps += manifest.steps
    return [group for group in groups if len(group) > 1]


def _merge(store: PartStore, stems: list[str]) -> PartRecord:
    catalog = store.files.catalog()
    manifests, tables = zip(*map(store.files.read, stems), strict=True)
    members = tuple(member for manifest in manifests for member in manifest.collected)
    table = pa.concat_tables(tables).combine_chunks()
    first = 0
    for member in members:
        if episodes_digest(table.slice(first, member.episodes)) != member.episodes_digest:
            problem = "the catalog rows are not the ones that were committed"
            raise DatasetError(f"part {member.part_id}: {problem}")
        first += member.episodes
    arrays = {name: _joined_array(store, catalog, members, name) for name in store.schema.names()}
    contents = "\n".join(member.content_hash for member in members)
    merged_id = MERGED_PREFIX + hashlib.sha256(contents.encode()).hexdigest()[:12]
    problem = f"parts {stems[0]} to {stems[-1]} of {store.address} were not merged"
    with store.part_lock(merged_id), disk_failures(problem):
        return commit_part(store.path, store.schema, merged_id, table, arrays, members).record


def _joined_array(
    store: PartStore, catalog: Catalog, members: tuple[Manifest, ...], field: str
) -> np.ndarray:
    described = store.schema.field(field)
    rows = [member.steps if described.per == "step" else member.episodes for member in members]
    joined = np.empty((sum(rows), *described.shape), described.dtype)
    first = 0
    for member, count in zip(members, rows, strict=True):
        out = joined[first : first + count]
        with store.array_reader(catalog, member.part_id, field) as reader:
            reader.read_runs([(0, count)], out)
        if array_digest(out) != member.arrays[field]:
            problem = "the values are not the ones that were committed"
            raise DatasetError(f"part {member.part_id}, field {field}: {problem}")
        first += count
    return joined
