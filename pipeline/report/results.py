"""The results of an experiment as tables and charts, from its `summary.json` alone."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from gaitforge.pipeline.report import charts
from gaitforge.pipeline.report.figures import Panel
from gaitforge.pipeline.report.pages import (
    DASH,
    Record,
    count,
    fixed,
    interval,
    policy,
    spread,
    words,
)
from gaitforge.pipeline.tables import duration

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


def result_rows(record: Record) -> list[dict[str, str]]:
    """A row per learner on a set, and the expert's, as text; columns without a value are left out.

    ± is the standard deviation over the seeds; in brackets are 95 % intervals: over the episodes
    for a fraction of the expert's return, over the seeds for a score.
    """
    results = list(record["results"])
    rows = [_row(result, len(record["sets"]) > 1) for result in results]
    if record["expert"] is not None:
        rows.append(_expert_row(record["expert"], rows[0]))
    shown = [name for name in rows[0] if any(row[name] not in (DASH, "") for row in rows)]
    return [{name: row[name] for name in shown} for row in rows]


def _row(result: Record, several: bool) -> dict[str, str]:
    legged = result["return_fraction"]["mean"] is not None
    fraction = spread(result["return_fraction"], 3, result["return_fraction_ci95"])
    return {
        "task": result["task"] if several else "",
        "set": result["set"],
        "learner": policy(result["learner"]),
        "value": "" if result["value"] is None else f"{result['value']:g}",
        "seeds": count(len(result["seeds"])) if len(result["seeds"]) > 1 else "",
        "of the expert's return": fraction if legged else DASH,
        "score": DASH if legged else spread(result["score"], 1, result["score_ci95"]),
        "published": published(result["task"], result["set"], result["learner"]),
        "return": spread(result["return"], 2 if legged else 0, result["return_ci95"]),
        "success": spread(result["success"], 3, result["success_ci95"]),
        "survival": spread(result["survival"], 3),
        "test MSE": spread(result["test_mse"], 4),
        "parameters": count(result["parameters"]),
        "updates": count(result["steps"]),
        "training": duration(result["train_s"]["mean"], DASH),
        "control step, µs": count(result["latency_us_median"]["mean"]),
        "its 99th percentile": count(result["latency_us_p99"]["mean"]),
    }


def _expert_row(expert: Record, like: Mapping[str, str]) -> dict[str, str]:
    row = dict.fromkeys(like, DASH)
    shown = {
        "learner": policy("expert"),
        "of the expert's return": fixed(expert["return_fraction"], 3),
        "return": with_interval(expert["return"], expert["return_ci95"], 2),
        "success": with_interval(expert["success"], expert["success_ci95"], 3),
        "survival": fixed(expert["survival"], 3),
        "parameters": count(expert["parameters"]),
        "training": duration(expert["train_s"], DASH),
        "control step, µs": count(expert["latency_us_median"]),
        "its 99th percentile": count(expert["latency_us_p99"]),
    }
    return row | dict.fromkeys(("task", "value"), "") | shown


def published(task: str, set_name: str, learner: str) -> str:
    """The published score as text; a dash where there is none."""
    scores = PUBLISHED.get((task, set_name))
    if scores is None or learner not in PUBLISHED_LEARNERS:
        return DASH
    return fixed(scores[PUBLISHED_LEARNERS.index(learner)], 1)


def is_published(record: Record) -> bool:
    """Whether a result has a published score beside it."""
    return any(published(r["task"], r["set"], r["learner"]) != DASH for r in record["results"])


def overall_rows(record: Record) -> list[dict[str, str]]:
    """A row per learner over all sets; nothing where there is one set."""
    if len(record["sets"]) < 2:
        return []
    return [
        {
            "learner": _label(each),
            "sets": count(each["sets"]),
            "runs": count(each["runs"]),
            "interquartile mean": with_interval(each["iqm"], each["iqm_ci95"], 1),
            "mean": with_interval(each["mean"], each["mean_ci95"], 1),
        }
        for each in record["overall"]
    ]


def with_interval(value: float | None, bounds: Sequence[float] | None, digits: int) -> str:
    """A number and in brackets its interval."""
    return fixed(value, digits) + (f" ({interval(bounds, digits)})" if bounds else "")


def _label(row: Record) -> str:
    """A learner's name, and the value that was varied for it."""
    value = row["value"]
    return policy(row["learner"]) + ("" if value is None else f", {value:g}")


