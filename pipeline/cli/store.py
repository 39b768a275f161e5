"""The commands on a store: query, info, verify, gc, compact, tag, push, card."""

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gaitforge import datasets
from gaitforge.common.errors import amount
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.schema import actions_in_words
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import copy_records
from gaitforge.flows.runners.dask_clusters import DaskSettings, dask_client
from gaitforge.learners.run_files import is_shipped, shipped_card
from gaitforge.pipeline.cli.parsing.options import (
    CELL_FIELDS,
    CELLS,
    JSON,
    SCHEDULER,
    SELECTION,
    SIMULATOR_VERSION,
    STORE,
    TAG,
    TRUST,
    WHERE,
    WITH_RECORDED_VERSIONS,
    flag,
    group,
    needs,
    option,
    option_values,
)
from gaitforge.pipeline.cli.parsing.parser import command
from gaitforge.pipeline.cli.parsing.values import names, positive, store_address, uses, whole
from gaitforge.pipeline.cli.work import CommandWork, Result, single, work
from gaitforge.pipeline.terminal import (
    Rows,
    TerminalReporter,
    cell,
    fields_of,
    json_text,
    show,
    show_one,
    show_result,
)

if TYPE_CHECKING:
    from gaitforge.pipeline.report.card import Draw

_EXAMPLE = "runs/demo/legged.zarr"
MOST_LISTED = 20
MOST_GROUPS = 100
"""Rows of a table of groups without `--limit`; JSON and Parquet have all."""
BINS = 10


def chosen_episodes(store: "datasets.Store", arguments: argparse.Namespace) -> "datasets.Selection":
    """The episodes of the chosen cells that meet `--where`, of `--selection` if there is one."""
    file = getattr(arguments, "selection", None)
    selection = store.select() if file is None else datasets.Selection.load(store, file)
    selection = selection.select(**option_values(arguments, *CELL_FIELDS.values()))
    return selection if arguments.where is None else selection.where(arguments.where)


def applied(store: "datasets.Store", out: Path, reporter: TerminalReporter) -> "datasets.Store":
    """A new store of a store's present version, with the plans and records of its parts."""
    from gaitforge.datasets.edits.assemble import apply_edits

    with reporter.step("apply edits", store.info().steps, "step") as advance:
        path = apply_edits(store, out, lambda steps: advance(steps, ""))
    copy_records([store.full_address], path)
    return datasets.open_store(path)


@work(
    'gaitforge query legged.zarr --terrain rough --where "return > 6 and friction < 0.6"\n'
    '          gaitforge query legged.zarr --list --sort "return desc" --show friction',
    STORE,
    CELLS,
    WHERE,
    SELECTION,
    option("--group-by", "columns (default: the store's own)", names),
    option(
        "--bins",
        f"bins of a column of many numbers; 0 for a group of each number (default: {BINS})",
        whole,
    ),
    option(
        "--limit",
        f"most rows; 0 for all (default: {MOST_LISTED} episodes, {MOST_GROUPS} groups)",
        whole,
    ),
    flag("--paired", "differences to the originals, in a store of gaitforge counterfactual"),
    group(
        "to see single episodes",
        flag("--list", "one row per episode"),
        option("--sort", "by a column; 'COLUMN desc' for the largest first", metavar="COLUMN"),
        option("--show", "further columns, such as draws", names),
        option("--episode", "every column of one episode, e.g. a293cb-00017", metavar="ID"),
    ),
    TAG,
    option("--parquet", "also write the rows to this file", Path, metavar="FILE"),
    option("--save", "save the selection to this file, to train on", Path, metavar="FILE"),
    JSON,
    runner=False,
)
def query_command(arguments: argparse.Namespace) -> CommandWork:
    """Describe the episodes that match a condition, or list them."""
    _check_query(arguments)
    uses(arguments)
    return single(arguments, "query", lambda _: _answer(arguments), itself_result)


