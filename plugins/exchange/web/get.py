"""Copy a selection of a store, which may lie on a server, into a new local store.

A part that is selected whole keeps its name and its content. An interrupted copy goes on with the
parts that lack.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from gaitforge.common.errors import DatasetError
from gaitforge.datasets import Selection, create_store
from gaitforge.datasets.formats.protocol import Begin, no_progress
from gaitforge.datasets.formats.sources import Block, blocks
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.storage.about import read_about, write_about
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.datasets.storage.store import PartStore


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

    Args:
        begin: reports the steps copied.

    Raises:
        DatasetError: nothing is selected, `out` is remote, in another store, or a store of another
            schema, or an object is missing or damaged.
    """
    if not len(selection):
        raise DatasetError("nothing to copy: no episode is selected")
    if is_bucket_url(out):
        raise DatasetError(f"{out} is no folder; copy to one, then gaitforge push")
    if not out.exists():
        check_outside_stores(out)
    store = create_store(out, selection.schema)
    write_about(store, read_about(selection.store))
    taken = list(blocks(selection))
    in_part = Counter(block.part_id for block in taken)
    number = Counter[str]()
    advance = begin(selection.steps)
    rows = selection.episodes().drop_columns(["part", "start"])
    for block in taken:
        name = block.part_id
        if in_part[name] > 1:
            name = f"{name}-{number[block.part_id]}"
            number[block.part_id] += 1
        if store.missing([name]):
            _copy(store, name, block, rows)
        advance(block.n_steps)
    info = store.info()
    return Copied(str(out), info.episodes, info.steps, info.parts, info.hash)


def _copy(store: PartStore, name: str, block: Block, rows: pa.Table) -> None:
    schema = block.selection.schema
    steps = block.read(schema.names("step"))
    per_episode = block.read(schema.names("episode"))
    episodes = rows.slice(block.first, len(block.lengths))
    store.write_part(name, steps, episodes, per_episode)
