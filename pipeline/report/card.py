"""The dataset card: what a store or a selection holds, as Markdown and as one HTML page.

Both are drawn from one record (`datasets.analysis.card`) and the collection plans beside the
store. The page loads nothing, needs no script and follows the reader's light or dark mode.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Selection, Store, open_store
from datasets.analysis.card import card_record
from datasets.files import write_bytes_durably
from flows.records.records import read_record
from pipeline.cli.store_commands import cells_of, chosen
from pipeline.report import card_charts
from pipeline.report.card_markdown import card_markdown
from pipeline.report.pages import page_template
from pipeline.report.wording import count, fixed, words

PAGE_NAME = "card.html"
MARKDOWN_NAME = "card.md"
RECORD_NAME = "card.json"

DEEP = 0.55
"""Share of a heat colour from which its text is light on a light page."""


@dataclass(frozen=True)
class Shade:
    """A number as text, and where it stands between its table's lowest (0) and highest (1)."""

    text: str
    share: float | None

    @property
    def deep(self) -> bool:
        """Whether the background is the far end of the scale, which needs the other ink."""
        return self.share is not None and self.share >= DEEP


@dataclass(frozen=True)
class GridRow:
    """The levels of one group, then all of them; `span` rows share `where`."""

    where: str
    what: str
    cells: tuple[Shade, ...]
    span: int


@dataclass(frozen=True)
class Grid:
    """One quantity by the schema's `group_by` (rows) and level (columns)."""

    key: str
    title: str
    group_by: tuple[str, str]
    levels: tuple[int, ...]
    rows: tuple[GridRow, ...]


def card(arguments: argparse.Namespace) -> int:
    """Write the card of a store, or of what matches the filters."""
    store = open_store(arguments.store)
    selection, filters = selected(store, cells_of(arguments), arguments.where)
    folder = arguments.out or Path(f"{Path(arguments.store).name}.card")
    with _computing(arguments.scheduler):
        written = write_card(selection, folder, filters=filters, channels=not arguments.no_channels)
    for path in written:
        print(path)
    return 0


def selected(store: Store, cells: Mapping[str, Any], where: str | None) -> tuple[Selection, str]:
    """The episodes of some terrains, skills and levels (None for all), and in words which."""
    selection = chosen(store, cells, where)
    given = [f"{name}={','.join(map(str, chosen))}" for name, chosen in cells.items() if chosen]
    return selection, "; ".join([*given, *([where] if where else [])])


def _computing(scheduler: str) -> AbstractContextManager[Any]:
    """Statistics are computed by that scheduler's workers in the block; empty: by this process."""
    if not scheduler:
        return nullcontext()
    from flows.runners.dask_clusters import DaskSettings, dask_client

    return dask_client(DaskSettings(scheduler=scheduler))


def write_card(
    selection: Selection, folder: Path, *, filters: str = "", channels: bool = True
) -> tuple[Path, Path]:
    """Write `card.html`, `card.md` and the record behind them, `card.json`, into `folder`.

    Args:
        selection: the episodes; `store.select()` for all of a store.
        folder: made if absent.
        filters: what made the selection, for people; empty for a whole store.
        channels: also read the arrays, for the statistics of every channel.

    Returns:
        The paths of the page and of the Markdown.

    Raises:
        ValueError: an empty selection, a damaged object, or a folder that cannot be written.
    """
    if len(selection) == 0:
        raise ValueError("a card of an empty selection; select at least one episode")
    record = card_record(selection, channels=channels)
    record |= {"filters": filters, "origins": collection_origins(selection.store.path)}
    page, markdown = folder / PAGE_NAME, folder / MARKDOWN_NAME
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_bytes_durably(folder / RECORD_NAME, (json.dumps(record, indent=1) + "\n").encode())
        write_bytes_durably(markdown, card_markdown(record).encode())
        write_bytes_durably(page, card_page(record).encode())
    except OSError as error:
        raise ValueError(f"cannot write a card into {folder}: {error.strerror}") from None
    return page, markdown