def result_charts(record: Record) -> dict[str, list[Panel]]:
    """The charts of the page by their section; an empty list where there is nothing to show."""
    sets = record["sets"]
    return {
        "overall": _overall_charts(record),
        "varied": [*_each(record, sets, _varied_chart), *_rounds_charts(record)],
        "scores": _each(record, sets, _score_chart),
        "asked": _each(record, sets, _asked_chart),
        "curves": _each(record, sets, _curve_chart),
        "returns": [
            chart
            for each in sets
            for grouping, kind in (("terrains", "terrain"), ("skills", "skill"))
            if (chart := _return_chart(record, each, grouping, kind)) is not None
        ],
        "latency": [_latency_chart(record)],
    }


def _each(
    record: Record, sets: Iterable[Record], chart: Callable[[Record, Record], Panel | None]
) -> list[Panel]:
    return [panel for each in sets if (panel := chart(record, each)) is not None]


def _title(text: str, record: Record, of: Record) -> str:
    where = [of["task"]] if len(record["sets"]) > 1 else []
    return ": ".join(filter(None, (text, ", ".join(filter(None, (*where, of["set"]))))))


def _of_set(rows: Iterable[Record], of: Record) -> list[Record]:
    return [row for row in rows if (row["task"], row["set"]) == (of["task"], of["set"])]


def _overall_charts(record: Record) -> list[Panel]:
    if len(record["sets"]) < 2:
        return []
    rows = sorted(record["overall"], key=lambda each: each["iqm"], reverse=True)
    labels, values = [_label(each) for each in rows], [each["iqm"] for each in rows]
    bounds = [each["iqm_ci95"] for each in rows]
    title = "Interquartile mean over all sets"
    return [charts.intervals(title, labels, values, bounds, "score; the expert has 100")]


def _varied_chart(record: Record, of: Record) -> Panel | None:
    """Score over the number that varied, with its interval as thin lines."""
    results = [each for each in _of_set(record["results"], of) if each["value"] is not None]
    if not results:
        return None
    lines = []
    for learner in dict.fromkeys(each["learner"] for each in results):
        mine = sorted((e for e in results if e["learner"] == learner), key=lambda e: e["value"])
        x = [each["value"] for each in mine]
        lines.append(charts.Curve(policy(learner), x, [each["score"]["mean"] for each in mine]))
        if all(each["score_ci95"] for each in mine):
            bounds = zip(*(each["score_ci95"] for each in mine), strict=True)
            lines += [charts.Curve(policy(learner), x, limits, thin=True) for limits in bounds]
    name = words(next(iter(record["plan"]["vary"])))
    note = "Means over the seeds; thin lines are 95 % intervals." if len(lines) > 1 else ""
    title = _title(f"Score by {name}", record, of)
    return charts.curves(title, lines, name, "score", note, log=False)


def _rounds_charts(record: Record) -> list[Panel]:
    """Score over the rounds of corrections, beside plain imitation of as many episodes."""
    points: dict[str, dict[int, float]] = {"with corrections": {}, "plain imitation": {}}
    for result in record["results"]:
        kind, _, number = result["set"].rpartition("-")
        if kind in ("round", "plain") and number.isdigit():
            line = "plain imitation" if kind == "plain" else "with corrections"
            points[line][int(number)] = result["score"]["mean"]
    lines = [
        charts.Curve(name, *zip(*each.items(), strict=True))
        for name, each in points.items()
        if each
    ]
    if not lines:
        return []
    return [charts.curves("Score by round", lines, "round", "score", log=False)]


def _score_chart(record: Record, of: Record) -> Panel | None:
    results = _of_set(record["results"], of)
    if len(record["sets"]) + len(results) < 4:
        return None
    labels = ["the data", *map(_label, results)]
    values = [of["score"], *(result["score"]["mean"] for result in results)]
    bounds = [None, *(result["score_ci95"] for result in results)]
    title = _title("Score", record, of)
    return charts.intervals(title, labels, values, bounds, "score; the expert has 100")