def _answer(arguments: argparse.Namespace) -> Result:
    from gaitforge.flows.stages.replay import paired

    selection = chosen_episodes(datasets.open_store(arguments.store, tag=arguments.tag), arguments)
    lines: list[str] = []
    shown: Rows | None = None
    if arguments.episode is not None:
        selection = selection.named(arguments.episode)
        rows = selection.listing(show=selection.catalog.column_names)
    elif arguments.list:
        limit = MOST_LISTED if arguments.limit is None else arguments.limit
        rows = selection.listed(limit, arguments.sort or "", arguments.show or ())
        if len(rows) < len(selection):
            lines = [f"{len(rows):,} of {amount(len(selection), 'episode')}; --limit 0 lists all"]
    elif arguments.paired:
        rows = paired(selection, arguments.group_by)
    else:
        bins = BINS if arguments.bins is None else arguments.bins
        rows = selection.grouped(arguments.group_by, bins)
        limit = MOST_GROUPS if arguments.limit is None else arguments.limit
        shown = rows[:limit] if limit else rows
        lines = [*_bin_lines(rows), *_noise_line(selection)]
        if len(shown) < len(rows):
            text = f"{len(shown):,} of {amount(len(rows), 'group')}; --limit 0 shows all"
            lines.insert(0, text)
        if arguments.limit:
            rows = shown
    if arguments.parquet is not None:
        datasets.write_parquet(rows, arguments.parquet)
    if arguments.save is not None:
        selection.save(arguments.save)
    if arguments.episode is not None:
        return Result(rows[0], tables={"query": rows}, about=arguments.store)
    message = amount(len(selection), "episode")
    return Result(
        rows,
        rows if shown is None else shown,
        tuple(lines),
        empty="no episode matches",
        title="query",
        about=arguments.store,
        message=message,
    )


def _bin_lines(rows: Rows) -> list[str]:
    """A line for each column in bins: how many there are, and how wide."""
    lines = []
    for name, key in (rows[0] if rows else {}).items():
        if isinstance(key, list):
            bins = {tuple(bounds) for row in rows if isinstance(bounds := row[name], list)}
            width = float(f"{key[1] - key[0]:.6g}")
            count = amount(len(bins), "bin")
            lines.append(f"{name} in {count} of {width:g}; --bins 0 makes a group of each number")
    return lines


def _noise_line(selection: "datasets.Selection") -> list[str]:
    """A line with the shares of a selection by the noise on its executed actions."""
    if "action_noise" not in selection.catalog.column_names:
        return []
    mix = selection.describe(("action_noise",))
    shares = [f"{row['action_noise']:g} in {row['episodes'] / len(selection):.0%}" for row in mix]
    return (
        [f"action noise (standard deviation): {', '.join(shares)} of the episodes"] if mix else []
    )


