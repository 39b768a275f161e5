"""The dataset card: what a store or a selection holds, as Markdown and as one HTML page.

Both are drawn from one record (`datasets.analysis.card_content`) and the collection plans beside
the store. The page loads nothing, needs no script and follows the reader's light or dark mode.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from keyword import iskeyword
from pathlib import Path

from gaitforge.collectors.rendering.rendering import RenderingError
from gaitforge.common.errors import amount
from gaitforge.common.files import files_under
from gaitforge.datasets import Selection, Store
from gaitforge.datasets.analysis.card_content import card_record
from gaitforge.datasets.data_checks import DATA_CHECKS, SAMPLE_STEPS
from gaitforge.datasets.formats.protocol import README, fenced, front_matter, plain
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.schema import Schema
from gaitforge.datasets.selection.episode_values import actions_in_words
from gaitforge.datasets.storage.about import read_about
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.records import read_record, write_file
from gaitforge.pipeline.report import charts, explorer, pages
from gaitforge.pipeline.report.charts import Panel
from gaitforge.pipeline.report.pages import Record, count, fixed, quoted, render, short
from gaitforge.pipeline.report.results import PICTURES
from gaitforge.pipeline.terminal import fields_of, json_text

PAGE_NAME = "card.html"
MARKDOWN_NAME = "card.md"
RECORD_NAME = "card.json"
EXPLORER_NAME = "explorer.html"

Draw = Callable[[Selection, Path], list[dict[str, object]]]
"""Writes pictures into a folder, and returns a record of each; may raise RenderingError."""

_BLOCKS = "▁▂▃▄▅▆▇█"
_QUANTITIES = (
    ("episodes", "Episodes", short),
    ("steps", "Steps", short),
    ("success", "Success rate", fixed),
    ("return", "Mean return", fixed),
)


def selected(store: Store, cells: Record, where: str | None) -> tuple[Selection, str, str]:
    """The episodes of some cells that meet a condition; both of these in words, and as SQL."""
    selection = store.select(**cells)
    if where is not None:
        selection = selection.where(where)
    terms = [f"{name}={','.join(map(str, values))}" for name, values in cells.items() if values]
    filters = "; ".join([*terms, *([where] if where else [])])
    return selection, filters, explorer.condition(cells, where)


def write_card(
    selection: Selection,
    folder: Path,
    *,
    filters: str = "",
    condition: str = "",
    channels: bool = True,
    spectrum: int | None = None,
    draw: Draw | None = None,
    reporter: Reporter | None = None,
) -> tuple[Path, Path, Path]:
    """Write `card.html`, `card.md`, the record behind them, `card.json`, and `explorer.html`.

    Returns the paths of the first three.

    Args:
        filters: how the episodes were selected, in words; empty for a whole store.
        condition: the same in SQL, for the commands that the explorer shows.
        channels: also read the arrays, for spectra and the statistics of every channel.
        spectrum: steps of a spectrum's window, see `block_spectra`.
        draw: writes pictures of typical episodes, as `stored.draw_stored`; its RenderingError is
            written into the card.
        reporter: shows which field is read.

    Raises:
        ValueError: an empty selection, a damaged object, or a folder that cannot be written.
    """
    if len(selection) == 0:
        raise ValueError("the selection is empty; select at least one episode")
    fields = len(selection.schema.fields) if channels else 0
    with (reporter or Silent()).step("card", fields, "field") as advance:
        record = card_record(
            selection, channels=channels, spectrum=spectrum, read=lambda name: advance(1, name)
        )
    record |= {"filters": filters, "origins": collection_origins(selection.store.path)}
    record |= {"program": version("gaitforge"), "pictures": [], "no_pictures": ""}
    steps = SAMPLE_STEPS if channels else 0
    record["findings"] = [
        fields_of(finding, "severity", "name", "text", "count")
        for check in DATA_CHECKS.values()
        for finding in check.of_sample(selection, steps)
    ]
    if draw is not None:
        try:
            record["pictures"] = draw(selection, check_outside_stores(folder) / PICTURES)
        except RenderingError as error:
            record["no_pictures"] = str(error)
    texts = {
        RECORD_NAME: json_text(record) + "\n",
        MARKDOWN_NAME: card_markdown(record),
        PAGE_NAME: card_page(record, folder),
        EXPLORER_NAME: explorer.explorer_of(selection, folder, condition),
    }
    for name, text in texts.items():
        write_file(folder / name, text.encode())
    return folder / PAGE_NAME, folder / MARKDOWN_NAME, folder / RECORD_NAME


def write_readme(
    selection: Selection, folder: Path, repository: str, readme: Path | None, draw: Draw | None
) -> dict[str, Path]:
    """Write a card into `folder` for a repository on the Hub; returns its files by their names.

    Args:
        repository: owner/name; the README has the name as its title.
        readme: the README of an export, which says how to load it; None to make one of the card.
    """
    page, markdown, _ = write_card(selection, folder, channels=False, draw=draw)
    if readme is None:
        about = read_about(selection.store)
        name = repository.partition("/")[2]
        front = front_matter(about, name, len(selection), ("zarr",))
        (folder / README).write_text(front + markdown.read_text(), encoding="utf-8")
    else:
        links = f"\nMore: [{PAGE_NAME}]({PAGE_NAME}), [{MARKDOWN_NAME}]({MARKDOWN_NAME})\n"
        (folder / README).write_text(readme.read_text() + links, encoding="utf-8")
    kept = {page.name, EXPLORER_NAME, README} | ({markdown.name} if readme is not None else set())
    names = [name for name in files_under(folder) if name in kept or "/" in name]
    return {name: folder / name for name in names}


def collection_origins(store_path: Path) -> list[dict[str, object]]:
    """Seed, git revision and versions of each collection plan that is kept beside a store."""
    records = store_path.with_name(f"{store_path.name}.records")
    trees = {path: read_record(path) for path in sorted(records.glob("plan-*.json"))}
    return [
        {
            "plan": path.stem.removeprefix("plan-"),
            "seed": tree.get("plan", {}).get("grid", {}).get("seed"),
            "git_revision": tree.get("git_revision"),
            "versions": tree.get("versions", {}),
        }
        for path, tree in trees.items()
        if isinstance(tree, Mapping)
    ]


def card_page(record: Record, folder: Path) -> str:
    """The page of a card's record, as text; its pictures are read from below `folder`."""
    pictures = [
        picture | {"uri": pages.data_uri(folder / PICTURES / picture["file"])}
        for picture in record["pictures"]
    ]
    return render(
        "card.html",
        **_shown(record),
        levels=sorted({cell["level"] for cell in record["cells"]}),
        grids=_grids(record["cells"], record["pairs"], record["schema"]["group_by"]),
        return_chart=charts.histogram("Returns", record["returns"], "return"),
        length_chart=charts.histogram("Episode lengths", record["lengths"], "control steps"),
        draws=[(draw, _draw_chart(draw)) for draw in record["draws"]],
        spectra=[(spectrum, _spectrum_chart(spectrum)) for spectrum in record["spectra"]],
        abstract=abstract(record),
        pictures=pictures,
    )


