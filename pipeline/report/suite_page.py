"""A suite's comparison as one self-contained HTML page and a Markdown table, from `suite.json`.

The page loads nothing and needs no script; the same file gives the same bytes.
"""

from pathlib import Path

from gaitforge.datasets.errors import amount
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.suites.suite import SUITE
from gaitforge.pipeline.report import charts
from gaitforge.pipeline.report.figures import Panel
from gaitforge.pipeline.report.pages import (
    DASH,
    Record,
    count,
    duration,
    fixed,
    flattened,
    interval,
    markdown_table,
    render,
    spread,
    write_texts,
)

PAGE_NAME, MARKDOWN_NAME = "suite.html", "suite.md"

SOURCE = "Tan et al. 2024 (FCNet), Table 2"
PUBLISHED_LEARNERS = ("bc", "cql", "bear", "brac-v", "awr", "dt", "dt-retnet", "fcnet")
PUBLISHED: dict[tuple[str, str], tuple[float, ...]] = {
    ("halfcheetah", "medium-expert"): (35.8, 62.4, 53.4, 41.9, 52.7, 86.8, 91.4, 91.2),
    ("walker2d", "medium-expert"): (6.4, 98.7, 40.1, 81.6, 53.8, 108.1, 79.1, 108.8),
    ("hopper", "medium-expert"): (111.9, 111.0, 96.3, 0.8, 27.1, 107.6, 102.9, 110.5),
    ("halfcheetah", "medium"): (36.1, 44.4, 41.7, 46.3, 37.4, 42.6, 43.2, 42.9),
    ("walker2d", "medium"): (6.6, 79.2, 59.1, 81.1, 17.4, 74.0, 73.3, 75.2),
    ("hopper", "medium"): (29.0, 58.0, 52.1, 31.1, 35.9, 67.6, 74.1, 57.8),
    ("halfcheetah", "medium-replay"): (38.4, 46.2, 38.6, 47.7, 40.3, 36.6, 17.2, 39.8),
    ("walker2d", "medium-replay"): (11.3, 26.7, 19.2, 0.9, 15.5, 66.6, 32.4, 63.5),
    ("hopper", "medium-replay"): (11.8, 48.6, 33.7, 0.6, 28.4, 82.7, 58.4, 85.8),
}
"""(task, set) -> D4RL's normalised score of each of `PUBLISHED_LEARNERS`, means of three seeds."""


def write_suite(folder: Path) -> Path:
    """Write `suite.html` and `suite.md` into a suite's folder; returns the page's path.

    Raises:
        ValueError: there is no finished suite, or the folder cannot be written.
    """
    record = read_record(folder / SUITE)
    if record is None:
        raise ValueError(f"no finished suite in {folder}; `gaitforge compare --suite` makes one")
    rows = suite_rows(record)
    table = markdown_table(rows[0], [row.values() for row in rows]) + "\n"
    write_texts(folder, {MARKDOWN_NAME: table, PAGE_NAME: suite_page(record)})
    return folder / PAGE_NAME


def suite_rows(record: Record) -> list[dict[str, str]]:
    """A row per learner on a set, as text; ± is the standard deviation over the seeds."""
    return [
        {
            "task": result["task"],
            "set": result["set"],
            "learner": result["learner"],
            "seeds": count(len(result["seeds"])),
            "score": spread(result["score"], 1, result["score_ci95"]),
            "published": published(result["task"], result["set"], result["learner"]),
            "return": spread(result["return"], 2 if result["task"] == "legged" else 0),
            "success": spread(result["success"], 2),
            "parameters": count(result["parameters"]),
            "updates": count(result["steps"]),
            "training": duration(result["train_s"]["mean"]),
            "control step, µs": count(result["control_us"]["mean"]),
        }
        for result in record["results"]
    ]


def published(task: str, set_name: str, learner: str) -> str:
    """The published score as text; a dash where there is none."""
    known = PUBLISHED.get((task, set_name))
    if known is None or learner not in PUBLISHED_LEARNERS:
        return DASH
    return fixed(known[PUBLISHED_LEARNERS.index(learner)], 1)


def suite_page(record: Record) -> str:
    """The page of a suite's record, as text."""
    compared = any(published(r["task"], r["set"], r["learner"]) != DASH for r in record["results"])
    rows = suite_rows(record)
    if not compared:
        rows = [{name: row[name] for name in row if name != "published"} for row in rows]
    return render(
        "suite.html",
        abstract=_abstract(record),
        record=record,
        overall=_overall_rows(record),
        overall_chart=_overall_chart(record),
        rows=rows,
        score_charts=[_score_chart(record, each) for each in record["sets"]],
        asked_charts=[
            chart for each in record["sets"] if (chart := _asked_chart(record, each)) is not None
        ],
        curve_charts=[_curve_chart(record, each) for each in record["sets"]],
        latency_chart=_latency_chart(record),
        compared=compared,
        source=SOURCE,
        plan=list(flattened(record["plan"])),
    )


