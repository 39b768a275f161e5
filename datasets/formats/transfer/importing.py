"""The driver of imports: parts in threads, staged beside the store, verified, then published.

Nothing appears in the store until all of the source was read and the stored parts were read back
and compared, so bad input leaves nothing behind. A new store appears in one step. Into an existing
store, parts are moved one by one, each atomically; if that is interrupted, the next call adds the
rest. An interrupted import resumes with its staged parts, unless the source or the options changed.

The staging folder of an import lies beside the store, or beside the mirror of one on object
storage. Its name contains a digest of the content and the options, so an interrupted import finds
it again; its lock marks a running import. Staging folders that no import will resume are removed.

Episodes with NaN or infinity in a source are named and refused, or left out of the import.
"""

import json
import os
import re
import shutil
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, StorageError, amount, failures, listed
from gaitforge.common.files import (
    check_inside,
    replace_durably,
    write_bytes_durably,
)
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.catalog.catalog import check_agreement
from gaitforge.datasets.dataset import Store, create_store, open_store
from gaitforge.datasets.formats import importer_class, options_of, recognised_as
from gaitforge.datasets.formats.protocol import (
    Advance,
    Begin,
    Importer,
    PartInput,
    Report,
    no_progress,
)
from gaitforge.datasets.formats.sources import (
    NotFiniteError,
    Span,
    field_bytes,
    not_finite_allowed,
    refuse,
)
from gaitforge.datasets.formats.transfer.imported import (
    ImportedSource,
    check_selections,
    save_selections,
)
from gaitforge.datasets.layout import CATALOG, PARTS, ROOT_FILE
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.storage.parts import array_digest
from gaitforge.datasets.storage.records import parts_left_out
from gaitforge.datasets.storage.s3 import bucket_at, is_bucket_url, local_folder, push_store

# Staging folders.
STORE = "store"
"""The staged store, below the staging folder."""

_ORIGIN = "origin"
_LOCK = ".lock"


def staging_folder(address: str | os.PathLike[str], tag: str) -> Path:
    """The folder of the import `tag`, 12 hexadecimal digits, into the store at `address`."""
    store_path = local_folder(address).resolve()
    return store_path.with_name(f".{store_path.name}.{tag}.importing")


def lock_path(folder: Path) -> Path:
    """The lock to hold while using a staging folder."""
    return folder.with_name(f"{folder.name}{_LOCK}")


def write_origin(folder: Path, origin: Path) -> None:
    """Record in a staging folder what it imports, for `remove_leftovers`."""
    write_bytes_durably(folder / _ORIGIN, str(origin.resolve()).encode())


def remove_leftovers(address: str | os.PathLike[str], origin: Path) -> None:
    """Remove staging folders of a store that no import will resume.

    They are those of the same `origin` (its content or the options changed, or all of it is in
    the store), those of an origin that no longer exists, and those without a staged store. Folders
    of other origins and locked ones stay.
    """
    store_path = local_folder(address).resolve()
    pattern = re.compile(rf"{re.escape(f'.{store_path.name}.')}[0-9a-f]{{12}}\.importing")
    with suppress(OSError):  # a folder that cannot be read or written is left as it is
        names = {name.removesuffix(_LOCK) for name in os.listdir(store_path.parent)}
        for folder in sorted(
            store_path.with_name(name) for name in names if pattern.fullmatch(name)
        ):
            with exclusive_lock(lock_path(folder), wait=False) as held:
                if held and not _resumable(folder, origin):
                    shutil.rmtree(folder, ignore_errors=True)


def _resumable(folder: Path, origin: Path) -> bool:
    try:
        recorded = Path((folder / _ORIGIN).read_text())
    except FileNotFoundError:
        return False
    return (folder / STORE).is_dir() and recorded != origin.resolve() and recorded.exists()


# Episodes with NaN or infinity.
HINT = "--drop-nan (drop_nan=True) leaves such episodes out"


