"""New stores of other stores' parts, of a store's present version, and of two stores merged.

The parts of other stores are hard links where the file system has them; nothing is decoded.

A store's present version is written as a new store without edits.

Two stores are merged into a new one.
"""

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures, failures, listed
from gaitforge.common.files import (
    check_inside,
    fsync_path,
    fsync_tree,
    replace_durably,
)
from gaitforge.common.locks import exclusive_lock
from gaitforge.datasets.catalog.catalog import check_agreement
from gaitforge.datasets.catalog.edit_log import Edit, EditedRows
from gaitforge.datasets.layout import (
    CATALOG,
    IMPORTS,
    PARTS,
    ROOT_FILE,
    STAGING,
    check_outside_stores,
)
from gaitforge.datasets.schema import NEW_REWARD, Schema
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.storage.about import About, joined_about, read_about, write_about
from gaitforge.datasets.storage.records import LEFT_OUT, last_sha256
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.datasets.storage.store import PartStore

Advance = Callable[[int], object]

COPIED_KINDS = ("drop", "annotate", "trim")
"""Kinds of edits that need nothing but their file, so that a copy works in another store."""

SPLIT_COMMAND = "split"
"""`command` in the origin of the edit that drops the episodes of a split's other sides."""


@dataclass(frozen=True)
class Share:
    """Parts that a new store takes from another: some, as collected, or all (None)."""

    store: PartStore
    parts: frozenset[str] | None = None

    def stems(self) -> list[str]:
        """The catalog files that hold the parts."""
        locations = self.store.collected().locations
        part_ids = (p for p in locations if self.parts is None or p in self.parts)
        return list(dict.fromkeys(locations[part_id].folder for part_id in part_ids))

    def linked(self) -> set[str]:
        """The parts in those files; more than `parts` where parts were merged by `compact`."""
        stems = set(self.stems())
        locations = self.store.collected().locations
        return {part_id for part_id, location in locations.items() if location.folder in stems}


def lineage(store: PartStore, parts: Iterable[str] | None = None) -> dict[str, Any]:
    """The record of a source store in the plan of a store made from it, of all parts or some."""
    info = store.info()
    name = Path(store.full_address).name
    record = {"store": name, "hash": info.hash, "episodes": info.episodes, "steps": info.steps}
    if parts is not None and (store.path / IMPORTS).is_dir():
        left_out = sorted(store.catalog().part_bounds.keys() - set(parts))
        record |= {LEFT_OUT: left_out} if left_out else {}
    return {**record, "plan": store.plan}


def parts_of(selection: EpisodeSelection) -> list[str]:
    """The parts that a selection touches."""
    return [part_id for part_id, _ in selection.rows_by_part()]


def check_local(stores: Sequence[PartStore], out: str | os.PathLike[str]) -> Path:
    """Return the new store's path; DatasetError for URLs, tags, and edits that cannot be copied."""
    for store in stores:
        store.check_local("give a local copy")
        if store.tag_name is not None:
            raise DatasetError(f"{store.address} was opened at a tag; open it without one")
        if odd := next((e for e in store.edits() if e.kind not in COPIED_KINDS), None):
            raise DatasetError(
                f"{store.address} has an edit of kind {odd.kind!r}, which a new store cannot take; "
                "merge and split what 'gaitforge dataset apply' makes of it"
            )
    return new_place(out)


def assemble(
    out: Path,
    shares: Sequence[Share],
    plan: Mapping[str, Any],
    more: Callable[[PartStore], None] = lambda store: None,
    advance: Advance = lambda parts: None,
) -> None:
    """Make the store `out` of the shares' parts and edits; it appears when it is complete.

    A killed call leaves a hidden folder beside `out`; the same call again goes on with it. A store
    at `out` with the same `plan` (JSON values) is kept. `more` adds further edits at the end, and
    `advance` is called with 1 for each file of parts that is there.
    """
    with unfinished(out, shares[0].store.schema, plan) as target:
        if target is None:
            return
        for share in shares:
            for stem in share.stems():
                _link_part(share.store, target, stem)
                advance(1)
        copy_notes([share.store for share in shares], target)
        shutil.rmtree(target.log.folder, ignore_errors=True)
        for share in shares:
            other_stores = [sibling.store for sibling in shares if sibling is not share]
            _copy_edits(share, other_stores, target)
        more(target)


