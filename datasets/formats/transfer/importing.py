"""The driver of imports: parts in threads, staged beside the store, checked, then published.

Nothing appears in the store before all of the source was read and what was stored was read back and
compared, so bad input leaves nothing behind. A new store appears in one step; into one that exists,
parts are moved one after the other, each whole, and an import that is killed meanwhile adds the
rest when it is called again. An import that was interrupted keeps its staged parts and goes on with
the others; if the source or the options changed meanwhile, it starts anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from datasets.dataset import Store, create_store, open_store
from datasets.errors import DatasetError, StorageError, listed
from datasets.files import exclusive_lock, replace_durably, write_bytes_durably
from datasets.formats import importer_class, options_of
from datasets.formats.interface import Advance, Begin, Importer, Report, unheard
from datasets.formats.sources import refuse
from datasets.formats.transfer.imported import ImportedSource
from datasets.formats.transfer.staging import (
    STORE,
    lock_path,
    note_origin,
    remove_leftovers,
    staging_folder,
)
from datasets.layout import CATALOG, PARTS
from datasets.storage.parts import array_digest
from datasets.storage.root import ROOT_FILE
from datasets.storage.s3.bucket import Bucket, is_bucket_url

WORKERS = 2
_SOURCE = "source.json"


def import_source(
    name: str,
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    begin: Begin = unheard,
    workers: int = WORKERS,
) -> Report:
    """Import a source of another project's format into a store; again, it changes nothing.

    Args:
        name: one of ``formats.FORMATS``.
        source: a file, a folder, or what else the format's reader takes.
        store: a folder or ``s3://bucket/prefix``; made if absent. A store that is there must have
            the schema that the source gives.
        options: of the format's reader.
        begin: hears of the steps of each part that is done, those of an earlier call included.
        workers: threads that read and write parts; each holds a few times ``sources.PART_BYTES``.

    Raises:
        DatasetError: an unknown format or option, packages that are not installed, a source or
            store that does not fit, in one line that names file and key, or one of which the store
            holds another content, because it has changed; nothing was imported.
    """
    started = time.monotonic()
    cls = importer_class(name)
    if "://" in str(source):
        raise DatasetError(f"{source} is no local path; copy it to this machine first")
    importer = cls(str(source), options_of(cls.Options, options))
    try:
        parts = _part_ids(name, importer)
        # A link stays one: the store appears where it leads to.
        place = str(store) if is_bucket_url(store) else Path(store).resolve()
        target = _existing(place, importer)
        if target is not None:
            ImportedSource.of(name, str(source), importer).check_unchanged(place)
        steps = sum(int(lengths.sum()) for lengths in importer.part_lengths)
        advance = begin(steps)
        if target is None or target.missing(parts):
            _stage_and_publish(name, importer, str(source), place, target, advance, workers)
        else:
            remove_leftovers(place, _origin(str(source), importer))
            advance(steps)
        episodes = sum(len(lengths) for lengths in importer.part_lengths)
        per = {"step": steps, "episode": episodes}
        size = sum(each.row_bytes * per[each.per] for each in importer.schema.fields)
        seconds = time.monotonic() - started
        origin, destination = str(source), str(store)
        counts = episodes, steps, len(parts)
        return Report(name, origin, destination, *counts, size, seconds, importer.carried)
    finally:
        importer.close()


def _part_ids(name: str, importer: Importer) -> list[str]:
    tag = hashlib.sha256(f"{name} {importer.identity}".encode()).hexdigest()[:12]
    return [f"{tag}-{number:05d}" for number in range(len(importer.part_lengths))]


def _origin(source: str, importer: Importer) -> Path:
    """The file or folder that is imported; of a source that is a name, where its files lie."""
    return Path(source) if Path(source).exists() else importer.files[0].parent


def _existing(address: str | os.PathLike[str], importer: Importer) -> Store | None:
    """The store if it is there, with the source's schema."""
    if not is_bucket_url(address):
        path = Path(address)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
    elif Bucket(str(address)).read(ROOT_FILE) is None:
        return None
    return _equal(open_store(address), importer)


def _equal(store: Store, importer: Importer) -> Store:
    if store.schema == importer.schema:
        return store
    ours = {each.name: each for each in store.schema.fields}
    theirs = {each.name: each for each in importer.schema.fields}
    differing = [key for key in (ours | theirs) if ours.get(key) != theirs.get(key)]
    what = f"in its fields {listed(differing)}" if differing else "in its robot or attributes"
    raise DatasetError(
        f"store {store.address} has another schema than the source gives, {what}; give a new path"
    )


def _stage_and_publish(
    name: str,
    importer: Importer,
    source: str,
    address: str | os.PathLike[str],
    target: Store | None,
    advance: Advance,
    workers: int,
) -> None:
    parts = _part_ids(name, importer)
    staging, origin = staging_folder(address, parts[0].partition("-")[0]), _origin(source, importer)
    staging.parent.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(lock_path(staging), wait=False) as held:
        if not held:
            raise DatasetError(f"{source} is being imported into {address} by another process")
        remove_leftovers(address, origin)
        plan = {"import": {"format": name, "source": Path(source).name}}
        try:
            staged = _staged_store(staging, importer, plan, target)
            note_origin(staging, origin)
            work = _each_part(source, staged, importer, parts, advance)
            _in_threads(work, range(len(parts)), workers)
            _in_threads(_reading_back(staged), parts, workers)
            _check_new_episodes(source, staged, target)
            _publish(staged, address, target, ImportedSource.of(name, source, importer))
        except Exception as error:
            if not _may_pass_later(error):
                shutil.rmtree(staging, ignore_errors=True)
            raise
        shutil.rmtree(staging)