def read_finite(importer: Importer, span: Span, drop: bool) -> tuple[PartInput, np.ndarray]:
    """A part of a source, and the episodes that were left out of it.

    Episodes are numbered in the source. With all of a part's episodes left out, its arrays and rows
    are empty.

    Raises:
        DatasetError: without `drop`, for values that are not finite; names the episodes.
    """
    try:
        return importer.read_part(span), np.zeros(0, np.int64)
    except NotFiniteError as error:
        refusal = str(error)  # as text: the exception's frames would keep files open
    try:
        with not_finite_allowed():
            part = importer.read_part(span)
    except DatasetError as error:
        raise DatasetError(refusal) from error
    per = {"step": span.starts, "episode": np.arange(len(span.lengths))}
    kept = np.ones(len(span.lengths), bool)
    for field in importer.schema.fields:
        rows = part.arrays[field.name]
        finite = np.isfinite(rows).reshape(len(rows), -1).all(axis=1)
        kept &= np.logical_and.reduceat(finite, per[field.per])
    episodes = span.first + np.flatnonzero(~kept)
    if not drop:
        raise DatasetError(f"{refusal}, in episode {listed(episodes, 4)}; {HINT}")
    of = {"step": np.repeat(kept, span.lengths), "episode": kept}
    fields = importer.schema.fields
    arrays = {field.name: part.arrays[field.name][of[field.per]] for field in fields}
    rows = part.episodes
    if isinstance(rows, Mapping):
        rows = {name: np.asarray(values)[kept] for name, values in rows.items()}
    else:
        rows = rows.filter(pa.array(kept))
    return PartInput(arrays, rows), episodes


# The driver.
WORKERS = 2
_SOURCE = "source.json"


def import_source(
    name: str,
    source: str | os.PathLike[str],
    store: str | os.PathLike[str],
    options: Mapping[str, Any] | None = None,
    begin: Begin = no_progress,
    workers: int = WORKERS,
    drop_nan: bool = False,
    described: Callable[[Schema], Schema] | None = None,
) -> Report:
    """Import a source of another project's format into a store; repeating it changes nothing.

    Args:
        name: one of `formats.FORMATS`; options: of its reader.
        source: a file, a folder, or what else the format's reader takes.
        store: a folder or `s3://bucket/prefix`, created if absent. An existing store must have
            the schema of the source.
        begin: reports the steps of each part, including those of an earlier call.
        workers: threads that read and write parts; each holds a few times `sources.PART_BYTES`.
        drop_nan: leave out episodes with NaN or infinity, which are refused otherwise. The report's
            notes name them.
        described: gives a schema with the robot that the source does not name, or DatasetError.

    Raises:
        DatasetError: an unknown format or option, packages that are not installed, a source or
            store that does not fit (one line that names file and key), or a source that has changed
            since the store imported it. Nothing was imported.
    """
    started = time.monotonic()
    cls = importer_class(name)
    if "://" in str(source):
        raise DatasetError(f"{source} is no local path; copy it to this machine first")
    importer = _opened(name, cls, str(source), options_of(cls.Options, options), described)
    with closing(importer):
        check_inside(Path(source), importer.files if Path(source).is_dir() else ())
        # A link stays a link: the store appears at its target.
        address = str(store) if is_bucket_url(store) else Path(store).resolve()
        target = _existing(address, importer)
        work = _Import(name, str(source), importer, address, target, drop_nan)
        if target is not None:
            work.record.check_unchanged(address)
            check_selections(target, importer.selections)
        advance = begin(importer.steps)
        carried = importer.carried
        if target is None or target.missing(work.wanted_ids):
            if target is not None:
                target.check_writable()
            dropped = work.run(advance, workers)
            carried = replace(carried, notes=(*carried.notes, *_dropped_note(dropped)))
        else:
            remove_leftovers(address, work.origin)
            advance(importer.steps)
        carried = replace(carried, notes=(*carried.notes, *_left_out_note(work.left_out)))
        episodes, steps = _stored_counts(open_store(address), work.part_ids)
        save_selections(address, importer.selections)
        size = field_bytes(importer.schema.fields, steps, episodes)
        counts = episodes, steps, len(importer.parts), size
        return Report(name, str(source), str(store), *counts, time.monotonic() - started, carried)


