"""Copy a selection of a store, which may lie on a server, into a new local store.

A part that is selected whole stays one part with its name and content; the rest of a part is cut to
blocks that fit in memory. The plan of the new store names what it is a copy of, so an interrupted
copy goes on with the parts that lack, and no other one does.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np
import pyarrow as pa

from gaitforge.common.errors import DatasetError, disk_failures
from gaitforge.datasets import Selection, Store, create_store
from gaitforge.datasets.catalog.catalog import STORE_COLUMNS
from gaitforge.datasets.edits.assemble import lineage
from gaitforge.datasets.formats.protocol import Begin, no_progress
from gaitforge.datasets.formats.sources import PART_BYTES, Block, blocks, field_bytes
from gaitforge.datasets.layout import ABOUT, STAGING, check_outside_stores
from gaitforge.datasets.schema import Field
from gaitforge.datasets.selection import Unit
from gaitforge.datasets.storage.about import read_about, write_about
from gaitforge.datasets.storage.s3 import is_bucket_url

_PLAN = "get"
"""Entry of a copy's plan: the source's lineage, and the `selection` that was copied."""
_MOST_LETTERS = 100
"""Of a part's name in the names of its blocks; a part's name has at most 120."""


@dataclass(frozen=True)
class Copied:
    """What a copy made: its counts, those of earlier calls included, and the new store's hash."""

    store: str
    episodes: int
    steps: int
    parts: int
    hash: str


def get_selection(selection: Selection, out: Path, begin: Begin = no_progress) -> Copied:
    """Copy a selection into a store at `out`, which is made if absent.

    A part of more than `PART_BYTES` that is selected whole takes as much disk, in unnamed files in
    `out` until it is written, and in memory one shard and a byte for each value of its largest
    field; without that much, what one part or block of up to `PART_BYTES` takes.

    Args:
        begin: reports the steps copied.

    Raises:
        DatasetError: nothing is selected; `out` is remote, in another store, or anything but an
            unfinished copy of the same selection; an object is missing or damaged.
    """
    if not len(selection):
        raise DatasetError("nothing to copy: no episode is selected")
    if is_bucket_url(out):
        raise DatasetError(f"{out} is no folder; copy to one, then gaitforge push")
    if not out.exists():
        check_outside_stores(out)
    store = _begun(selection, out)
    if not (store.path / ABOUT).is_file():
        write_about(store, read_about(selection.store))
    advance = begin(selection.steps)
    checked = ""
    for name, block in _pieces(selection):
        if store.missing([name]):
            if checked != block.part_id:
                _check_objects(selection, block.part_id)
                checked = block.part_id
            _copy(store, name, block)
        advance(block.n_steps)
    _check_counts(selection, store)
    info = store.info()
    return Copied(str(out), info.episodes, info.steps, info.parts, info.hash)


def _begun(selection: Selection, out: Path) -> Store:
    """The new store, or that of an earlier call for the same content from any address."""
    source = selection.store
    content = selection.hash_over(selection.schema.names(), selection.catalog.overlaid_names)
    entry = lineage(source) | {"selection": content}
    if is_bucket_url(source.address):
        entry["store"] = source.address
    store = create_store(out, selection.schema, {_PLAN: entry})
    begun = (store.plan or {}).get(_PLAN)
    if not isinstance(begun, dict):
        raise DatasetError(f"{out} is a store that gaitforge get did not begin; give a new path")
    if begun.get("selection") != content:
        before = f"{begun.get('store')} with the hash {begun.get('hash')}"
        raise DatasetError(f"{out} holds a copy of other episodes: of {before}; give a new path")
    return store