def card_markdown(record: Record) -> str:
    """The card as Markdown, for a repository or a terminal."""
    filters = {"sparkline": sparkline, "plain": plain, "fenced": fenced}
    filters["digits"] = lambda value: pages.DASH if value is None else f"{value:.4g}"
    return render("card.md", filters, **_shown(record)) + "\n"


def sparkline(counts: Sequence[int]) -> str:
    """A histogram as one line of text; a bin without a count is a dot."""
    most = max(1, *counts)
    return "".join(
        _BLOCKS[math.ceil(count / most * len(_BLOCKS)) - 1] if count else "·" for count in counts
    )


def _shown(record: Record) -> dict[str, object]:
    """Variables of the card's page and Markdown.

    `texts`: title -> text, without empty ones; `checks`: check of data -> its command.
    """
    schema = record["schema"]
    total = record["total"][0]
    about = record["about"]
    texts = {"Licence": about["licence"], "Authors": ", ".join(about["authors"])}
    texts["Limitations"] = about["limitations"]
    return {
        "card": record,
        "checks": {name: check.command for name, check in DATA_CHECKS.items()},
        "schema": schema,
        "actions": actions_in_words(Schema.from_json(schema)),
        "total": total,
        "group_by": schema["group_by"],
        "texts": {title: text for title, text in texts.items() if text},
        "code": {"store": _store_code(record), "parquet": _parquet_code(record)},
    }