def _left_out_note(part_ids: Collection[str]) -> list[str]:
    """A line about parts of a source that a store was made without, if there are any."""
    if not part_ids:
        return []
    parts = amount(len(part_ids), "part")
    return [f"{parts} of the source stay out: the store was made without their episodes"]


class _Described(Importer):
    """A source whose robot, and attributes of the schema, are not in its files."""

    def __init__(self, importer: Importer, schema: Schema) -> None:
        self._importer = importer
        self.schema = schema
        self.identity = importer.identity + schema.hash[:16]
        self.files = importer.files
        self.parts = importer.parts
        self.carried = importer.carried
        self.metadata = importer.metadata
        self.selections = importer.selections
        self.statistics = importer.statistics

    def close(self) -> None:
        """See `Importer`."""
        self._importer.close()

    def read_part(self, part: Span) -> PartInput:
        """See `Importer`."""
        read = self._importer.read_part(part)
        rows = read.episodes
        names = [self.schema.robot] * len(part.lengths)
        if isinstance(rows, pa.Table):
            index = rows.schema.get_field_index("robot")
            return replace(read, episodes=rows.set_column(index, "robot", pa.array(names)))
        return replace(read, episodes={**rows, "robot": names})


def _stored_counts(store: Store, part_ids: Iterable[str]) -> tuple[int, int]:
    """Episodes and steps of those of the parts that a store has."""
    stored = store.collected().manifests
    manifests = [stored[part_id] for part_id in part_ids if part_id in stored]
    episodes = sum(manifest.episodes for manifest in manifests)
    return episodes, sum(manifest.steps for manifest in manifests)


def _opened(
    name: str,
    cls: type[Importer],
    source: str,
    options: Any,
    described: Callable[[Schema], Schema] | None,
) -> Importer:
    """The reader of a source; a refusal names the format that the source seems to be of."""
    try:
        importer = cls(source, options)
    except DatasetError as error:
        formats = recognised_as(source)
        if not formats or name in formats:
            raise
        raise DatasetError(f"{error}; it seems to be of the format {listed(formats)}") from error
    if described is None:
        return importer
    try:
        return _Described(importer, described(importer.schema))
    except DatasetError:
        importer.close()
        raise


def _existing(address: str | os.PathLike[str], importer: Importer) -> Store | None:
    """The store if it exists; DatasetError if it has another schema than the source."""
    if not is_bucket_url(address):
        path = Path(address)
        if not path.exists() or (path.is_dir() and not any(path.iterdir())):
            return None
    elif bucket_at(str(address)).read(ROOT_FILE) is None:
        return None
    store = open_store(address)
    if store.schema == importer.schema:
        return store
    differences = store.schema.differences(importer.schema)
    problem = f"has another schema than the source gives, {differences}; give a new path"
    raise DatasetError(f"store {store.address} {problem}")