def _pieces(selection: Selection) -> Iterator[tuple[str, Block]]:
    """Name of a new part, and its episodes: whole parts of the source, and blocks of the others.

    Names follow from the selection alone. No block has the name of another part.
    """
    groups = {part: list(group) for part, group in groupby(blocks(selection), _part_of)}
    taken = set(groups)
    for part, cut in groups.items():
        first = cut[0]
        lengths = np.concatenate([block.lengths for block in cut])
        whole = selection.catalog.manifests[part]
        if (len(lengths), int(lengths.sum())) == (whole.episodes, whole.steps):
            yield part, Block(lengths, first.first, first.first_step, selection, part)
        elif len(cut) == 1:
            yield part, first
        else:
            numbered = (f"{part[:_MOST_LETTERS]}-{number}" for number in count())
            for block in cut:
                name = next(name for name in numbered if name not in taken)
                taken.add(name)
                yield name, block


def _part_of(block: Block) -> str:
    return block.part_id


def _check_objects(selection: Selection, part: str) -> None:
    """Compare what a part's arrays are read from, also in a mirror, with the recorded SHA-256."""
    for name in selection.schema.names():
        with selection.store.field_reader(selection.catalog, part, name) as reader:
            reader.check_objects()


def _copy(store: Store, name: str, block: Block) -> None:
    schema = block.selection.schema
    steps = {each: _values(store, block, schema.field(each)) for each in schema.names("step")}
    finals = {each: _values(store, block, schema.field(each)) for each in schema.names("episode")}
    store.write_part(name, steps, _rows(block), finals)


def _values(store: Store, block: Block, field: Field) -> np.ndarray:
    """A block's values of a field: (T, *shape), or (E, *shape) for a field per episode.

    Those of a large part are in a file, in the folder of the new store, that has no name.
    """
    rows = block.n_steps if field.per == "step" else len(block.lengths)
    unit = Unit(block.part_id, block.episodes.start, block.episodes.stop)
    held = field_bytes(block.selection.schema.fields, block.n_steps, len(block.lengths))
    if held <= PART_BYTES:
        return block.selection.read_unit(field.name, unit)
    folder = store.path / STAGING
    with disk_failures(f"no room in {folder} for field {field.name} of part {block.part_id}"):
        folder.mkdir(exist_ok=True)
        with TemporaryFile(dir=folder) as file:
            if hasattr(os, "posix_fallocate"):  # a full disk would end the process, not raise
                os.posix_fallocate(file.fileno(), 0, rows * field.row_bytes)
            out = np.memmap(file, field.dtype, "w+", shape=(rows, *field.shape))
    return block.selection.read_unit(field.name, unit, out)


def _rows(block: Block) -> pa.Table:
    """The catalog's rows in the columns and types of the part, which other parts may not have."""
    selection = block.selection
    catalog = selection.catalog
    part = block.part_id
    location = catalog.locations[part]
    manifest, table = selection.store.files.read(location.folder)
    held = {member.content_hash for member in manifest.collected}
    if catalog.manifests[part].content_hash not in held:
        raise DatasetError(f"part {part} of {selection.store.address} was replaced; start again")
    rows = selection.rows[block.episodes]
    first, _ = catalog.part_bounds[part]
    table = table.take(pa.array(rows - first + location.first_episode))
    edited = catalog.rows(rows, catalog.overlaid_names)
    for name, column in zip(edited.column_names, edited.columns, strict=True):
        if name in table.column_names:
            table = table.set_column(table.schema.get_field_index(name), name, column)
        elif column.null_count < len(column):
            table = table.append_column(name, column)
    return table.drop_columns([*STORE_COLUMNS])


def _check_counts(selection: Selection, store: Store) -> None:
    """DatasetError unless the copy has as many episodes and steps as were selected."""
    manifests = store.collected().manifests.values()
    held = sum(part.episodes for part in manifests), sum(part.steps for part in manifests)
    if held != (len(selection), selection.steps):
        raise DatasetError(
            f"{store.address} has {held[0]} episodes of {held[1]} steps, selected were "
            f"{len(selection)} of {selection.steps}; copy to a new path"
        )
