"""The dataset card: what a store or a selection holds, as Markdown and as one HTML page.

Both are drawn from one record of JSON values (`card_record`) and the collection plans beside the
store. The page loads nothing, needs no script and follows the reader's light or dark mode.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from itertools import product
from keyword import iskeyword
from os.path import relpath
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote

import numpy as np

from gaitforge.collectors.rendering.rendering import RenderingError
from gaitforge.common.errors import amount
from gaitforge.common.extras import REPORT, missing_message
from gaitforge.common.files import files_under
from gaitforge.datasets import Selection, Store
from gaitforge.datasets.catalog.episodes import RANDOMISATION, glossary
from gaitforge.datasets.catalog.summaries import group_counts
from gaitforge.datasets.data_checks import DATA_CHECKS, SAMPLE_STEPS
from gaitforge.datasets.formats.protocol import README, fenced, front_matter, plain
from gaitforge.datasets.layout import check_outside_stores
from gaitforge.datasets.schema import Field, Schema, actions_in_words
from gaitforge.datasets.selection import EpisodeSelection
from gaitforge.datasets.statistics import (
    Scheduler,
    block_spectra,
    channel_names,
    channel_quantiles,
    channel_statistics,
)
from gaitforge.datasets.storage.about import read_about
from gaitforge.flows.experiments.page_files import card_of, page_of
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.records import read_record, write_file
from gaitforge.pipeline.report import pages
from gaitforge.pipeline.report.added_pages import CARD_PAGES, card_pages
from gaitforge.pipeline.report.pages import PICTURES, Record, count, fixed, quoted, render, short
from gaitforge.pipeline.terminal import fields_of, json_text

CARD_VERSION = 3
BINS = 20
MOST_WHOLE_BINS = 24
CHANNEL_QUANTILES = (0.01, 0.5, 0.99)


def card_record(
    selection: EpisodeSelection,
    *,
    channels: bool = True,
    spectrum: int | None = None,
    scheduler: Scheduler = None,
    read: Callable[[str], object] = str,
) -> dict[str, Any]:
    """Sizes, groups, distributions, provenance and channel statistics of a selection.

    `returns`, `lengths` and `draws` are histograms, `spectra` those of `block_spectra` for windows
    of `spectrum` steps. With `channels=False` no array is read; otherwise `read` is called with
    each field's name after its statistics. DatasetError for an empty selection, windows longer than
    its episodes, or a damaged or missing object.
    """
    store = selection.store
    robots = _groups(selection, "robot")
    return {
        "card_version": CARD_VERSION,
        "name": PurePosixPath(store.full_address).name,
        "store": asdict(store.info()),
        "schema": selection.schema.to_json(),
        "selection": {
            "hash": selection.hash,
            "episodes": len(selection),
            "steps": selection.steps,
            "whole_store": len(selection) == len(selection.catalog.shown),
        },
        "total": selection.describe(()),
        "pairs": selection.describe(),
        "cells": selection.describe((*store.schema.group_by, "level")),
        "returns": histogram(_numbers(selection, "return")),
        "lengths": histogram(_numbers(selection, "length")),
        "draws": list(_draws(selection)),
        "provenance": _provenance(selection),
        "about": read_about(store).to_json(),
        "noise": _groups(selection, "action_noise"),
        "robots": robots if len(robots) > 1 else [],
        "columns": [
            asdict(meaning) for meaning in glossary(store.schema, selection.catalog.schema)
        ],
        "parts": list(_parts(selection)),
        "spectra": list(_spectra(selection, spectrum, scheduler)) if channels else [],
        "channels": list(_channels(selection, scheduler, read)) if channels else [],
    }


def _groups(selection: EpisodeSelection, column: str) -> list[dict[str, Any]]:
    """Groups by a column, each with its share of the episodes; none without the column."""
    if column not in selection.catalog.column_names:
        return []
    groups = selection.describe((column,))
    return [group | {"share": group["episodes"] / len(selection)} for group in groups]


def histogram(
    values: np.ndarray, low: float | None = None, high: float | None = None
) -> dict[str, Any]:
    """Histogram of finite values; its range includes all values, `low` and `high`.

    Integers in a range below `MOST_WHOLE_BINS` get one bin each (`whole`), other values
    `BINS` equal bins. Returns `edges` (n + 1), `counts` (n), `min`, `max`, `mean` and
    `whole`.
    """
    measured = {"min": None, "max": None, "mean": None}
    limits = [limit for limit in (low, high) if limit is not None]
    bottom = float(min([*limits, values.min(initial=np.inf)]))
    top = float(max([*limits, values.max(initial=-np.inf)]))
    if not np.isfinite([bottom, top]).all():  # nothing to count
        return {"edges": [0.0, 1.0], "counts": [0], **measured, "whole": False}
    whole = bool((values == np.round(values)).all()) and top - bottom < MOST_WHOLE_BINS
    if whole:
        edges = np.arange(np.floor(bottom), np.floor(top) + 2) - 0.5
    else:
        if bottom == top:
            margin = max(0.5, abs(top) * 1e-3)
            bottom = bottom - margin
            top = top + margin
        edges = np.linspace(bottom, top, BINS + 1)
    counts, _ = np.histogram(values, edges)
    if len(values):
        measured = {name: float(getattr(values, name)()) for name in measured}
    return {"edges": edges.tolist(), "counts": counts.tolist(), **measured, "whole": whole}


def _numbers(selection: EpisodeSelection, name: str) -> np.ndarray:
    values = selection.episodes(name).column(name).drop_null().to_numpy().astype(np.float64)
    return values[np.isfinite(values)]


def _draws(selection: EpisodeSelection) -> Iterator[dict[str, object]]:
    """Histograms of the declared randomisation draws, with their declared ranges."""
    declared: Mapping[str, Any] = selection.schema.attributes.get(RANDOMISATION, {})
    for name, draw in declared.items():
        if name not in selection.catalog.column_names:
            continue
        values = _numbers(selection, name)
        low = float(draw["low"])
        high = float(draw["high"])
        outside = int(((values < low) | (values > high)).sum())
        limits = {"unit": draw.get("unit", "1"), "low": low, "high": high, "outside": outside}
        yield {"name": name, **limits, **histogram(values, low, high)}


def _provenance(selection: EpisodeSelection) -> dict[str, object]:
    """Robots, simulators and experts with their numbers of episodes, and the range of seeds."""
    seeds = selection.episodes("seed").column("seed").to_numpy()
    seeds = seeds[seeds >= 0]  # the others are unknown
    return {
        "robots": _counted(selection, ("robot",)),
        "simulators": _counted(selection, ("simulator", "simulator_version")),
        "experts": _counted(selection, ("expert", "expert_hash")),
        "seeds": {
            "distinct": len(np.unique(seeds)),
            "min": int(seeds.min()) if len(seeds) else None,
            "max": int(seeds.max()) if len(seeds) else None,
        },
    }


def _counted(selection: EpisodeSelection, columns: tuple[str, ...]) -> list[dict[str, Any]]:
    counts = group_counts(selection.catalog, selection.rows, columns)
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [dict(zip(columns, key, strict=True)) | {"episodes": count} for key, count in ordered]


def _parts(selection: EpisodeSelection) -> Iterator[dict[str, object]]:
    """The parts of the selection, with the selected episodes and steps of each."""
    first = 0
    for part_id, rows in selection.rows_by_part():
        manifest = selection.catalog.manifests[part_id]
        stop = first + len(rows)
        yield {
            "part": part_id,
            "folder": selection.catalog.locations[part_id].folder,
            "episodes": len(rows),
            "steps": int(selection.lengths[first:stop].sum()),
            "bytes": manifest.stored_bytes,
            "content_hash": manifest.content_hash,
        }
        first = stop


def _channels(
    selection: EpisodeSelection, scheduler: Scheduler, read: Callable[[str], object]
) -> Iterator[dict[str, object]]:
    for field in selection.schema.fields:
        statistics = channel_statistics(selection, field.name, scheduler)
        quantiles = channel_quantiles(selection, field.name, CHANNEL_QUANTILES, scheduler)
        read(field.name)
        measured = {name: getattr(statistics, name) for name in ("mean", "std", "min")}
        measured |= dict(zip(("q01", "median", "q99"), quantiles, strict=True))
        measured["max"] = statistics.max
        for name, indices in _named_channels(field):
            values = {key: float(array[indices]) for key, array in measured.items()}
            yield {"field": field.name, "channel": name, "unit": field.unit, **values}


def _spectra(
    selection: EpisodeSelection, n: int | None, scheduler: Scheduler
) -> Iterator[dict[str, object]]:
    """Spectra of observation and action, if they are vectors; none of episodes of a single step."""
    vectors = {
        field.name
        for field in selection.schema.fields
        if field.per == "step" and len(field.shape) == 1 and field.dtype.startswith("float")
    }
    if n is None and selection.lengths.max(initial=0) < 2:
        return
    for name in ("obs", "action"):
        if name in vectors:
            yield from block_spectra(selection, name, n, scheduler)


def _named_channels(field: Field) -> Iterator[tuple[str, tuple[int, ...]]]:
    if not field.shape:
        yield field.name, ()
    elif len(field.shape) == 1:
        yield from ((name, (index,)) for index, name in enumerate(channel_names(field)))
    else:
        for indices in product(*map(range, field.shape)):
            yield f"{field.name}[{', '.join(map(str, indices))}]", indices


PAGE_NAME = "card.html"
MARKDOWN_NAME = "card.md"
RECORD_NAME = "card.json"

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
    return selection, filters, _condition(cells, where)


def _condition(cells: Record, where: str | None) -> str:
    """The SQL condition of the episodes of some cells (column -> values, None for all)."""
    terms = [] if where is None else [f"({where})"]
    for name, values in cells.items():
        if values:
            terms.append(f"{name} in ({', '.join(map(_constant, values))})")
    return " and ".join(reversed(terms))


def _constant(value: object) -> str:
    return str(value) if isinstance(value, int) else "'" + str(value).replace("'", "''") + "'"


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
    """Write `card.html`, `card.md`, the record behind them, `card.json`, and added pages.

    Returns the paths of the first three.

    Args:
        filters: how the episodes were selected, in words; empty for a whole store.
        condition: the same in SQL, for the commands that added pages show.
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
        for check in DATA_CHECKS.usable().values()
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
        PAGE_NAME: card_page(record, folder, _player(selection, folder)),
        **card_pages(selection, folder, condition),
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
    kept = {page.name, README, *(added.file for added in CARD_PAGES.usable().values())}
    kept |= {markdown.name} if readme is not None else set()
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


