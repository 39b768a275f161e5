"""One self-contained HTML page from the files of a run folder, and from nothing else.

Every number on the page stands in one of those files, or is a sum or an episode-weighted mean of
such numbers; the page names the file beside it. The page loads nothing, needs no script, and the
same files give the same bytes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from gaitforge.datasets.errors import amount
from gaitforge.pipeline.report import charts, pages, results
from gaitforge.pipeline.report.expert_section import card_table, sheet_figures
from gaitforge.pipeline.report.figures import Panel
from gaitforge.pipeline.report.pages import Record, Shade
from gaitforge.pipeline.report.results import (
    abstract,
    first_runs,
    is_published,
    overall_rows,
    result_charts,
    result_rows,
)
from gaitforge.pipeline.report.run_files import EXPERT, RunFiles, read_run
from gaitforge.pipeline.view.run_pages import page_of

Interval = Sequence[float] | None

REPORT_NAME, TABLE_NAME = "report.html", "results.md"
_MOST_STAGES = 60

_STAGES = {
    "collect": "The expert drives; its episodes are stored.",
    "train first": "A first learner, from the expert’s episodes alone.",
    "collect corrections": "The first learner drives in short stretches; what the expert would "
    "have done is stored (DAgger).",
    "describe": "Statistics of the dataset.",
    "time": "How many optimiser steps fit in the time.",
    "train": "From all episodes.",
    "evaluate": "In closed loop, on the held-out episodes.",
}
"""A stage's name, or its first word -> what it does."""


@dataclass(frozen=True)
class HeatTable:
    """`cells[row][column]` for terrains (rows) by skills (columns); `page` has their episodes."""

    title: str
    terrains: tuple[str, ...]
    skills: tuple[str, ...]
    cells: tuple[tuple[Shade, ...], ...]
    page: str = ""


@dataclass(frozen=True)
class ModesCut:
    """The lowest `n_modes` of a window of `context_len` steps, which `policy` keeps."""

    policy: str
    n_modes: int
    context_len: int
    control_dt_s: float

    @property
    def highest_hz(self) -> float:
        """The highest mode that is kept, k = m - 1, at k / (n dt) (FCNet paper, Eq. 7)."""
        return (self.n_modes - 1) / (self.context_len * self.control_dt_s)

    @property
    def edge_hz(self) -> float:
        """Half way from the last mode that is kept to the first that is not."""
        return (self.n_modes - 0.5) / (self.context_len * self.control_dt_s)


def write_report(run_dir: Path) -> Path:
    """Write `report.html`, and `results.md` with its table, from an experiment's files.

    Returns:
        The page's path.

    Raises:
        ValueError: a file is missing or malformed; an older report is then left as it was.
    """
    run = read_run(run_dir)
    rows = result_rows(run.summary)
    table = pages.markdown_table(rows[0], [row.values() for row in rows]) + "\n"
    pages.write_texts(run_dir, {TABLE_NAME: table, REPORT_NAME: render_report(run)})
    return run_dir / REPORT_NAME


def render_report(run: RunFiles) -> str:
    """The page as text."""
    return pages.render("report.html", **_context(run))


def _context(run: RunFiles) -> dict[str, object]:
    """The values of the template."""
    summary, dataset, cut = run.summary, run.dataset, _modes_cut(run)
    shown = [EXPERT, *first_runs(summary)]
    linked = {name: page for name in shown if (page := page_of(run.root, name))}
    return {
        "abstract": abstract(summary),
        "summary": summary,
        "source": results.SOURCE if is_published(summary) else "",
        "rows": _table_cells(result_rows(summary)),
        "overall": overall_rows(summary),
        "charts": result_charts(summary),
        "own": list(pages.flattened(summary["plan"]["learners"])),
        "linked": linked,
        "sheets": sheet_figures(run.root, run.pictures),
        "card": card_table(run),
        "dataset": dataset,
        "described": _described(dataset, cut) if dataset is not None else {},
        "cut": cut,
        "training": run.training,
        "training_charts": charts.losses(
            ((pages.policy(_learner(summary, each.policy)), each.history) for each in run.training),
            "optimiser steps",
        ),
        "stages": _stages(run),
        "best_validation": {r.policy: _best_validation(r.history) for r in run.training},
        "success_heat": _evaluation_heat(summary, shown, "success", (0.0, 1.0), linked),
        "return_heat": _evaluation_heat(summary, shown, "return", None, linked),
        "cells": _cells(summary, shown),
        "plan": list(pages.flattened(summary["plan"])),
        "files": [(path.as_posix(), (run.root / path).stat().st_size) for path in run.paths],
    }


