"""The files of a local store, which a copy of it must have."""

from collections.abc import Iterator
from pathlib import Path

from gaitforge.common.files import files_under, join_inside, visible
from gaitforge.datasets import layout
from gaitforge.datasets.catalog.edit_log import added_field
from gaitforge.datasets.storage.store import PartStore
from gaitforge.datasets.storage.tags import tag_names


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