def _player(selection: Selection, folder: Path) -> str:
    """Address of the page that plays an experiment's collected episodes; "" without one.

    Only in the card beside the store: other cards may be published without it.
    """
    store = selection.store.path
    page = page_of(store.parent, "collected")
    if folder.absolute() != card_of(store).parent.absolute() or not page.is_file():
        return ""
    return quote(relpath(page, folder))


def card_page(record: Record, folder: Path, player: str = "") -> str:
    """The page of a card's record, as text; its pictures are read from below `folder`.

    `player` is the address of a page that plays the episodes.
    """
    pictures = [
        picture | {"uri": pages.data_uri(folder / PICTURES / picture["file"])}
        for picture in record["pictures"]
    ]
    return render(
        "card.html",
        **_shown(record),
        levels=sorted({cell["level"] for cell in record["cells"]}),
        grids=_grids(record["cells"], record["pairs"], record["schema"]["group_by"]),
        **_charts(record),
        abstract=abstract(record),
        pictures=pictures,
        added=CARD_PAGES.usable().values(),
        player=player,
    )


def _charts(record: Record) -> dict[str, object]:
    """The page's charts; without the packages that draw, None in place of them, and the reason."""
    draws = record["draws"]
    spectra = record["spectra"]
    if lacking := missing_message("drawing", REPORT):
        return {
            "no_charts": lacking,
            "draws": [(draw, None) for draw in draws],
            "spectra": [(spectrum, None) for spectrum in spectra],
        }
    from gaitforge.pipeline.report import charts  # matplotlib, an extra

    return {
        "no_charts": "",
        "return_chart": charts.histogram("Returns", record["returns"], "return"),
        "length_chart": charts.histogram("Episode lengths", record["lengths"], "control steps"),
        "draws": [(draw, charts.histogram(*_draw_values(draw))) for draw in draws],
        "spectra": [
            (spectrum, charts.spectrum(*_spectrum_values(spectrum), None, "", ""))
            for spectrum in spectra
        ],
    }


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
        "checks": {name: check.command for name, check in DATA_CHECKS.usable().items()},
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
    quoted_files = "'" + files.replace("'", "''") + "'"
    query = f"SELECT * FROM read_parquet({quoted_files}, union_by_name=true)"
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


def _spectrum_values(spectrum: Record) -> tuple[str, Sequence[float], Sequence[float]]:
    """Title, frequencies in Hz and shares of energy of a spectrum's chart."""
    return pages.words(spectrum["block"]), spectrum["frequency_hz"], spectrum["energy_share"]


def _draw_values(draw: Record) -> tuple[str, Record, str, tuple[float, float]]:
    """Title, histogram, unit and declared range of a draw's chart."""
    half = 0.5 if draw["whole"] else 0.0
    unit = "dimensionless" if draw["unit"] == "1" else draw["unit"]
    declared = (draw["low"] - half, draw["high"] + half)
    return pages.words(draw["name"]), draw, unit, declared