def _asked_chart(record: Record, of: Record) -> Panel | None:
    """Scores of conditioned learners over the scores asked for; None without such learners."""
    lines = []
    for result in _of_set(record["results"], of):
        points = sorted((each["asked"], each["score"]["mean"]) for each in result["asked"])
        if len(points) > 1:
            lines.append(charts.Curve(_label(result), *zip(*points, strict=True)))
    if not lines:
        return None
    ends = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    best = fixed(of["score_best"], 0)
    note = f"Asked and returned in scores; the data’s best episode has {best}."
    lines.append(charts.Curve("as asked", ends, ends))
    title = _title("Asked and returned", record, of)
    return charts.curves(title, lines, "return asked for", "score", note, log=False)


def _curve_chart(record: Record, of: Record) -> Panel | None:
    """The score of the policies that were kept during training; None if only the last was."""
    runs, lines = _of_set(record["runs"], of), []
    for name in dict.fromkeys(map(_label, runs)):
        curves = [dict(run["curve"]) for run in runs if _label(run) == name]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        shares = [step / steps[-1] for step in steps]
        means = [sum(curve[step] for curve in curves) / len(curves) for step in steps]
        lines.append(charts.Curve(name, shares, means))
    if max((len(line.x) for line in lines), default=0) < 2:
        return None
    note = "Means over the seeds. A run’s updates are 1."
    title = _title("During training", record, of)
    return charts.curves(title, lines, "share of the updates", "score", note, log=False)


def _return_chart(record: Record, of: Record, grouping: str, kind: str) -> Panel | None:
    results = [each for each in _of_set(record["results"], of) if each[grouping]]
    if not results:
        return None
    groups = [words(group[kind]) for group in results[0][grouping]]

    def values(result: Record, name: str) -> list[float | None]:
        return [group["return_fraction"][name] for group in result[grouping]]

    series = [charts.BarSeries(_label(r), values(r, "mean"), values(r, "std")) for r in results]
    note = "The dashed line is the expert."
    title = _title(f"Return by {kind}", record, of)
    return charts.grouped_bars(title, groups, series, 1.0, "of the expert’s return", note)


def _latency_chart(record: Record) -> Panel:
    """Each learner's time on the set where it is slowest."""
    slowest: dict[str, tuple[float, float | None]] = {}
    for result in record["results"]:
        own = (result["latency_us_median"]["mean"], result["latency_us_p99"]["mean"])
        name = policy(result["learner"])
        slowest[name] = max(own, slowest.get(name, own), key=lambda pair: pair[0])
    rows = [charts.LatencyBar(name, *times) for name, times in slowest.items()]
    if (expert := record["expert"]) is not None:
        times = expert["latency_us_median"], expert["latency_us_p99"]
        rows.insert(0, charts.LatencyBar(policy("expert"), *times))
    budget = min(each["control_dt_s"] for each in record["sets"]) * 1e6
    return charts.latency("Control step", rows, budget)


def abstract(record: Record) -> str:
    """The outcome in a few sentences, from the tables' numbers."""
    sets, runs, results = record["sets"], record["runs"], record["results"]
    episodes = sum(each["episodes"] for each in sets)
    learners = len({_label(each) for each in results})
    where = f"{len(sets)} sets of episodes" if len(sets) > 1 else f"{count(episodes)} episodes"
    text = f"{learners} learner{'s' * (learners > 1)} on {where}, {len(runs)} trainings. "
    if len(sets) > 1:
        ranked = sorted(record["overall"], key=lambda each: each["iqm"], reverse=True)
        best = ", ".join(f"{_label(each)} {fixed(each['iqm'], 1)}" for each in ranked)
        return text + f"Score, as the interquartile mean over sets and seeds: {best}."
    ranked = [each for each in results if each["return_fraction"]["mean"] is not None]
    ranked.sort(key=lambda each: each["return_fraction"]["mean"], reverse=True)
    if not ranked:
        best = ", ".join(f"{_label(each)} {spread(each['score'], 1)}" for each in results)
        return text + f"Score: {best}."
    levels = ", ".join(sorted({str(cell["level"]) for cell in record["cells"]}))
    best = ", ".join(f"{_label(each)} {spread(each['return_fraction'], 3)}" for each in ranked)
    return text + f"Of the expert’s return they reach at terrain level {levels} of 0 to 9: {best}."


def first_runs(record: Record) -> list[str]:
    """The name of each learner's first run."""
    return list(
        {each["learner"]: each["runs"][0] for each in reversed(record["results"])}.values()
    )[::-1]
