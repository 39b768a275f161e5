"""`gaitforge dataset`: edit, merge, split and compare datasets."""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from gaitforge import datasets
from gaitforge.common.errors import amount, listed
from gaitforge.datasets.data_checks import DATA_CHECKS
from gaitforge.flows.records.part_records import copy_records, mixed_versions
from gaitforge.pipeline.cli.parsing.options import (
    CELL_FIELDS,
    CELLS,
    JSON,
    NEW_STORE,
    OUT,
    STORE,
    TAG,
    WHERE,
    flag,
    option,
    option_values,
)
from gaitforge.pipeline.cli.parsing.parser import actions, command
from gaitforge.pipeline.cli.parsing.values import uses, whole
from gaitforge.pipeline.cli.store import applied, chosen_episodes
from gaitforge.pipeline.terminal import TerminalReporter, show, show_one, show_result

_STORE = "data/legged.zarr"
_WHERE = "return < 3 and skill = 'run'"
_CHOOSING = ("where", *CELL_FIELDS.values())


def _chosen(arguments: argparse.Namespace) -> "datasets.Selection":
    """The chosen episodes; ValueError without any condition, which would mean all episodes."""
    if not _conditions(arguments):
        raise ValueError("say which episodes: --where, --terrain, --skill or --level")
    return chosen_episodes(datasets.open_store(arguments.store), arguments)


def _conditions(arguments: argparse.Namespace) -> dict[str, object]:
    """The options that choose the episodes; an edit's origin keeps them."""
    return option_values(arguments, *_CHOOSING)


def _show_edit(edit: "datasets.Edit", arguments: argparse.Namespace) -> None:
    info = datasets.open_store(arguments.store).info()
    record = {"edit": edit.number, "kind": edit.kind, "changed": edit.rows.num_rows}
    record |= {"episodes": info.episodes, "steps": info.steps, "hash": info.hash}
    show_one(record, arguments.json)


@command(
    f'gaitforge dataset drop {_STORE} --where "{_WHERE}"',
    STORE,
    CELLS,
    WHERE,
    option("--reason", "kept with the edit", default=""),
    JSON,
)
def _drop(arguments: argparse.Namespace) -> None:
    """Leave episodes out of a store's later versions; tags and parts keep them."""
    reason = {"reason": arguments.reason} if arguments.reason else {}
    _show_edit(_chosen(arguments).drop(_conditions(arguments) | reason), arguments)


@command(
    f"gaitforge dataset trim {_STORE} --skill run --head 20",
    STORE,
    CELLS,
    WHERE,
    option("--head", "steps to take off the beginning", whole, 0),
    option("--tail", "steps to take off the end", whole, 0),
    option("--length", "steps to keep at most", whole, metavar="N"),
    JSON,
)
def _trim(arguments: argparse.Namespace) -> None:
    """Take steps off the beginning and end of episodes."""
    sizes = arguments.head, arguments.tail, arguments.length
    _show_edit(_chosen(arguments).trim(*sizes, _conditions(arguments)), arguments)


@command(
    f'gaitforge dataset annotate {_STORE} --where "{_WHERE}" note=limps checked=true',
    STORE,
    CELLS,
    WHERE,
    option(
        "values",
        "columns to set: text, a number, true or false ('\"3\"' is text)",
        nargs="+",
        metavar="COLUMN=VALUE",
    ),
    JSON,
)
def _annotate(arguments: argparse.Namespace) -> None:
    """Set columns of episodes, to query by."""
    values: dict[str, str | bool | int | float] = {}
    for name, value in map(_value, arguments.values):
        if name in values:
            raise ValueError(f"column {name} is given twice; give one value")
        values[name] = value
    _show_edit(_chosen(arguments).annotate(values, _conditions(arguments) | values), arguments)


def _value(text: str) -> tuple[str, str | bool | int | float]:
    name, equals, given_value = text.partition("=")
    if not equals:
        raise ValueError(f"'{text}' is not COLUMN=VALUE")
    try:
        value = json.loads(given_value)
    except (ValueError, RecursionError):
        return name, given_value
    return name, value if isinstance(value, str | bool | int | float) else given_value


@command(
    "gaitforge dataset merge data/monday.zarr data/tuesday.zarr --out data/both.zarr",
    option("first", "a store's folder", Path),
    option("second", "another store of the same schema", Path),
    NEW_STORE,
    JSON,
)
def _merge(arguments: argparse.Namespace) -> None:
    """Make one store of two, by hard links; the same command again resumes.

    Installed checks of data say what does not fit, such as quaternions wxyz here and xyzw there.
    """
    first = datasets.open_store(arguments.first)
    second = datasets.open_store(arguments.second)
    for simulator, versions in mixed_versions([first, second]).items():
        TerminalReporter().say(
            f"the merged store has parts of {simulator} {', '.join(versions)}: to simulate them "
            "again, verify, derive and view take --with-recorded-versions"
        )
    files = len(first.files.stamps()) + len(second.files.stamps())
    with TerminalReporter().step("merge", files, "file") as advance:
        datasets.merge_stores(first, second, arguments.out, lambda count: advance(count, ""))
    copy_records([arguments.first, arguments.second], arguments.out)
    info = datasets.open_store(arguments.out).info()
    selections = [first.select(), second.select()]
    checks = DATA_CHECKS.usable().values()
    notes = [finding.line for check in checks for finding in check.of_merge(selections)]
    licences = [store.about().licence or "none" for store in (first, second)]
    if len(set(licences)) > 1:
        joined = datasets.open_store(arguments.out).about().licence or "none"
        notes.append(f"licences differ, {listed(licences)}: the merged store's is {joined}")
    record = {"store": str(arguments.out), **asdict(info)}
    show_one(record | ({"notes": notes} if arguments.json and notes else {}), arguments.json)
    if not arguments.json:
        print("".join(f"note: {note}\n" for note in notes), end="")