@contextmanager
def unfinished(out: Path, schema: Schema, plan: Mapping[str, Any]) -> Iterator[PartStore | None]:
    """A hidden store beside `out` to be filled, which is moved to `out` at the end.

    It is left as it is if the caller fails or is killed, and the next call with the same `plan`
    gets it again. None where `out` is that store already; DatasetError where `out` is another.
    """
    temporary = out.with_name(f".{out.name}.unfinished")
    with disk_failures(f"{out} was not made", "; the same command goes on"):
        out.parent.mkdir(parents=True, exist_ok=True)
        with exclusive_lock(out.with_name(f".{out.name}.lock"), wait=False) as held:
            if not held:
                raise DatasetError(f"{out} is being made by another process")
            if _has_plan(out, plan):
                yield None
                return
            if out.exists() and not (out.is_dir() and not any(out.iterdir())):
                raise DatasetError(f"{out} exists and is not the same result; give a new path")
            if not _has_plan(temporary, plan):
                for path in out.parent.iterdir():  # with what a killed creation left
                    if path.name.lstrip(".").startswith(temporary.name.lstrip(".")):
                        shutil.rmtree(path, ignore_errors=True)
            target = PartStore.create(temporary, schema, plan)
            yield target
            target.catalog()
            target.files.update_index()
            _flush(temporary)
            with suppress(OSError):
                out.rmdir()  # an empty folder may stand where the store goes
            replace_durably(temporary, out)


def new_place(out: str | os.PathLike[str]) -> Path:
    """The absolute path of a new store; DatasetError for URLs, and for a place within a store."""
    if is_bucket_url(out):
        raise DatasetError(f"{out} is on object storage; give a local folder, then push that")
    path = Path(os.path.abspath(out))
    return check_outside_stores(path.parent) / path.name


def _has_plan(path: Path, plan: Mapping[str, Any]) -> bool:
    return (path / ROOT_FILE).is_file() and PartStore.open(path).plan == plan


def _link_part(source: PartStore, target: PartStore, stem: str) -> None:
    """Put a part's folder and catalog file in place; not flushed, as `assemble` does it once."""
    committed = target.files.path(stem)
    folder = target.path / PARTS / stem
    if committed.exists() and _is_whole(target, stem):
        return  # linked before, or the same part of the other store
    committed.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    check_inside(source.path, [source.files.path(stem), *(source.path / PARTS / stem).rglob("*")])
    shutil.copytree(source.path / PARTS / stem, folder, copy_function=_link)
    staged = target.path / STAGING / committed.name
    shutil.copyfile(source.files.path(stem), staged)
    os.replace(staged, committed)


def _is_whole(store: PartStore, stem: str) -> bool:
    """Whether a part that may not have been flushed before a power cut has all of its bytes."""
    try:
        manifest, _ = store.files.read(stem)
    except DatasetError:
        return False
    return store.object_sizes(stem) == {name: size for name, (size, _) in manifest.objects.items()}


def _flush(root: Path) -> None:
    """Flush the folders and catalog files; linked and copied arrays are on the disk already."""
    fsync_tree(root / CATALOG)
    for folder, _, _ in os.walk(root, topdown=False):
        fsync_path(Path(folder))


def _link(source: str, target: str) -> None:
    """A link to a committed file, which is on the disk already, or a flushed copy."""
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copyfile(source, target)
        fsync_path(Path(target))


def copy_notes(sources: Sequence[PartStore], target: PartStore) -> None:
    """Copy the records of imports, and what can be said of all the sources together."""
    about = joined_about(map(read_about, sources))
    if about != About():
        write_about(target, about)
    for source in (store.path for store in sources):
        if (source / IMPORTS).is_dir():
            check_inside(source, (source / IMPORTS).rglob("*"))
            shutil.copytree(source / IMPORTS, target.path / IMPORTS, dirs_exist_ok=True)
            fsync_tree(target.path / IMPORTS)


def _copy_edits(share: Share, other_stores: Sequence[PartStore], target: PartStore) -> None:
    """Append a share's edits to the target's, without the history that both have."""
    parts = share.linked()
    foreign = _foreign_rows(share.store, other_stores)
    numbering = EditedRows(share.store.collected(), np.zeros(0, bool))
    edits: list[Edit] = []
    for edit in share.store.edits():
        is_linked = [part_id in parts for part_id in edit.rows.column("part").to_pylist()]
        is_own = ~foreign[numbering.numbers(edit)]
        rows = edit.rows.filter(pa.array(np.asarray(is_linked, bool) & is_own))
        if rows.num_rows:
            origin = {"edit": edit.sha256, **edit.origin}
            edits.append(Edit(edit.number, edit.kind, edit.content, origin, "", rows))
    for edit in _not_yet_there(target.log.load(), edits):
        after = last_sha256(target.log.load())
        target.log.append(edit.kind, edit.content, edit.rows, edit.origin, after)


def _foreign_rows(store: PartStore, other_stores: Sequence[PartStore]) -> np.ndarray:
    """(E,) bool: episodes that a split put on another side, which is among the others.

    A side says nothing of these: its drops, notes and trims of them are the other store's.
    """
    collected = store.collected()
    on_another_side = np.zeros(collected.num_rows, bool)
    numbering = EditedRows(collected, on_another_side)
    for edit in store.edits():
        if edit.kind == "drop" and edit.origin.get("command") == SPLIT_COMMAND:
            numbering.drop(edit)
    shown_elsewhere = np.zeros(collected.num_rows, bool)
    for catalog in (other_store.catalog() for other_store in other_stores):
        is_shown = catalog.is_shown
        for part_id in collected.part_bounds.keys() & catalog.part_bounds.keys():
            rows = slice(*collected.part_bounds[part_id])
            shown_elsewhere[rows] |= is_shown[slice(*catalog.part_bounds[part_id])]
    return on_another_side & shown_elsewhere


