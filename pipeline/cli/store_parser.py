"""The parsers of the commands on a store."""

from __future__ import annotations

import argparse
from pathlib import Path

from pipeline.cli.arguments import (
    add_cells,
    add_expert_choice,
    add_json,
    add_settings,
    add_sim_choice,
    add_simulation,
    add_store,
    add_where,
    command,
    names,
    numbers,
    whole,
)
from pipeline.cli.runner_arguments import add_runner, add_scheduler


def add_store_commands(commands: argparse._SubParsersAction) -> None:
    """All commands on a store."""
    _add_collect(commands)
    _add_query(commands)
    _add_upkeep(commands)
    _add_card(commands)
    _add_push(commands)


def _add_collect(commands: argparse._SubParsersAction) -> None:
    collect = command(
        commands,
        "collect",
        "collect the parts of a plan that a store lacks",
        "gaitforge collect data/legged.zarr --preset legged-1m9",
    )
    add_store(collect)
    collect.add_argument("--preset", default="demo", help="size of the plan (default: %(default)s)")
    collect.add_argument("--parts", type=numbers, help="only these parts of the plan, e.g. 0-9")
    add_expert_choice(collect)
    add_sim_choice(collect)
    add_simulation(collect)
    _add_form(collect)
    add_cells(collect)
    add_runner(collect)
    add_settings(collect, "grid.episodes_per_part=100")
    add_json(collect)
    collect.set_defaults(run="cli.commands:collect")


def _add_form(collect: argparse.ArgumentParser) -> None:
    """Which fields are stored and how exactly; what is not given is as the plan has it."""
    collect.add_argument(
        "--state",
        action=argparse.BooleanOptionalAction,
        help="store base pose and joint positions, for playback: a quarter more bytes",
    )
    collect.add_argument(
        "--privileged",
        action="store_true",
        default=None,
        help="store what the expert sees and a learner does not",
    )
    collect.add_argument(
        "--half",
        action="store_true",
        default=None,
        help="store half floats: half the size, no exact replay",
    )


def _add_query(commands: argparse._SubParsersAction) -> None:
    query = command(
        commands,
        "query",
        "describe the episodes that match",
        'gaitforge query legged.zarr --terrain rough --where "return > 6 and friction < 0.6"',
    )
    add_store(query)
    add_cells(query)
    add_where(query)
    query.add_argument("--group-by", type=names, help="columns (default: the store's own)")
    query.add_argument("--tag", help="a version of the store that has a name")
    query.add_argument("--parquet", type=Path, metavar="FILE", help="also write the rows there")
    query.add_argument("--save", type=Path, metavar="FILE", help="keep the selection, to train on")
    add_json(query)
    query.set_defaults(run="cli.store_commands:query")


def _add_upkeep(commands: argparse._SubParsersAction) -> None:
    for name, what in (
        ("info", "show a store's version, size and schema version"),
        ("verify", "check every object of a store; exit 1 with a line a fault"),
        ("gc", "remove what interrupted writers and compactions left in a store"),
        ("compact", "merge small parts; the dataset and its hash stay the same"),
        ("tag", "give a store's present version a name, or list the names"),
        ("migrate", "bring a store of an older version to this one's"),
    ):
        example = f"gaitforge {name} runs/demo/legged.zarr"
        each = command(commands, name, what, f"{example} v1" if name == "tag" else example)
        add_store(each)
        add_json(each)
        each.set_defaults(run=f"cli.store_commands:{name}")
        if name == "info":
            each.add_argument("--tag", help="a version of the store that has a name")
        elif name == "tag":
            each.add_argument("name", nargs="?", help="letters, digits, '_', '-' and '.'")
        elif name == "verify":
            each.add_argument(
                "--replay",
                type=whole,
                default=0,
                metavar="N",
                help="also simulate N random episodes again, bit for bit",
            )
            each.add_argument("--seed", type=whole, default=0, help="which episodes are replayed")
            each.add_argument("--robot", default="", help="a name or path, if not the store's own")


def _add_card(commands: argparse._SubParsersAction) -> None:
    card = command(
        commands,
        "card",
        "write a dataset card: HTML, Markdown and JSON",
        "gaitforge card runs/demo/legged.zarr --out runs/demo/card",
    )
    add_store(card)
    card.add_argument("--out", type=Path, help="folder (default: STORE.card)")
    add_cells(card)
    add_where(card)
    card.add_argument("--no-channels", action="store_true", help="leave the arrays unread")
    add_scheduler(card)
    card.set_defaults(run="report.card:card")


def _add_push(commands: argparse._SubParsersAction) -> None:
    push = command(
        commands,
        "push",
        "copy a local store's parts to object storage; what is there stays",
        "gaitforge push data/legged.zarr s3://bucket/legged.zarr",
    )
    push.add_argument("store", type=Path)
    push.add_argument("url", metavar="URL", help="s3://bucket/prefix")
    add_json(push)
    push.set_defaults(run="cli.store_commands:push")