@command(
    "gaitforge dataset apply data/legged.zarr --out data/legged-v2.zarr",
    STORE,
    NEW_STORE,
    JSON,
)
def _apply(arguments: argparse.Namespace) -> None:
    """Write a store's present version into a new one, without what its edits took away."""
    store = applied(datasets.open_store(arguments.store), arguments.out, TerminalReporter())
    show_one({"store": str(arguments.out), **asdict(store.info())}, arguments.json)


@command(
    f"gaitforge dataset split {_STORE} --fractions train=0.9,val=0.1 --out splits",
    STORE,
    CELLS,
    WHERE,
    option("--fractions", "sides and their shares of the episodes", metavar="NAME=X,NAME=X"),
    option("--by", "a column; one side for each of its values", metavar="COLUMN"),
    option("--seed", "random seed of the fractions", whole, 0),
    flag("--stores", "make stores, not selections; parts are hard links"),
    OUT,
    JSON,
)
def _split(arguments: argparse.Namespace) -> Callable[[], None]:
    """Split episodes into selections to train on, or into stores."""
    if (arguments.fractions is None) == (arguments.by is None):
        raise ValueError("give --fractions or --by")
    uses(arguments, "store", *_CHOOSING, "stores", "out", "json")
    if arguments.by is None:
        uses(arguments, "seed")
    return partial(_split_chosen, arguments)


def _split_chosen(arguments: argparse.Namespace) -> None:
    store = datasets.open_store(arguments.store)
    selection = chosen_episodes(store, arguments)
    if arguments.by is not None:
        sides = datasets.split_by_column(selection, arguments.by)
        how = {"by": arguments.by}
    else:
        how = {"fractions": _fractions(arguments.fractions), "seed": arguments.seed}
        sides = datasets.split_by_fractions(selection, how["fractions"], arguments.seed)
    if arguments.stores:
        files = len(sides) * len(store.files.stamps())
        with TerminalReporter().step("split", files, "file") as advance:
            paths = datasets.save_split(
                sides, arguments.out, how | _conditions(arguments), lambda count: advance(count, "")
            )
        for path in paths.values():
            copy_records([arguments.store], path)
    else:
        arguments.out.mkdir(parents=True, exist_ok=True)
        paths = {name: arguments.out / f"{name}.json" for name in sides}
        for name, side in sides.items():
            side.save(paths[name])
    rows = [
        {"side": name, "episodes": len(side), "steps": side.steps, "path": str(paths[name])}
        for name, side in sides.items()
    ]
    show(rows, arguments.json)


def _fractions(text: str) -> dict[str, float]:
    pairs = [part.partition("=") for part in text.split(",")]
    try:
        fractions = {name.strip(): float(value) for name, _, value in pairs}
    except ValueError:
        fractions = {}
    if len(fractions) != len(pairs):
        raise ValueError(f"'{text}' is not a list like train=0.9,val=0.1")
    return fractions


@command(
    f"gaitforge dataset diff {_STORE} v1",
    STORE,
    option("first", "a tag of the store"),
    option("second", "another tag (default: the present version)", nargs="?"),
    JSON,
)
def _diff(arguments: argparse.Namespace) -> None:
    """Show what was added, dropped and changed between two versions of a store."""
    first = datasets.open_store(arguments.store, tag=arguments.first)
    second = datasets.open_store(arguments.store, tag=arguments.second)
    diff = datasets.difference(first, second)
    lines = [f"{amount(getattr(diff, change), 'episode')} {change}" for change in _COUNTED]
    lines += _named("parts added", diff.parts_added) + _named("parts removed", diff.parts_removed)
    lines += _named("columns added", diff.columns_added)
    lines += _named("columns removed", diff.columns_removed)
    lines += [f"column {name}: {count:,} changed" for name, count in diff.columns_changed.items()]
    show_result(asdict(diff), diff.groups, arguments.json, *lines)


_COUNTED = ("added", "dropped", "changed")


def _named(label: str, values: Sequence[str]) -> list[str]:
    return [f"{label}: {listed(values, 8)}"] if values else []


@command(f"gaitforge dataset log {_STORE}", STORE, TAG, JSON)
def _log(arguments: argparse.Namespace) -> None:
    """List a store's edits: what each did, when, and with which arguments."""
    store = datasets.open_store(arguments.store, tag=arguments.tag)
    rows = [
        {"edit": edit.number, "kind": edit.kind, "episodes": edit.rows.num_rows}
        | {"made": edit.origin.get("made"), "arguments": edit.origin.get("arguments")}
        | ({"sha256": edit.sha256, "origin": dict(edit.origin)} if arguments.json else {})
        for edit in store.edits()
    ]
    show(rows, arguments.json, empty="no edits")


dataset_command = actions(
    "dataset",
    f'gaitforge dataset drop {_STORE} --where "{_WHERE}"',
    _drop,
    _annotate,
    _trim,
    _apply,
    _merge,
    _split,
    _diff,
    _log,
)
