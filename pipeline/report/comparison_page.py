"""A comparison as one self-contained HTML page and as a Markdown table, from its files alone.

The page loads nothing and needs no script; the same files give the same bytes.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from gaitforge.datasets.errors import amount
from gaitforge.datasets.history import read_history
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.comparison.legged import COMPARISON
from gaitforge.pipeline.report import charts
from gaitforge.pipeline.report.expert_section import SheetFigure, sheet_figures
from gaitforge.pipeline.report.figures import Panel
from gaitforge.pipeline.report.pages import (
    DASH,
    Record,
    count,
    duration,
    fixed,
    flattened,
    markdown_table,
    render,
    spread,
    words,
    write_texts,
)
from gaitforge.pipeline.report.run_files import read_pictures
from gaitforge.pipeline.view.run_pages import page_of

PAGE_NAME = "comparison.html"
MARKDOWN_NAME = "comparison.md"

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
    sheets = sheet_figures(folder, read_pictures(folder)[0])
    linked = [page_of(folder, run) for run in first_runs(record)]
    rows = comparison_rows(record)
    table = markdown_table(rows[0], [row.values() for row in rows]) + "\n"
    write_texts(
        folder,
        {MARKDOWN_NAME: table, PAGE_NAME: comparison_page(record, histories, sheets, linked)},
    )
    return folder / PAGE_NAME


def first_runs(record: Record) -> list[str]:
    """The name of each model's first run, in the order of a comparison's models."""
    first = {run["model"]: run["run"] for run in reversed(record["runs"])}
    return [first[each["model"]] for each in record["models"]]


def comparison_rows(record: Record) -> list[dict[str, str]]:
    """A row per model and the expert's, as text; ± and brackets as the page says."""
    return [_model_row(model) for model in record["models"]] + [_expert_row(record["expert"])]


def table_cells(rows: Sequence[Mapping[str, str]]) -> list[dict[str, list[str]]]:
    """Rows for a page's table: each value apart from its interval."""
    return [
        {name: value.removesuffix(")").split(" (") for name, value in row.items()} for row in rows
    ]


def comparison_page(
    record: Record,
    histories: Histories,
    sheets: Sequence[SheetFigure] = (),
    linked: Sequence[str] = (),
) -> str:
    """The page of a comparison's record, as text.

    Args:
        histories: the rows of each run.
        linked: each model's page of episodes, "" for none.
    """
    return render(
        "comparison.html",
        abstract=_abstract(record),
        record=record,
        sheets=sheets,
        linked=linked or [""] * len(record["models"]),
        table=table_cells(comparison_rows(record)),
        loss_charts=charts.losses(
            ((run["model"], histories[run["run"]]) for run in record["runs"]),
            "optimiser steps",
            "One line per seed.",
        ),
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
    seconds = record["plan"]["train_s"]
    text = (
        f"{amount(len(models), 'model')} learned from "
        f"{amount(record['trained_on']['episodes'], 'episode')} in "
        f"{f'{seconds:g} s' if seconds else amount(models[0]['steps'], 'optimiser step')}, "
        f"{amount(seeds, 'seed')} each."
    )
    ranked = sorted(
        (model for model in models if model["return_fraction"]["mean"] is not None),
        key=lambda model: model["return_fraction"]["mean"],
        reverse=True,
    )
    reached = [f"{m['model']} {spread(m['return_fraction'], 3)}" for m in ranked]
    if not reached:
        return text
    levels = sorted({str(cell["level"]) for cell in record["expert"]["cells"]})
    text += f" Of the expert’s return they reach at terrain level {', '.join(levels)} of 0 to 9: "
    return text + ", ".join(reached) + "."


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
    return charts.grouped_bars(
        title, [words(group) for group in groups], series, 1.0, "of the expert’s return",
        "The dashed line is the expert.",
    )  # fmt: skip


def _latency_chart(record: Record) -> Panel:
    rows = [
        charts.LatencyBar(
            model["model"], model["latency_us_median"]["mean"], model["latency_us_p99"]["mean"]
        )
        for model in record["models"]
    ]
    return charts.latency("Control step", rows, record["control_dt_s"] * 1e6)


def _cells(record: Record) -> list[tuple[Record, list[Record]]]:
    """Every cell of the expert with that of each model."""
    by_model = [model["cells"] for model in record["models"]]
    return list(zip(record["expert"]["cells"], map(list, zip(*by_model, strict=True)), strict=True))


def _model_row(model: Record) -> dict[str, str]:
    return {
        "model": model["model"],
        "parameters": count(model["parameters"]),
        "steps": count(model["steps"]),
        "training": duration(model["train_s"]["mean"]),
        "test MSE": spread(model["test_mse"], 4),
        "of the expert's return": spread(
            model["return_fraction"], 3, model["return_fraction_ci95"]
        ),
        "success": spread(model["success"], 3, model["success_ci95"]),
        "survival": spread(model["survival"], 3),
        "control step, µs": count(model["latency_us_median"]["mean"]),
    }


def _expert_row(expert: Record) -> dict[str, str]:
    return {
        "model": "expert",
        "parameters": count(expert["parameters"]),
        "steps": DASH,
        "training": DASH,
        "test MSE": DASH,
        "of the expert's return": fixed(expert["return_fraction"], 3),
        "success": fixed(expert["success"], 3),
        "survival": fixed(expert["survival"], 3),
        "control step, µs": count(expert["latency_us_median"]),
    }