def _may_pass_later(error: Exception) -> bool:
    """Whether a full disk, or a storage that was away, refused."""
    return isinstance(error, StorageError | OSError) or isinstance(error.__cause__, OSError)


def _staged_store(
    staging: Path, importer: Importer, plan: Mapping[str, Any], target: Store | None
) -> Store:
    """The store that grows in the staging folder; what an earlier call left there if it fits."""
    stamp = json.dumps(
        [(path.name, (found := path.stat()).st_size, found.st_mtime_ns) for path in importer.files]
    )
    kept = staging / _SOURCE
    if not kept.is_file() or kept.read_text() != stamp:
        shutil.rmtree(staging, ignore_errors=True)
    elif target is not None:
        _forget_half_moved(staging / STORE, target)
    store = Store.create(staging / STORE, importer.schema, plan)
    write_bytes_durably(kept, stamp.encode())
    return store


def _forget_half_moved(staged: Path, target: Store) -> None:
    """Read a part again whose arrays were moved to the store and then removed there."""
    for record in (staged / CATALOG).glob("*.parquet"):
        if not any((root / PARTS / record.stem).is_dir() for root in (staged, target.path)):
            record.unlink()


def _each_part(
    source: str, staged: Store, importer: Importer, parts: list[str], advance: Advance
) -> Callable[[int], None]:
    missing, telling = set(staged.missing(parts)), threading.Lock()

    def work(number: int) -> None:
        lengths = importer.part_lengths[number]
        if parts[number] in missing:
            part = importer.read_part(number)
            try:
                staged.write_part(parts[number], part.steps, part.episodes, part.per_episode)
            except DatasetError as error:
                if _may_pass_later(error):
                    raise
                refuse(source, "", str(error))
        with telling:
            advance(int(lengths.sum()))

    return work


def _reading_back(staged: Store) -> Callable[[str], None]:
    """Decode a part again and compare it with the digests of what was read from the source."""
    catalog = staged.catalog()

    def check(part_id: str) -> None:
        if not (staged.path / PARTS / part_id).is_dir():
            return  # an earlier call had begun to publish it, after checking it
        manifest = catalog.manifests[part_id]
        for field in staged.schema.fields:
            rows = manifest.steps if field.per == "step" else manifest.episodes
            stored = np.empty((rows, *field.shape), field.dtype)
            with staged.array_reader(catalog, part_id, field.name) as reader:
                reader.read_runs([(0, rows)], stored)
            if array_digest(stored) != manifest.arrays[field.name]:
                raise DatasetError(
                    f"part {part_id}, field {field.name}: what was stored does not read back as "
                    "it was; check the disk and import again"
                )

    return check


def _in_threads(work: Callable[[Any], None], items: Iterable[Any], workers: int) -> None:
    """Call ``work`` for each item; the first failure is raised and what has not begun is left."""
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _publish(
    staged: Store,
    address: str | os.PathLike[str],
    target: Store | None,
    origin: ImportedSource,
) -> None:
    if is_bucket_url(address):
        from datasets.storage.s3.object_store import push_store

        origin.remember(address)
        push_store(staged, str(address))
    elif target is None:
        origin.remember(staged.path)
        staged.files.rebuild_index()
        with suppress(OSError):
            Path(address).rmdir()  # an empty folder may stand where the store goes
        replace_durably(staged.path, Path(address).absolute())
    else:
        create_store(address, staged.schema)  # refuses a store that cannot be written
        origin.remember(target.path)
        _move_parts(staged, target)
        target.files.rebuild_index()


def _check_new_episodes(source: str, staged: Store, target: Store | None) -> None:
    """Refuse an episode id that would be in the store twice."""
    ours, present = staged.catalog(), set() if target is None else set(target.parts())
    rows = [np.arange(*ours.part_bounds[part]) for part in ours.part_bounds if part not in present]
    ids = ours.numbers("episode")[np.concatenate(rows)] if rows else np.array([])
    found, counts = np.unique(ids, return_counts=True)
    if (counts > 1).any():
        refuse(source, "", f"episode ids {listed(found[counts > 1], 4)} are there more than once")
    if target is None:
        return
    if len(repeated := np.intersect1d(found, target.catalog().numbers("episode"))):
        raise DatasetError(
            f"episode ids {listed(repeated, 4)} of the source are in store {target.address} "
            "already; import it into a store of its own"
        )


def _move_parts(staged: Store, target: Store) -> None:
    """Move parts into a store on the same file system, each committed by its catalog file."""
    for part_id in target.missing(staged.parts()):
        with target.part_lock(part_id):
            arrays, record = staged.path / PARTS / part_id, f"{part_id}.parquet"
            if arrays.is_dir():
                shutil.rmtree(target.path / PARTS / part_id, ignore_errors=True)
                replace_durably(arrays, target.path / PARTS / part_id)
            replace_durably(staged.path / CATALOG / record, target.path / CATALOG / record)