@dataclass(frozen=True)
class _Import:
    """One source on its way into one store; `target` is the store if it exists."""

    name: str
    source: str
    importer: Importer
    address: str | os.PathLike[str]
    target: Store | None
    drop_nan: bool

    @cached_property
    def record(self) -> ImportedSource:
        return ImportedSource.of(self.name, self.source, self.importer)

    @cached_property
    def part_ids(self) -> list[str]:
        return [f"{self.record.tag}-{number:05d}" for number in range(len(self.importer.parts))]

    @cached_property
    def left_out(self) -> set[str]:
        """The parts of the source that the store was made without, as by `apply`."""
        if self.target is None:
            return set()
        return (parts_left_out(self.target.plan) & set(self.part_ids)) - set(self.target.parts())

    @property
    def wanted_ids(self) -> list[str]:
        """The parts without those that were left out."""
        return [part_id for part_id in self.part_ids if part_id not in self.left_out]

    @property
    def origin(self) -> Path:
        """The file or folder that is imported; for a source that is a name, where its files lie."""
        path = Path(self.source)
        return path if path.exists() else self.importer.files[0].parent

    def run(self, advance: Advance, workers: int) -> dict[int, int]:
        """Stage, verify and publish; gives the left-out episodes and their lengths."""
        folder = staging_folder(self.address, self.record.tag)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(lock_path(folder), wait=False) as held:
            if not held:
                detail = f"into {self.address} by another process"
                raise DatasetError(f"{self.source} is being imported {detail}")
            remove_leftovers(self.address, self.origin)
            try:
                staged = self._staged_store(folder)
                write_origin(folder, self.origin)
                dropped: dict[int, int] = {}
                work = self._write_part(staged, dropped, advance)
                _in_threads(work, range(len(self.part_ids)), workers)
                if len(dropped) == self.importer.episodes:
                    refuse(self.source, "", "every episode has values that are not finite")
                _in_threads(_verify_part(staged), staged.parts(), workers)
                with self._alone():
                    self._check_new_episodes(staged)
                    self._publish(staged)
            except Exception as error:
                if not _is_transient(error):
                    shutil.rmtree(folder, ignore_errors=True)
                raise
            shutil.rmtree(folder)
            return dropped

    def _staged_store(self, folder: Path) -> Store:
        """The store in the staging folder, with the parts of an interrupted call if they fit.

        With `drop_nan` all parts are read again, to count what is left out.
        """
        files = [(path.name, path.stat()) for path in self.importer.files]
        stamp = json.dumps([(name, status.st_size, status.st_mtime_ns) for name, status in files])
        kept = folder / _SOURCE
        if self.drop_nan:
            stamp = f"drop_nan {stamp}"
        if self.drop_nan or not kept.is_file() or kept.read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)
        elif self.target is not None:
            _forget_half_moved(folder / STORE, self.target)
        plan = {"import": {"format": self.name, "source": Path(self.source).name}}
        store = Store.create(folder / STORE, self.importer.schema, plan)
        write_bytes_durably(kept, stamp.encode())
        return store

    def _write_part(
        self, staged: Store, dropped: dict[int, int], advance: Advance
    ) -> Callable[[int], None]:
        missing = set(staged.missing(self.wanted_ids))
        reporting = threading.Lock()

        def work(number: int) -> None:
            part_id = self.part_ids[number]
            span = self.importer.parts[number]
            left_out = np.zeros(0, np.int64)
            if part_id in missing:
                part, left_out = read_finite(self.importer, span, self.drop_nan)
                try:
                    if len(left_out) < len(span.lengths):
                        steps, per_episode = (
                            {name: part.arrays[name] for name in staged.schema.names(per)}
                            for per in ("step", "episode")
                        )
                        staged.write_part(part_id, steps, part.episodes, per_episode)
                except DatasetError as error:
                    if _is_transient(error):
                        raise
                    refuse(self.source, "", str(error))
            lengths = span.lengths[left_out - span.first].tolist()
            with reporting:
                dropped.update(zip(left_out.tolist(), lengths, strict=True))
                advance(span.n_steps)

        return work

    def _alone(self) -> AbstractContextManager[object]:
        """Nobody else adds other columns to the store meanwhile; object storage has no locks."""
        if self.target is None or is_bucket_url(self.address):
            return nullcontext()
        return self.target.columns_lock()

    def _check_new_episodes(self, staged: Store) -> None:
        """Refuse an episode id that would be in the store twice, and columns that do not agree."""
        ours = staged.catalog()
        present = set() if self.target is None else set(self.target.parts())
        bounds = [span for part, span in ours.part_bounds.items() if part not in present]
        rows = np.concatenate([np.arange(0), *(np.arange(*span) for span in bounds)])
        ids, counts = np.unique(ours.numbers("episode")[rows], return_counts=True)
        if (counts > 1).any():
            repeats = listed(ids[counts > 1], 4)
            refuse(self.source, "", f"episode ids {repeats} are there more than once")
        theirs = self.target.catalog().numbers("episode") if self.target else ids[:0]
        if len(repeated := np.intersect1d(ids, theirs)):
            problem = f"are in store {self.address} already; import it into a store of its own"
            raise DatasetError(f"episode ids {listed(repeated, 4)} of the source {problem}")
        if self.target is not None:
            with failures(f"{self.source} does not fit store {self.address}"):
                check_agreement(self.target.catalog(), ours)

    def _publish(self, staged: Store) -> None:
        address = self.address
        target = self.target
        if is_bucket_url(address):
            self.record.remember(address)
            push_store(staged, str(address))
        elif target is None:
            self.record.remember(staged.path)
            staged.files.update_index()
            with suppress(OSError):
                Path(address).rmdir()  # an empty folder may stand where the store goes
            replace_durably(staged.path, Path(address).absolute())
        else:
            create_store(address, staged.schema)  # refuses a store that cannot be written
            self.record.remember(target.path)
            _move_parts(staged, target)
            target.files.update_index()


