"""The page and the table of the benchmark, from `summary.json` alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gaitforge.flows.experiments.summary import SUMMARY, grouped_by
from gaitforge.flows.intervals import mean, stratified_interval
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record
from gaitforge.pipeline.report.pages import (
    DASH,
    Record,
    Section,
    count,
    fixed,
    interval,
    markdown_table,
    write_sections,
)

_SCORES = (
    "100 is the return of the expert and 0 that of the weakest policy of the data, both under the "
    "same draws and on the same held-out episodes. Means over the seeds; in brackets the 95 % "
    "interval of the bootstrap over the seeds. The last rows are the policies that made the data."
)
_OUTCOMES = "The mean sum of rewards of an episode, and the share of episodes that succeed."


def write_page(out: Path, reporter: Reporter) -> Path:
    """Write report.html from a folder's summary."""
    summary = read_record(out / SUMMARY) or {}
    page = out / "report.html"
    shown = [
        Section("Scores", f"{_SCORES} {' '.join(precision(summary))}", summary_rows(summary)),
        Section("Returns and success", _OUTCOMES, outcome_rows(summary)),
        Section("All runs", rows=run_rows(summary), groups=("draws",)),
    ]
    write_sections(page, "legged-shift-v1", _abstract(summary), shown)
    return page


def summary_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each learner and reference, as text: its score under each draws."""
    return [
        {**_named(rows), **{draws: _score(group) for draws, group in _by_draws(rows)}}
        for rows in _by_learner(summary)
    ]


def outcome_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each learner and reference, as text: return and success under each draws."""
    table = []
    for rows in _by_learner(summary):
        row = _named(rows)
        for draws, group in _by_draws(rows):
            for name in ("return", "success"):
                row[f"{draws} {name}"] = fixed(fmean(run[name] for run in group))
        table.append(row)
    return table


def run_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each policy under each draws, as text; intervals are over its episodes."""
    return [
        {
            "draws": row["draws"],
            "run": row["run"],
            "score": _with_limits(row, "score", 1),
            "return": _with_limits(row, "return", 2),
            "success": _with_limits(row, "success", 2),
            "survival": fixed(row["survival"]),
            "episodes": count(row["episodes"]),
        }
        for row in summary["runs"]
    ]


def precision(summary: Record) -> list[str]:
    """A sentence for each draws: how wide the interval of one policy's score is."""
    sentences = []
    for draws, rows in _by_draws(summary["runs"]):
        limits = [row["score_ci95"] for row in rows if row.get("score_ci95")]
        if limits:
            half = fmean(high - low for low, high in limits) / 2
            episodes = rows[0]["episodes"]
            sentences.append(
                f"{draws}: the score of one policy has a 95 % interval of ± {half:.1f} over its "
                f"{episodes:,} episodes (mean of all policies)."
            )
    return sentences


def shown_beside(_: Path, summary: Record) -> dict[str, Any]:
    """What commands show beside the table: the data, and how exact the scores are."""
    return {
        "title": "scores",
        "lines": ("", _abstract(summary), *precision(summary)),
        "texts": {"Returns and success": markdown_table(outcome_rows(summary))},
    }


def _abstract(summary: Record) -> str:
    data = summary["sets"][0]
    collection = data["collection"] or "a store that is none of the benchmark's"
    sets = ", ".join(f"{row['set']} ({count(row['steps'])} steps)" for row in summary["sets"])
    return f"Learned from {collection}, hash {data['dataset'][:16]}: {sets}."


def _by_learner(summary: Record) -> Sequence[Sequence[Record]]:
    """The rows of each learner on each set, and those of each reference."""
    return grouped_by([dict(row) for row in summary["runs"]], ("set", "learner"))


def _by_draws(rows: Sequence[Record]) -> Iterator[tuple[str, Sequence[Record]]]:
    for group in grouped_by([dict(row) for row in rows], ("draws",)):
        yield group[0]["draws"], group


def _named(rows: Sequence[Record]) -> dict[str, str]:
    first = rows[0]
    seeds = {row["seed"] for row in rows} - {None}
    return {
        "learned from": first["set"] or DASH,
        "policy": first["learner"],
        "updates": count(first["steps"]),
        "seeds": str(len(seeds)) if seeds else DASH,
    }


def _score(rows: Sequence[Mapping[str, Any]]) -> str:
    """The mean score of some seeds, in brackets its interval, where there are several."""
    scores = [row["score"] for row in rows]
    limits = interval(stratified_interval([scores], mean), 1)
    return f"{fixed(fmean(scores), 1)} ({limits})" if limits else fixed(fmean(scores), 1)


def _with_limits(row: Record, name: str, digits: int) -> str:
    limits = interval(row.get(f"{name}_ci95"), digits)
    return f"{fixed(row[name], digits)} ({limits})" if limits else fixed(row[name], digits)