def _abstract(record: Record) -> str:
    """The outcome in a few sentences, from the table's numbers."""
    overall = [each for each in record["overall"] if each["iqm"] is not None]
    ranked = sorted(overall, key=lambda each: each["iqm"], reverse=True)
    text = (
        f"{amount(len(overall), 'learner')} on {amount(len(record['sets']), 'set')} of episodes, "
        f"{amount(len(record['runs']), 'training')}. Score, as the interquartile mean over sets "
        "and seeds: "
    )
    return text + ", ".join(f"{each['learner']} {fixed(each['iqm'], 1)}" for each in ranked) + "."


def _overall_rows(record: Record) -> list[dict[str, str]]:
    return [
        {
            "learner": each["learner"],
            "sets": count(each["sets"]),
            "runs": count(each["runs"]),
            "interquartile mean": _with_interval(each["iqm"], each["iqm_ci95"]),
            "mean": _with_interval(each["mean"], each["mean_ci95"]),
        }
        for each in record["overall"]
    ]


def _with_interval(value: float | None, bounds: list[float] | None) -> str:
    return fixed(value, 1) + (f" ({interval(bounds, 1)})" if bounds else "")


def _overall_chart(record: Record) -> Panel:
    rows = [each for each in record["overall"] if each["iqm"] is not None]
    rows.sort(key=lambda each: each["iqm"], reverse=True)
    return charts.intervals(
        "Interquartile mean over all sets",
        [each["learner"] for each in rows],
        [each["iqm"] for each in rows],
        [each["iqm_ci95"] for each in rows],
        "score; the expert has 100",
    )


def _results_of(record: Record, of: Record) -> list[Record]:
    return [
        result
        for result in record["results"]
        if (result["task"], result["set"]) == (of["task"], of["set"])
    ]


def _score_chart(record: Record, of: Record) -> Panel:
    results = _results_of(record, of)
    return charts.intervals(
        f"{of['task']}, {of['set']}",
        ["the data", *(result["learner"] for result in results)],
        [of["score"], *(result["score"]["mean"] for result in results)],
        [None, *(result["score_ci95"] for result in results)],
        "score; the expert has 100",
    )


def _asked_chart(record: Record, of: Record) -> Panel | None:
    """What conditioned learners return for what they are asked; None without any."""
    lines = []
    for result in _results_of(record, of):
        points = sorted((each["asked"], each["score"]["mean"]) for each in result["asked"])
        if len(points) > 1:
            lines.append(charts.Curve(result["learner"], *zip(*points, strict=True)))
    if not lines:
        return None
    ends = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    note = (
        f"Asked and returned in scores; the data’s best episode has {fixed(of['score_best'], 0)}."
    )
    lines.append(charts.Curve("as asked", ends, ends))
    title = f"Asked and returned: {of['task']}, {of['set']}"
    return charts.curves(title, lines, "return asked for", "score", note, log=False)


def _curve_chart(record: Record, of: Record) -> Panel:
    """The score of the policies that were kept during training."""
    runs = [run for run in record["runs"] if (run["task"], run["set"]) == (of["task"], of["set"])]
    lines = []
    for learner in dict.fromkeys(run["learner"] for run in runs):
        curves = [dict(run["curve"]) for run in runs if run["learner"] == learner]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        shares = [step / steps[-1] for step in steps]
        means = [sum(curve[step] for curve in curves) / len(curves) for step in steps]
        lines.append(charts.Curve(learner, shares, means))
    title = f"During training: {of['task']}, {of['set']}"
    note = "Means over the seeds. A run’s updates are 1."
    return charts.curves(title, lines, "share of the updates", "score", note, log=False)


def _latency_chart(record: Record) -> Panel:
    slowest: dict[str, float] = {}
    for result in record["results"]:
        own = result["control_us"]["mean"]
        slowest[result["learner"]] = max(own, slowest.get(result["learner"], 0.0))
    rows = [charts.LatencyBar(name, value, None) for name, value in slowest.items()]
    budget = min(each["control_dt_s"] for each in record["sets"]) * 1e6
    return charts.latency("Control step", rows, budget)