def collection_origins(store_path: Path) -> list[dict[str, Any]]:
    """Seed, git revision and versions of each collection plan that is kept beside a store."""
    records = store_path.with_name(f"{store_path.name}.records")
    origins = []
    for path in sorted(records.glob("plan-*.json")):
        tree = read_record(path)
        if isinstance(tree, Mapping):
            origins.append(
                {
                    "plan": path.stem.removeprefix("plan-"),
                    "seed": tree.get("plan", {}).get("grid", {}).get("seed"),
                    "git_revision": tree.get("git_revision"),
                    "versions": tree.get("versions", {}),
                }
            )
    return origins


def card_page(record: Mapping[str, Any]) -> str:
    """The page of a card's record, as text."""
    return page_template("card.html", short=card_charts.short).render(
        card=record,
        schema=record["schema"],
        total=record["total"][0],
        grids=_grids(record["cells"], record["pairs"], tuple(record["schema"]["group_by"])),
        return_chart=_chart(record["returns"], "return", "Returns"),
        length_chart=_chart(record["lengths"], "control steps", "Episode lengths"),
        draws=[(draw, _draw_chart(draw)) for draw in record["draws"]],
        abstract=abstract(record),
    )


def abstract(record: Mapping[str, Any]) -> str:
    """The card in one sentence."""
    total, cells, schema = record["total"][0], record["cells"], record["schema"]
    columns = (*schema["group_by"], "level")
    kinds = [_number_of({cell[name] for cell in cells}, name) for name in columns]
    hours = total["steps"] * schema["control_dt_s"] / 3600
    return (
        f"{count(total['steps'])} control steps ({fixed(hours, 1)} h) of {schema['robot']} in"
        f" {count(total['episodes'])} episodes on {', '.join(kinds[:-1])} and {kinds[-1]};"
        f" mean return {fixed(total['return'])}, success rate {fixed(total['success'])}."
    )


def _number_of(values: Iterable[object], name: str) -> str:
    number = len(set(values))
    plural = f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
    return f"{number} {name if number == 1 else plural}"


def _grids(
    cells: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    group_by: tuple[str, str],
) -> list[Grid]:
    kinds = (
        ("episodes", "Episodes", card_charts.short),
        ("steps", "Steps", card_charts.short),
        ("success", "Success rate", fixed),
        ("return", "Mean return", fixed),
    )
    return [_grid(cells, pairs, group_by, *kind) for kind in kinds]


def _grid(
    cells: Sequence[Mapping[str, Any]],
    pairs: Sequence[Mapping[str, Any]],
    group_by: tuple[str, str],
    key: str,
    title: str,
    text: Any,
) -> Grid:
    levels = tuple(sorted({cell["level"] for cell in cells}))
    first, second = group_by
    values = {(cell[first], cell[second], cell["level"]): cell[key] for cell in cells}
    high = 1.0 if key == "success" else max(values.values())
    low = min(values.values()) if key == "return" else 0.0

    def shade(value: float | None) -> Shade:
        if value is None:
            return Shade("–", None)
        share = (value - low) / (high - low) if high > low else 0.15
        return Shade(text(value), min(max(share, 0.0), 1.0))

    rows = []
    seen: set[str] = set()
    for pair in pairs:
        where, what = pair[first], pair[second]
        span = 0 if where in seen else sum(p[first] == where for p in pairs)
        seen.add(where)
        across = [shade(values.get((where, what, level))) for level in levels]
        everywhere = Shade(text(pair[key]), None)
        rows.append(GridRow(where, what, (*across, everywhere), span))
    return Grid(key, title, group_by, levels, tuple(rows))


def _chart(histogram: Mapping[str, Any], xlabel: str, title: str) -> str:
    low, high = histogram["min"], histogram["max"]
    alt = f"{title}: histogram from {low:.6g} to {high:.6g}, mean {histogram['mean']:.4g}"
    return card_charts.histogram(histogram["edges"], histogram["counts"], xlabel, alt)


def _draw_chart(draw: Mapping[str, Any]) -> str:
    half = 0.5 if draw["whole"] else 0.0
    unit = "dimensionless" if draw["unit"] == "1" else draw["unit"]
    alt = (
        f"Histogram of the draws of {words(draw['name'])}; declared range {draw['low']:g} to "
        f"{draw['high']:g} {unit}; outside: {draw['outside']}"
    )
    declared = (draw["low"] - half, draw["high"] + half)
    return card_charts.histogram(draw["edges"], draw["counts"], unit, alt, declared)