def _described(dataset: Record, cut: ModesCut | None) -> dict[str, object]:
    """Tables and charts of the collected dataset."""
    return {
        "heat": [
            _dataset_heat(dataset["groups"], "episodes", "Episodes", 0),
            _dataset_heat(dataset["groups"], "return", "Mean return", 2),
        ],
        "charts": _dataset_charts(dataset),
        "randomisation": [_randomisation_chart(draw) for draw in dataset["randomisation"]],
        "spectra": [_spectrum_chart(signal, cut) for signal in dataset["spectra"]],
        "info": list(pages.flattened(dataset["info"])),
    }


def _table_cells(rows: Sequence[Mapping[str, str]]) -> list[dict[str, list[str]]]:
    """Rows for a page's table: each value apart from its interval."""
    return [
        {
            name: [value] if name == "learner" else value.removesuffix(")").split(" (")
            for name, value in row.items()
        }
        for row in rows
    ]


def _learner(summary: Record, run: str) -> str:
    return next((each["learner"] for each in summary["runs"] if each["run"] == run), run)


def _cells(summary: Record, names: Sequence[str]) -> list[Record]:
    """The cells of each learner's first run, with the share of the expert's return."""
    expert = {_place(cell): cell["return"] for cell in summary["cells"] if cell["policy"] == EXPERT}

    def fraction(cell: Record) -> float | None:
        of = expert.get(_place(cell), 0.0)
        return cell["return"] / of if of > 0 and pages.is_number(cell["return"]) else None

    cells = [cell for cell in summary["cells"] if cell["policy"] in names]
    return [{**cell, "return_fraction": fraction(cell)} for cell in cells]


def _place(cell: Record) -> tuple[str, str, int]:
    return cell["terrain"], cell["skill"], cell["level"]


def _stages(run: RunFiles) -> list[tuple[str, str, float]]:
    """Name, what it does, and seconds of every stage; nothing where there are too many to read."""
    rows = []
    for stage, seconds in run.stages.items() if len(run.stages) <= _MOST_STAGES else ():
        kind, _, policy = stage.partition(" ")
        shown = f"{kind} {pages.policy(policy)}" if policy in pages.POLICY_NAMES else stage
        rows.append((shown, _STAGES.get(stage, _STAGES.get(kind, "")), seconds))
    return rows


def _dataset_heat(groups: Iterable[Record], field: str, title: str, digits: int) -> HeatTable:
    values = {(group["terrain"], group["skill"]): group[field] for group in groups}
    return _heat_table(title, values, digits, None, {})


def _evaluation_heat(
    summary: Record,
    names: Sequence[str],
    field: str,
    limits: tuple[float, float] | None,
    linked: Mapping[str, str],
) -> list[HeatTable]:
    """One table a policy: means over levels, weighted by episodes; colours on one common scale."""
    cells = {name: [c for c in summary["cells"] if c["policy"] == name] for name in names}
    tables = {policy: _mean_over_levels(cells[policy], field) for policy in cells}
    limits = limits or _limits(value for table in tables.values() for value in table.values())
    shown = {policy: values for policy, values in tables.items() if values}
    return [
        replace(
            _heat_table(pages.policy(policy), values, 2, limits, _intervals(cells[policy], field)),
            page=linked.get(policy, ""),
        )
        for policy, values in shown.items()
    ]


def _intervals(cells: Sequence[Record], field: str) -> dict[tuple[str, str], Interval]:
    """A field's intervals by terrain and skill; none where several levels were averaged."""
    intervals = {(cell["terrain"], cell["skill"]): cell[f"{field}_ci95"] for cell in cells}
    return intervals if len(intervals) == len(cells) else {}


