"""A comparison as one self-contained HTML page and as a Markdown table, from its files alone.

The page loads nothing and needs no script; the same files give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets.files import write_bytes_durably
from flows.records.records import read_record
from flows.stages.comparison import COMPARISON
from learners.training.records.history import read_history
from pipeline.report import charts
from pipeline.report.comparison_table import comparison_markdown, spread, table_rows
from pipeline.report.pages import page_template
from pipeline.report.report import Panel, flattened
from pipeline.report.wording import count, fixed, words

PAGE_NAME = "comparison.html"
MARKDOWN_NAME = "comparison.md"

Record = Mapping[str, Any]
Histories = Mapping[str, Sequence[Record]]


def write_comparison(folder: Path) -> Path:
    """Write `comparison.html` and `comparison.md` into a comparison's folder.

    Returns:
        The path of the page.

    Raises:
        ValueError: there is no finished comparison, or the folder cannot be written.
    """
    record = read_record(folder / COMPARISON)
    if record is None:
        raise ValueError(f"no finished comparison in {folder}; `gaitforge compare` makes one")
    histories = {run["run"]: read_history(folder / "train" / run["run"]) for run in record["runs"]}
    try:
        write_bytes_durably(folder / MARKDOWN_NAME, comparison_markdown(record).encode())
        write_bytes_durably(folder / PAGE_NAME, comparison_page(record, histories).encode())
    except OSError as error:
        raise ValueError(f"cannot write into {folder}: {error.strerror}") from None
    return folder / PAGE_NAME


def comparison_page(record: Record, histories: Histories) -> str:
    """The page of a comparison's record, as text; `histories` has the rows of each run."""
    return page_template("comparison.html", spread=spread).render(
        abstract=_abstract(record),
        record=record,
        table=table_rows(record),
        loss_charts=_loss_charts(record["runs"], histories),
        return_charts=[
            _return_chart(record["models"], "terrains", "terrain"),
            _return_chart(record["models"], "skills", "skill"),
        ],
        latency_chart=_latency_chart(record),
        cells=_cells(record),
        own=list(flattened(record["plan"]["own"])),
        plan=list(flattened(record["plan"])),
    )


def _abstract(record: Record) -> str:
    """The outcome in two sentences, from the table's numbers."""
    models, seeds = record["models"], len(record["plan"]["seeds"])
    text = (
        f"{len(models)} models learned from {count(record['trained_on']['episodes'])} episodes in "
        f"{count(models[0]['steps'])} optimiser steps, {seeds} seed{'s' * (seeds > 1)} each."
    )
    ranked = sorted(
        (model for model in models if model["return_fraction"]["mean"] is not None),
        key=lambda model: model["return_fraction"]["mean"],
        reverse=True,
    )
    reached = [f"{m['model']} {spread(m['return_fraction'], 3)}" for m in ranked]
    return f"{text} Of the expert’s return they reach: {', '.join(reached)}." if reached else text


def _loss_charts(runs: Iterable[Record], histories: Histories) -> list[Panel]:
    """Losses of every run; the runs of a model look the same."""
    panels = []
    for title, field in (("Training loss", "loss"), ("Validation loss", "validation_loss")):
        lines = []
        for run in runs:
            points = [
                (row["step"], row[field])
                for row in histories[run["run"]]
                if row[field] is not None and row[field] > 0
            ]
            if points:
                steps, losses = zip(*points, strict=True)
                lines.append(charts.Curve(run["model"], steps, losses))
        if lines:
            ends = ", ".join(f"{line.label} ends at {line.y[-1]:.4g}" for line in lines)
            svg = charts.curves(lines, "optimiser steps", "loss (logarithmic)", f"{title}: {ends}")
            panels.append(Panel(title, svg, "One line a seed."))
    return panels


def _return_chart(models: Sequence[Record], grouping: str, kind: str) -> Panel:
    groups = [group[kind] for group in models[0][grouping]]
    series = [
        charts.BarSeries(
            model["model"],
            [group["return_fraction"]["mean"] for group in model[grouping]],
            [group["return_fraction"]["std"] for group in model[grouping]],
        )
        for model in models
    ]
    title = f"Return by {kind}"
    told = "; ".join(
        f"{each.label}: "
        + ", ".join(f"{group} {fixed(v)}" for group, v in zip(groups, each.values, strict=True))
        for each in series
    )
    svg = charts.grouped_bars(
        [words(group) for group in groups], series, 1.0, "of the expert’s return",
        f"{title}, as a fraction of the expert’s. {told}",
    )  # fmt: skip
    return Panel(title, svg, "The dashed line is the expert.")


def _latency_chart(record: Record) -> str:
    rows = [
        charts.LatencyBar(
            model["model"], model["latency_us_median"]["mean"], model["latency_us_p99"]["mean"]
        )
        for model in record["models"]
    ]
    alt = "Time of one control step: " + ", ".join(
        f"{row.label} median {count(row.median_us)} µs" for row in rows
    )
    return charts.latency(rows, record["control_dt_s"] * 1e6, alt)


def _cells(record: Record) -> list[tuple[Record, list[Record]]]:
    """Every cell of the expert with that of each model."""
    by_model = [model["cells"] for model in record["models"]]
    return list(zip(record["expert"]["cells"], map(list, zip(*by_model, strict=True)), strict=True))
