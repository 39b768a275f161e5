"""What the commands on a store do: query, info, verify, gc, compact, tag, migrate, card.

Nothing but `datasets` is imported at the top: a query has to answer before torch would have loaded.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from datasets import Selection, Store, migrate_store, open_store, write_parquet
from pipeline.tables import show, show_one


def query(arguments: argparse.Namespace) -> int:
    """Describe the episodes that match; write them to Parquet or save the selection if asked."""
    selection = chosen_episodes(open_store(arguments.store, tag=arguments.tag), arguments)
    rows = selection.describe(arguments.group_by)
    if arguments.parquet is not None:
        write_parquet(rows, arguments.parquet)
    if arguments.save is not None:
        selection.save(arguments.save)
    show(rows, arguments.json)
    return 0


def cells_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """The terrains, skills and levels that were asked for, as `Store.select` takes them."""
    return {name: getattr(arguments, name) for name in ("terrain", "skill", "level")}


def chosen_episodes(store: Store, arguments: argparse.Namespace) -> Selection:
    """The episodes of the cells that were asked for, and of `--where`."""
    return chosen(store, cells_of(arguments), arguments.where)


def chosen(store: Store, cells: Mapping[str, Any], where: str | None) -> Selection:
    """The episodes of some terrains, skills and levels (None for all), and of a condition."""
    selection = store.select(**cells)
    return selection if where is None else selection.where(where)


def info(arguments: argparse.Namespace) -> int:
    """Show what identifies a store."""
    store = open_store(arguments.store, tag=arguments.tag)
    record = store.info() | {"tags": [tag.name for tag in store.tags()]}
    show_one(record | ({"plan": store.plan} if arguments.json else {}), arguments.json)
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """Check every object of a store, and simulate some episodes again if asked."""
    store = open_store(arguments.store)
    faults = store.verify()
    if arguments.replay and not faults:
        from flows.stages.replay import replay
        from pipeline.progress import TerminalReporter

        found = replay(
            arguments.store, arguments.replay, arguments.seed, TerminalReporter(), arguments.robot
        )
        faults = [str(fault) for fault in found]
    if arguments.json:
        record = {"faults": faults, "parts": len(store.parts()), "replayed": arguments.replay}
        show_one(record, as_json=True)
    elif faults:
        print("\n".join(faults))
    else:
        again = f", {arguments.replay} episodes repeat bit for bit" if arguments.replay else ""
        print(f"{arguments.store}: {len(store.parts())} parts, no fault{again}")
    return 1 if faults else 0


def gc(arguments: argparse.Namespace) -> int:
    """Remove what interrupted writers left, and what a compaction replaced."""
    show_one({"removed": open_store(arguments.store).gc()}, arguments.json)
    return 0


def compact(arguments: argparse.Namespace) -> int:
    """Merge small parts into larger ones; the dataset and its hash stay the same."""
    rows = [asdict(record) for record in open_store(arguments.store).compact()]
    show(rows, arguments.json)
    if rows and not arguments.json:
        print("gaitforge gc frees the parts that these replace")
    return 0


def tag(arguments: argparse.Namespace) -> int:
    """Name the store's present version, or list the names."""
    store = open_store(arguments.store)
    tags = [store.tag(arguments.name)] if arguments.name else store.tags()
    rows = [{"tag": t.name, "hash": t.hash, "steps": t.steps, "episodes": t.episodes} for t in tags]
    show(rows, arguments.json)
    return 0


def migrate(arguments: argparse.Namespace) -> int:
    """Bring a store of an older version to this one's."""
    old = migrate_store(arguments.store)
    show_one({"from": old, "to": open_store(arguments.store).info()["schema_version"]}, False)
    return 0


def push(arguments: argparse.Namespace) -> int:
    """Copy a local store's parts to object storage."""
    from datasets.storage.s3.object_store import push_store

    sent = push_store(open_store(arguments.store), arguments.url)
    show_one({"url": arguments.url, "committed": sent}, arguments.json)
    return 0