def _store_code(record: Record) -> str:
    """Python that streams windows of one group of the store, from the folder that it is in."""
    column = record["schema"]["group_by"][0]
    value = quoted(record["cells"][0][column])
    named = f"**{{{quoted(column)}: {value}}}" if iskeyword(column) else f"{column}={value}"
    return "\n".join(
        [
            "from gaitforge.datasets import open_store",
            "",
            f"episodes = open_store({quoted(record['name'])}).select({named})",
            "for batch in episodes.windows(window_len=64, batch_size=1024):",
            '    batch["obs"], batch["action"], batch["mask"]  # torch tensors',
        ]
    )


def _parquet_code(record: Record) -> str:
    """Python that reads the store with other libraries, from the folder that it is in."""
    name = record["name"]
    folder = record["parts"][0]["folder"]
    files = re.sub(r"([*?\[])", r"[\1]", name) + "/catalog/*.parquet"  # else it would be a pattern
    query = "SELECT * FROM '" + files.replace("'", "''") + "'"
    return "\n".join(
        [
            "import duckdb, xarray",
            "",
            f"xarray.open_zarr({quoted(f'{name}/parts/{folder}')}, consolidated=False)",
            f"duckdb.sql({quoted(query)})",
        ]
    )


def abstract(record: Record) -> str:
    """The card in one sentence."""
    total = record["total"][0]
    cells = record["cells"]
    schema = record["schema"]
    robots = record["robots"]
    robot = amount(len(robots), "robot") if robots else schema["robot"]
    columns = (*schema["group_by"], "level")
    kinds = [amount(len({cell[name] for cell in cells}), name) for name in columns]
    hours = total["steps"] * schema["control_dt_s"] / 3600
    return (
        f"{count(total['steps'])} control steps ({fixed(hours, 1)} h) of {robot} in"
        f" {amount(total['episodes'], 'episode')} on {', '.join(kinds[:-1])} and {kinds[-1]};"
        f" mean return {fixed(total['return'])}, success rate {fixed(total['success'])}."
    )


def _grids(
    cells: Sequence[Record], pairs: Sequence[Record], group_by: tuple[str, str]
) -> list[Record]:
    """A quantity each, by groups (rows), and by level and over all of them (columns).

    The first row of those that share `where` has their number as its `span`, the others 0.
    """
    levels = sorted({cell["level"] for cell in cells})
    first, second = group_by
    wheres = [pair[first] for pair in pairs]
    grids = []
    for key, title, text in _QUANTITIES:
        values = {(cell[first], cell[second], cell["level"]): cell[key] for cell in cells}
        high = 1.0 if key == "success" else max(values.values())
        low = min(values.values()) if key == "return" else 0.0
        rows = []
        for k, pair in enumerate(pairs):
            where = pair[first]
            group = pair[second]
            across = [values.get((where, group, level)) for level in levels]
            row = [pages.shade(value, text, (low, high), 0.15) for value in across]
            span = 0 if where in wheres[:k] else wheres.count(where)
            row.append(pages.Shade(text(pair[key])))
            rows.append({"where": where, "what": group, "cells": row, "span": span})
        grids.append({"key": key, "title": title, "rows": rows})
    return grids


def _spectrum_chart(spectrum: Record) -> Panel:
    shares = spectrum["frequency_hz"], spectrum["energy_share"]
    return charts.spectrum(
        pages.words(spectrum["block"]), *shares, cut_hz=None, cut_label="", note=""
    )


def _draw_chart(draw: Record) -> Panel:
    half = 0.5 if draw["whole"] else 0.0
    unit = "dimensionless" if draw["unit"] == "1" else draw["unit"]
    declared = (draw["low"] - half, draw["high"] + half)
    return charts.histogram(pages.words(draw["name"]), draw, unit, declared)