def _check_query(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    for name in ("sort", "show"):
        if getattr(arguments, name) is not None and not arguments.list:
            raise ValueError(f"--{name} is for --list")
    single = arguments.list or arguments.paired or arguments.episode is not None
    if arguments.bins is not None and single:
        raise ValueError("--bins is for groups: not with --list, --paired or --episode")
    if arguments.limit is not None and (arguments.paired or arguments.episode is not None):
        raise ValueError("--limit is for groups and --list")
    ways = {"--group-by": arguments.group_by is not None, "--list": arguments.list}
    if arguments.paired:
        ways = {"--paired": True, "--list": arguments.list}
    chosen = [name for name, is_given in ways.items() if is_given]
    chosen += ["--episode"] if arguments.episode is not None else []
    if len(chosen) > 1:
        raise ValueError(f"{' and '.join(chosen)} exclude each other; give one")


@command(
    f"gaitforge info {_EXAMPLE}\n          gaitforge info fcnet-aliengo",
    option(
        "store",
        "folder, or s3://bucket/prefix; or the name of a trained policy that ships, for its card",
        store_address,
        metavar="STORE|POLICY",
    ),
    JSON,
    TAG,
    flag("--columns", "explain the columns of the catalog: unit, meaning, origin"),
)
def info_command(arguments: argparse.Namespace) -> Callable[[], None] | None:
    """Show a store's version, size and schema version, or its columns; or a policy's card."""
    if is_shipped(arguments.store):
        uses(arguments, "store", "json")
        return partial(_show_policy, str(arguments.store), arguments.json)
    store = datasets.open_store(arguments.store, tag=arguments.tag)
    if arguments.columns:
        from gaitforge.datasets.catalog.episodes import glossary

        columns = glossary(store.schema, store.catalog().schema)
        show([asdict(column) for column in columns], arguments.json)
        return None
    record = asdict(store.info()) | {"tags": [tag.name for tag in store.tags()]}
    record |= {"actions": actions_in_words(store.schema) or "as stored"}
    if arguments.json:
        record |= {"columns": store.catalog().column_names, "plan": store.plan}
    show_one(record, arguments.json)
    return None


def _show_policy(name: str, as_json: bool) -> None:
    """Print the card of a policy that ships."""
    card = shipped_card(name)
    results = card["results"]
    cells = [{k: v for k, v in row.items() if not k.endswith("_ci95")} for row in results["cells"]]
    facts = {name: card[name] for name in ("name", "robot", "model", "parameters", "licence")} | {
        "learned from": f"{card['learned_from']['steps']:,} steps of "
        f"{card['learned_from']['episodes']:,} episodes",
        "dataset": card["learned_from"]["dataset"],
        "return": results["return"],
        "success": results["success"],
        "survival": results["survival"],
    }
    lines = [f"{key:<12}  {cell(value)}" for key, value in facts.items()]
    show_result(card, cells, as_json, "", *lines, "", *card["limits"])


@command(f"gaitforge plan {_EXAMPLE} > legged.plan.json", STORE)
def plan_command(arguments: argparse.Namespace) -> None:
    """Print the plan of a dataset: gaitforge collect --from-plan makes it anew, or parts of it."""
    from gaitforge.flows.stages.dataset_plan import dataset_plan

    if edits := datasets.open_store(arguments.store).edits():
        lost = f"{amount(len(edits), 'edit')} of {arguments.store}: not part of the plan"
        print(lost, file=sys.stderr)
    print(json_text(dataset_plan(arguments.store)))


@command(
    f"gaitforge verify {_EXAMPLE}",
    STORE,
    JSON,
    TRUST,
    option(
        "--replay", "also simulate N random episodes again and compare them bit for bit", whole, 0
    ),
    option("--seed", "random seed that chooses the replayed episodes", whole, 0),
    option("--robot", "a name or path, if not the store's own robot", default=""),
    WITH_RECORDED_VERSIONS,
    SIMULATOR_VERSION,
)
def verify_command(arguments: argparse.Namespace) -> Callable[[], int]:
    """Check every file of a store; exit 1 and print a line per fault."""
    uses(arguments, "store", "json")
    if arguments.replay:
        uses(arguments, "seed", "robot", "with_recorded_versions", "simulator_version")
    return partial(_verify, arguments)


def _verify(arguments: argparse.Namespace) -> int:
    store = datasets.open_store(arguments.store)
    faults = store.verify()
    if arguments.replay and not faults:
        if arguments.with_recorded_versions:
            faults = _replayed_by_version(store, arguments)
        else:
            faults = _replayed(arguments, arguments.simulator_version)
    if arguments.json:
        record = {"faults": faults, "parts": len(store.parts()), "replayed": arguments.replay}
        show_one(record, as_json=True)
    else:
        replayed = f", {amount(arguments.replay, 'episode')} replayed bit for bit"
        parts = amount(len(store.parts()), "part")
        again = replayed if arguments.replay else ""
        print("\n".join(faults or [f"{arguments.store}: {parts}, no fault{again}"]))
    return 1 if faults else 0


def _replayed(arguments: argparse.Namespace, version: str) -> list[str]:
    """Faults of random episodes that are simulated again here."""
    from gaitforge.flows.stages.replay import replay

    sample = arguments.replay, arguments.seed
    faults = replay(arguments.store, *sample, TerminalReporter(), arguments.robot, version)
    return [str(fault) for fault in faults]


def _replayed_by_version(store: datasets.Store, arguments: argparse.Namespace) -> list[str]:
    """Faults of random episodes, each simulated again with the MuJoCo that made it."""
    from gaitforge.flows.stages.recorded_versions import run_recorded

    words = [*arguments.words, "--json"]
    here, runs = run_recorded(store, words, arguments.simulator_version)
    faults = _replayed(arguments, here) if here else []
    for run in runs:
        if run.code not in (0, 1):
            raise SystemExit(run.code)  # it has said why
        faults += json.loads(run.output)["faults"]
    return faults


@command(f"gaitforge gc {_EXAMPLE}", STORE, JSON)
def gc_command(arguments: argparse.Namespace) -> None:
    """Remove what interrupted writers and compactions left in a store."""
    show_one({"removed": datasets.open_store(arguments.store).gc()}, arguments.json)


@command(f"gaitforge compact {_EXAMPLE}", STORE, JSON)
def compact_command(arguments: argparse.Namespace) -> None:
    """Merge small parts; the dataset and its hash stay the same."""
    rows = [asdict(record) for record in datasets.open_store(arguments.store).compact()]
    freed = ["gaitforge gc frees the parts that these replace"] if rows else []
    show_result(rows, rows, arguments.json, *freed)


@command(
    f"gaitforge tag {_EXAMPLE} v1",
    STORE,
    JSON,
    option("name", "tag to add: letters, digits, '_', '-' and '.'", nargs="?"),
)
def tag_command(arguments: argparse.Namespace) -> None:
    """Name a store's present version, or list the names."""
    store = datasets.open_store(arguments.store)
    tags = [store.tag(arguments.name)] if arguments.name else store.tags()
    columns = ("hash", "steps", "episodes")
    rows = [{"tag": tag.name, **fields_of(tag, *columns)} for tag in tags]
    show(rows, arguments.json, empty="no tags; give a name to add one")


@command(
    "gaitforge push data/legged.zarr s3://bucket/legged.zarr",
    option("store", "folder of the store", Path),
    option("url", "s3://bucket/prefix"),
    JSON,
)
def push_command(arguments: argparse.Namespace) -> None:
    """Copy a local store's parts to object storage; existing parts are kept."""
    from gaitforge.datasets.storage.s3 import push_store  # of the extra s3

    sent = push_store(datasets.open_store(arguments.store), arguments.url)
    show_one({"url": arguments.url, "committed": sent}, arguments.json)


@work(
    'gaitforge card legged.zarr --licence CC-BY-4.0 --author "Ada Lovelace <ada@example.org>"',
    STORE,
    option("--out", "output folder (default: STORE.card)", Path),
    CELLS,
    WHERE,
    flag("--no-channels", "skip the statistics and spectra of the arrays"),
    option(
        "--spectrum",
        "steps of a spectrum's window (default: 256, or fewer if all episodes are shorter)",
        positive,
        metavar="N",
    ),
    flag("--no-pictures", "skip the pictures of typical episodes"),
    SCHEDULER,
    group(
        "what is said of the dataset; kept in the store, '' removes it",
        option("--licence", "SPDX identifier, e.g. CC-BY-4.0", metavar="NAME"),
        option("--citation", "how to cite it, e.g. a BibTeX entry", metavar="TEXT"),
        option(
            "--author",
            "'Name' or 'Name <address>'; may be repeated",
            action="append",
            metavar="NAME",
            dest="authors",
        ),
        option("--description", "what it is and is for", metavar="TEXT"),
        option("--limitations", "what it is not good for", metavar="TEXT"),
        option(
            "--add-limitation",
            "a further paragraph of --limitations; may be repeated",
            action="append",
            metavar="TEXT",
            dest="further",
        ),
    ),
    needs("report", "sim", unless="no_pictures"),
    runner=False,
)
def card_command(arguments: argparse.Namespace) -> CommandWork:
    """Write a dataset card (HTML, Markdown, JSON) and a page to explore its episodes."""
    if arguments.no_channels and (arguments.spectrum or arguments.scheduler):
        raise ValueError("--spectrum and --scheduler are for the channels: drop --no-channels")
    uses(arguments)
    folder = _card_folder(arguments)
    return single(arguments, "card", partial(_card, arguments, folder), itself_result)


def _card_folder(arguments: argparse.Namespace) -> Path:
    """The folder of a card; ValueError, before any work, if it cannot be one."""
    address = arguments.store  # a path, or an address on object storage, whose card is written here
    beside = address.parent if isinstance(address, Path) else Path()
    folder = check_outside_stores(arguments.out or beside / f"{Path(address).name}.card")
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is a file; a card needs a folder, see --out")
    return folder


def itself_result(result: Result) -> Result:
    """The result of work whose stage returns a `Result`."""
    return result


def _card(arguments: argparse.Namespace, folder: Path, reporter: Reporter) -> Result:
    from gaitforge.pipeline.report.added_pages import CARD_PAGES
    from gaitforge.pipeline.report.card import selected, write_card

    store = datasets.open_store(arguments.store)
    statements = option_values(
        arguments, "licence", "citation", "authors", "description", "limitations"
    )
    if "authors" in statements:
        statements["authors"] = [name for name in statements["authors"] if name]
    if arguments.further:
        limitations = statements.get("limitations", store.about().limitations)
        paragraphs = dict.fromkeys([*limitations.split("\n\n"), *arguments.further])
        statements["limitations"] = "\n\n".join(filter(None, paragraphs))
    if statements:
        store.set_about(**statements)
    cells = option_values(arguments, *CELL_FIELDS.values())
    selection, filters, condition = selected(store, cells, arguments.where)
    scheduler = arguments.scheduler
    with dask_client(DaskSettings(scheduler=scheduler)) if scheduler else nullcontext():
        written = write_card(
            selection,
            folder,
            filters=filters,
            condition=condition,
            channels=not arguments.no_channels,
            spectrum=arguments.spectrum,
            draw=drawing(arguments),
            reporter=reporter,
        )
    page, markdown, record = written
    added = [folder / entry.file for entry in CARD_PAGES.usable().values()]
    lines = tuple(map(str, (page, *added, markdown, record)))
    texts = {"card": markdown.read_text()}
    return Result(lines=lines, about=arguments.store, texts=texts, pages=(page,))


def drawing(arguments: argparse.Namespace) -> "Draw | None":
    """The function that draws a card's pictures; None with `--no-pictures`."""
    if arguments.no_pictures:
        return None
    from gaitforge.pipeline.report.pictures import draw_stored

    return draw_stored
