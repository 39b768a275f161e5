"""Find every fault of a store, and remove what killed writers left behind."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures, listed
from gaitforge.common.files import fsync_path, is_hidden, remove_leftover, sha256_file, visible
from gaitforge.datasets import layout
from gaitforge.datasets.catalog.edit_log import Edit, added_field, edited, read_edit
from gaitforge.datasets.catalog.index import CatalogIndex
from gaitforge.datasets.catalog.manifest import Manifest
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.about import read_about
from gaitforge.datasets.storage.contents import overlay_folders, used_stems
from gaitforge.datasets.storage.root import GROUP, read_root
from gaitforge.datasets.storage.store import PartStore
from gaitforge.datasets.storage.tags import read_tag, tag_names


def verify_store(store: PartStore) -> list[str]:
    """One line per fault: unreadable catalog, missing or changed objects, inconsistent lengths.

    Reads every byte once, also of parts that merged ones have replaced and `gc` has not removed.
    """
    store.refresh(anew=True)
    faults = [*_root_faults(store), *_foreign_faults(store)]
    episodes: dict[str, list[int]] = {}
    contents: dict[str, str] = {}
    for stem in store.files.stamps():
        try:
            manifest, table = store.files.read(stem)
        except DatasetError as error:
            faults.append(str(error))
            continue
        part_faults = list(_catalog_faults(manifest, table, store.schema))
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
    foreign = [name for name in store.children() if name not in known]
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
    try:
        index = CatalogIndex(store.files.index_path, store.files.read_shown)
        held = pa.table({name: index.stored_column(name) for name in index.schema.names})
    except (FileNotFoundError, NotADirectoryError):
        return
    except DatasetError as error:
        yield str(error)
        return
    stamps = store.files.stamps()
    used = [file for stem, file in index.files().items() if stamps.get(stem) == index.stamps[stem]]
    for file in used:
        try:
            _, table = store.files.read_shown(file.stem)
        except DatasetError:
            continue  # reported by verify_store already
        try:
            rows = held.select(table.column_names).slice(file.first, table.num_rows)
            same = rows.cast(table.schema) == table
        except (KeyError, pa.ArrowException):
            same = False
        if not same:
            problem = f"the catalog index {store.files.index_path} has other rows"
            yield f"part {file.stem}: {problem}; delete it, and it is rebuilt"


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