def _left_out_note(parts: Collection[str]) -> list[str]:
    if not parts:
        return []
    size = amount(len(parts), "part")
    return [f"{size} of the source stay out: the store was made without their episodes"]


def _dropped_note(dropped: Mapping[int, int]) -> list[str]:
    if not dropped:
        return []
    steps = sum(dropped.values())
    names = listed(sorted(dropped), 8)
    sizes = f"{amount(len(dropped), 'episode')} of {amount(steps, 'step')}"
    return [f"left out for values that are not finite: {sizes}, episode {names}"]


def _is_transient(error: Exception) -> bool:
    """Whether a full disk or an unreachable storage was the cause, so that a retry may succeed."""
    return isinstance(error, StorageError | OSError) or isinstance(error.__cause__, OSError)


def _forget_half_moved(staged: Path, target: Store) -> None:
    """Uncommit staged parts whose arrays were moved to the store and removed there."""
    for record in (staged / CATALOG).glob("*.parquet"):
        if not any((root / PARTS / record.stem).is_dir() for root in (staged, target.path)):
            record.unlink()


def _verify_part(staged: Store) -> Callable[[str], None]:
    """Read a part back and compare it with the digests of what was read from the source."""
    catalog = staged.catalog()

    def check(part_id: str) -> None:
        if not (staged.path / PARTS / part_id).is_dir():
            return  # an earlier call verified it and began to publish it
        manifest = catalog.manifests[part_id]
        for field in staged.schema.fields:
            rows = manifest.steps if field.per == "step" else manifest.episodes
            stored = np.empty((rows, *field.shape), field.dtype)
            with staged.array_reader(catalog, part_id, field.name) as reader:
                reader.read_runs([(0, rows)], stored)
            if array_digest(stored) != manifest.arrays[field.name]:
                problem = "the stored values do not read back as they were"
                where = f"part {part_id}, field {field.name}"
                raise DatasetError(f"{where}: {problem}; check the disk and import again")

    return check


def _in_threads(work: Callable[[Any], None], items: Iterable[Any], workers: int) -> None:
    """Call `work` for each item; the first failure cancels the items that have not begun."""
    pool = ThreadPoolExecutor(max(1, workers))
    try:
        for _ in pool.map(work, items):
            pass
    finally:
        pool.shutdown(cancel_futures=True)


def _move_parts(staged: Store, target: Store) -> None:
    """Move parts into a store on the same file system, each committed by its catalog file."""
    for part_id in target.missing(staged.parts()):
        with target.part_lock(part_id):
            arrays = staged.path / PARTS / part_id
            record = f"{part_id}.parquet"
            if arrays.is_dir():
                shutil.rmtree(target.path / PARTS / part_id, ignore_errors=True)
                replace_durably(arrays, target.path / PARTS / part_id)
            replace_durably(staged.path / CATALOG / record, target.path / CATALOG / record)