def _mean_over_levels(cells: Iterable[Record], field: str) -> dict[tuple[str, str], float | None]:
    groups: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for cell in cells:
        pairs = groups.setdefault((cell["terrain"], cell["skill"]), [])
        if pages.is_number(cell[field]) and pages.is_number(cell["episodes"]):
            pairs.append((cell[field], cell["episodes"]))
    return {
        place: fmean(*zip(*pairs, strict=True)) if pairs else None
        for place, pairs in groups.items()
    }


def _limits(values: Iterable[float | None]) -> tuple[float, float]:
    numbers = [value for value in values if pages.is_number(value)]
    return min(numbers, default=0.0), max(numbers, default=1.0)


def _heat_table(
    title: str,
    values: Mapping[tuple[str, str], float | None],
    digits: int,
    limits: tuple[float, float] | None,
    intervals: Mapping[tuple[str, str], Interval],
) -> HeatTable:
    terrains = tuple(dict.fromkeys(terrain for terrain, _ in values))
    skills = tuple(dict.fromkeys(skill for _, skill in values))
    limits = limits or _limits(values.values())
    cells = tuple(
        tuple(
            _heat_cell(values.get(place := (terrain, skill)), digits, limits, intervals.get(place))
            for skill in skills
        )
        for terrain in terrains
    )
    return HeatTable(title, terrains, skills, cells)


def _heat_cell(
    value: float | None, digits: int, limits: tuple[float, float], ci: Interval
) -> Shade:
    if not pages.is_number(value):
        return Shade(pages.DASH)
    shown = pages.interval(ci, 1 if abs(value) >= 2 else 2)  # at most 12 characters fit
    low, high = limits
    share = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 0.5
    return Shade(pages.fixed(value, digits), share, shown)


def _dataset_charts(dataset: Record) -> list[Panel]:
    levels, lengths = dataset["levels"], dataset["episode_lengths"]
    panels = []
    if levels:
        names, episodes = [str(row["level"]) for row in levels], [row["episodes"] for row in levels]
        panels.append(charts.bars("Episodes by terrain level", names, episodes, "terrain level"))
    if lengths["counts"]:
        edges, counts = lengths["edges"], lengths["counts"]
        panels.append(charts.histogram("Episodes by length", edges, counts, "control steps"))
    return panels


def _randomisation_chart(draw: Record) -> Panel:
    unit = "dimensionless" if draw["unit"] in ("", "1") else draw["unit"]
    title = pages.words(draw["name"]).removesuffix(f" {unit}")
    return charts.histogram(title, draw["edges"], draw["counts"], unit)


def _modes_cut(run: RunFiles) -> ModesCut | None:
    """`n_modes` and `context_len` of the first training configuration that has both; else none."""
    runs = [each["run"] for each in run.summary["runs"]]
    for training in (each for each in run.training if each.policy in runs):
        leaves = {name.rpartition(".")[2]: leaf for name, leaf in pages.flattened(training.config)}
        n_modes, context_len = leaves.get("n_modes"), leaves.get("context_len")
        if isinstance(n_modes, int) and isinstance(context_len, int):
            dt_s = run.summary["sets"][0]["control_dt_s"]
            return ModesCut(training.policy, n_modes, context_len, dt_s)
    return None


def _spectrum_chart(signal: Record, cut: ModesCut | None) -> Panel:
    unit = "" if signal["unit"] in ("", "1") else f", in {signal['unit']}"
    pairs = list(zip(signal["frequency_hz"], signal["energy_share"], strict=True))
    note = f"{amount(signal['channels'], 'channel')}{unit}."
    if cut is not None:
        kept = sum(share for frequency, share in pairs if frequency <= cut.edge_hz)
        note += f" Kept: {pages.fixed(100 * kept, 1)} % of the energy."
    edge_hz = cut.edge_hz if cut else None
    label = f"{cut.n_modes} of {cut.context_len} modes" if cut else ""
    frequency_hz, share = signal["frequency_hz"], signal["energy_share"]
    return charts.spectrum(pages.words(signal["signal"]), frequency_hz, share, edge_hz, label, note)


def _best_validation(history: Iterable[Record]) -> float | None:
    return min(
        (row["validation_loss"] for row in history if pages.is_number(row["validation_loss"])),
        default=None,
    )
