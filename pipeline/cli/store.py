"""The commands on a store: query, info, verify, gc, compact, tag, migrate, push, card."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path

from datasets import Selection, Store, migrate_store, open_store, write_parquet
from pipeline.cli.arguments import CELLS, Handler, Parser, cells_of, flag, names, option, whole
from pipeline.progress import TerminalReporter
from pipeline.tables import show, show_one


def chosen_episodes(store: Store, arguments: argparse.Namespace) -> Selection:
    """The episodes of the chosen cells that meet `--where`."""
    selection = store.select(**cells_of(arguments))
    return selection if arguments.where is None else selection.where(arguments.where)


def add_query(parser: Parser) -> None:
    """`gaitforge query STORE`."""
    parser.take("store", *CELLS, "--where")
    option(parser, "--group-by", "columns (default: the store's own)", names)
    parser.take("--tag")
    option(parser, "--parquet", "also write the rows there", Path, metavar="FILE")
    option(parser, "--save", "save the selection, to train on", Path, metavar="FILE")
    parser.take("--json")
    parser.runs(
        _query,
        'gaitforge query legged.zarr --terrain rough --where "return > 6 and friction < 0.6"',
    )


def _query(arguments: argparse.Namespace) -> int:
    selection = chosen_episodes(open_store(arguments.store, tag=arguments.tag), arguments)
    rows = selection.describe(arguments.group_by)
    if arguments.parquet is not None:
        write_parquet(rows, arguments.parquet)
    if arguments.save is not None:
        selection.save(arguments.save)
    show(rows, arguments.json)
    return 0


def add_info(parser: Parser) -> None:
    """`gaitforge info STORE`."""
    _on_store(parser, "info", _info)
    parser.take("--tag")


def _info(arguments: argparse.Namespace) -> int:
    store = open_store(arguments.store, tag=arguments.tag)
    record = store.info() | {"tags": [tag.name for tag in store.tags()]}
    show_one(record | ({"plan": store.plan} if arguments.json else {}), arguments.json)
    return 0


def add_verify(parser: Parser) -> None:
    """`gaitforge verify STORE`."""
    _on_store(parser, "verify", _verify)
    option(
        parser,
        "--replay",
        "also simulate N random episodes again and compare them bit for bit",
        whole,
        0,
    )
    option(parser, "--seed", "which episodes are replayed", whole, 0)
    option(parser, "--robot", "a name or path, if not the store's own robot", default="")


def _verify(arguments: argparse.Namespace) -> int:
    store = open_store(arguments.store)
    faults = store.verify()
    if arguments.replay and not faults:
        from flows.stages.replay import replay

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


def add_gc(parser: Parser) -> None:
    """`gaitforge gc STORE`."""
    _on_store(parser, "gc", _gc)


def _gc(arguments: argparse.Namespace) -> int:
    show_one({"removed": open_store(arguments.store).gc()}, arguments.json)
    return 0


def add_compact(parser: Parser) -> None:
    """`gaitforge compact STORE`."""
    _on_store(parser, "compact", _compact)


def _compact(arguments: argparse.Namespace) -> int:
    rows = [asdict(record) for record in open_store(arguments.store).compact()]
    show(rows, arguments.json)
    if rows and not arguments.json:
        print("gaitforge gc frees the parts that these replace")
    return 0


def add_tag(parser: Parser) -> None:
    """`gaitforge tag STORE [NAME]`."""
    _on_store(parser, "tag", _tag, " v1")
    option(parser, "name", "letters, digits, '_', '-' and '.'", nargs="?")


def _tag(arguments: argparse.Namespace) -> int:
    store = open_store(arguments.store)
    tags = [store.tag(arguments.name)] if arguments.name else store.tags()
    rows = [{"tag": t.name, "hash": t.hash, "steps": t.steps, "episodes": t.episodes} for t in tags]
    show(rows, arguments.json)
    return 0


def add_migrate(parser: Parser) -> None:
    """`gaitforge migrate STORE`."""
    _on_store(parser, "migrate", _migrate)


def _migrate(arguments: argparse.Namespace) -> int:
    old = migrate_store(arguments.store)
    new = open_store(arguments.store).info()["schema_version"]
    show_one({"from": old, "to": new}, arguments.json)
    return 0


def add_push(parser: Parser) -> None:
    """`gaitforge push STORE URL`."""
    option(parser, "store", "folder of the store", Path)
    option(parser, "url", "s3://bucket/prefix")
    parser.take("--json")
    parser.runs(_push, "gaitforge push data/legged.zarr s3://bucket/legged.zarr")


def _push(arguments: argparse.Namespace) -> int:
    from datasets.storage.s3.object_store import push_store  # of the extra s3

    sent = push_store(open_store(arguments.store), arguments.url)
    show_one({"url": arguments.url, "committed": sent}, arguments.json)
    return 0


def _on_store(parser: Parser, name: str, handler: Handler, rest: str = "") -> None:
    parser.take("store", "--json")
    parser.runs(handler, f"gaitforge {name} runs/demo/legged.zarr{rest}")


def add_card(parser: Parser) -> None:
    """`gaitforge card STORE`."""
    parser.take("store")
    option(parser, "--out", "output folder (default: STORE.card)", Path)
    parser.take(*CELLS, "--where")
    flag(parser, "--no-channels", "skip the statistics of the arrays")
    parser.take("--scheduler")
    parser.runs(_card, "gaitforge card runs/demo/legged.zarr --out runs/demo/card")


def _card(arguments: argparse.Namespace) -> int:
    from flows.runners.dask_clusters import DaskSettings, dask_client
    from pipeline.report.card import selected, write_card

    store = open_store(arguments.store)
    selection, filters = selected(store, cells_of(arguments), arguments.where)
    folder = arguments.out or Path(f"{Path(arguments.store).name}.card")
    scheduler = arguments.scheduler
    with dask_client(DaskSettings(scheduler=scheduler)) if scheduler else nullcontext():
        written = write_card(selection, folder, filters=filters, channels=not arguments.no_channels)
    print(*written, sep="\n")
    return 0