def _not_yet_there(log: Sequence[Edit], edits: Sequence[Edit]) -> Sequence[Edit]:
    """The edits without their beginning that `log` begins or ends with.

    Only a common beginning is a shared history: an edit that repeats an earlier one still counts.
    What `log` ends with would change nothing if it were done again.
    """
    shared = 0
    for present, edit in zip(log, edits, strict=False):
        if (_source(present), present.digest) != (_source(edit), edit.digest):
            break
        shared += 1
    left = [edit.digest for edit in edits[shared:]]
    done = [edit.digest for edit in log]
    for count in range(min(len(done), len(left)), 0, -1):
        if done[-count:] == left[:count]:
            return edits[shared + count :]
    return edits[shared:]


def _source(edit: Edit) -> str:
    """SHA-256 of the edit as it was first made, which copies of it keep."""
    return edit.origin.get("edit", edit.sha256)


def apply_edits(
    store: PartStore, out: str | os.PathLike[str], advance: Advance = lambda steps: None
) -> Path:
    """Write the episodes of a store as they are now into the new store `out`; returns its path.

    Dropped episodes, trimmed steps and replaced values are not in it; added fields and columns are
    as if they had been collected, and the schema says where the reward is a new one. Parts keep
    their names, but not their hashes, so tags stay behind. The new store's plan says what it was
    made from. `advance` is called with the steps of each part. The store appears when it is
    complete; the same call again goes on after a crash. DatasetError if something else is at `out`,
    an object is damaged or missing, or the disk cannot be written.
    """
    path = new_place(out)
    catalog = store.catalog()
    present = EpisodeSelection(store, catalog, catalog.shown)
    plan = {"applied": lineage(store, parts_of(present))}
    schema = present.schema
    if present.has_new_reward:
        schema = replace(schema, attributes={**schema.attributes, NEW_REWARD: True})
    with unfinished(path, schema, plan) as target:
        if target is None:
            return path
        for part_id, rows in present.rows_by_part():
            part = present.with_rows(catalog.part_bounds[part_id][0] + rows)
            if target.missing([part_id]):
                steps = {name: part.read(name) for name in present.schema.names("step")}
                finals = {name: part.read(name) for name in present.schema.names("episode")}
                columns = part.episodes().drop_columns(["part", "start"])
                target.write_part(part_id, steps, columns, finals)
            advance(part.steps)
        copy_notes([store], target)
    return path


def merge_stores(
    first: PartStore,
    second: PartStore,
    out: str | os.PathLike[str],
    advance: Advance = lambda parts: None,
) -> Path:
    """Make a new store with the parts and edits of both; returns its absolute path.

    Parts are hard links where possible, and nothing is decoded. A part that both have counts once,
    and so does the beginning that both logs of edits share; of edits of the same episodes the
    second store's come last. Sides of one split become what was split. The new store's plan says
    what it was made from. The same call again goes on after a crash, or returns the finished store.
    DatasetError for other fields, catalog columns that do not agree, parts of one name with other
    content, an episode id in two parts, something else at `out`, stores on object storage or
    opened at a tag, or a disk that cannot be written.
    """
    target = check_local([first, second], out)
    _check_fit(first, second)
    plan = {"merge": [lineage(store) for store in (first, second)]}
    assemble(target, [Share(first), Share(second)], plan, advance=advance)
    return target


def _check_fit(first: PartStore, second: PartStore) -> None:
    ours = first.schema
    theirs = second.schema
    if ours.hash != theirs.hash or ours.group_by != theirs.group_by:
        raise DatasetError(
            f"{first.address} and {second.address} have different schemas, "
            f"{ours.differences(theirs)}; only stores of one schema can be merged"
        )
    a = first.catalog()
    b = second.catalog()
    with failures(f"{first.address} and {second.address} cannot be merged"):
        check_agreement(a, b)
        joined_about([read_about(first), read_about(second)])
    shared = [part_id for part_id in a.manifests if part_id in b.manifests]
    if clashes := [
        part_id
        for part_id in shared
        if a.manifests[part_id].content_hash != b.manifests[part_id].content_hash
    ]:
        raise DatasetError(
            f"{first.address} and {second.address} both have part {listed(clashes, 4)}, with other "
            "content: collect one of them with another seed"
        )
    unshared = np.ones(b.num_rows, bool)
    for part_id in shared:
        unshared[slice(*b.part_bounds[part_id])] = False
    repeated = np.intersect1d(a.numbers("episode"), b.numbers("episode")[unshared])
    if len(repeated):
        raise DatasetError(
            f"episode ids {listed(repeated, 4)} are in {first.address} and, in other parts, in "
            f"{second.address}; ids must differ"
        )
