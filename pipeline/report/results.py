"""The results of an experiment as tables and charts, from its `summary.json` alone."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from gaitforge.common.errors import amount
from gaitforge.pipeline.report import charts
from gaitforge.pipeline.report.charts import Panel
from gaitforge.pipeline.report.pages import (
    DASH,
    Record,
    count,
    fixed,
    policy,
    spread,
    words,
)
from gaitforge.pipeline.terminal import duration

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


_NONE: Record = {"mean": None, "std": None}

VERDICTS = (
    "The paper’s statements, and whether the seeds here tell the same: “by chance” is the p-value "
    "of a one-sided permutation test over the seeds; at most 0.05 holds, at most 0.05 in the other "
    "direction does not, anything else cannot be told."
)

VERDICT_GROUPS = ("published", "set", "measure", "source", "the paper")
"""Columns of `verdict_rows` that a statement's rows share."""


def result_rows(record: Record) -> list[dict[str, str]]:
    """A row per learner on a set, and the expert's, as text; columns without a value are left out.

    ± is the standard deviation over the seeds; in brackets are 95 % intervals: over the episodes
    for a fraction of the expert's return, over the seeds for a score.
    """
    further = tuple(record["plan"].get("evaluations", ()))
    rows = [_row(result, len(record["sets"]) > 1, further=further) for result in record["results"]]
    if record["expert"] is not None:
        rows.append(_expert_row(record["expert"]))
    for dataset in record["sets"]:
        if measures := dataset.get("measures"):
            task = dataset["task"] if len(record["sets"]) > 1 else ""
            names = {"task": task, "set": dataset["set"], "learner": policy("expert")}
            rows.append(names | {words(name): fixed(value) for name, value in measures.items()})
    every = dict.fromkeys(name for row in rows for name in row)
    shown = [n for n in every if any(row.get(n, DASH) not in (DASH, "") for row in rows)]
    return [{name: row.get(name, DASH) for name in shown} for row in rows]


def _row(
    result: Record, several: bool, legged: bool = False, further: Sequence[str] = ()
) -> dict[str, str]:
    legged = legged or result["return_fraction"]["mean"] is not None
    fraction = spread(result["return_fraction"], 3, result["return_fraction_ci95"])
    return {
        "task": result["task"] if several else "",
        "set": result["set"],
        "learner": policy(result["learner"]),
        "value": "" if result["value"] is None else f"{result['value']:g}",
        "seeds": count(len(result["seeds"])) if len(result["seeds"]) > 1 else "",
        "of the expert's return": fraction if legged else DASH,
        "score": DASH if legged else spread(result["score"], 1, result["score_ci95"]),
        **_further(result, further, legged),
        "published": published(result["task"], result["set"], result["learner"]),
        "return": spread(result["return"], 2 if legged else 0, result["return_ci95"]),
        "success": spread(result["success"], 3, result["success_ci95"]),
        "survival": spread(result["survival"], 3) if legged else DASH,
        **_own(result.get("measures", {})),
        "test MSE": spread(result["test_mse"], 5),
        "test / train": _over(result["test_mse"], result.get("train_mse", _NONE)),
        "parameters": count(result["parameters"]),
        "updates": count(result["steps"]),
        "training": duration(result["train_s"]["mean"], DASH),
        "control step, µs": count(result["latency_us_median"]["mean"]),
        "its 99th percentile": count(result["latency_us_p99"]["mean"]),
    }


def _over(measure: Record, divisor: Record) -> str:
    known = None not in (measure["mean"], divisor["mean"])
    return fixed(measure["mean"] / divisor["mean"], 3) if known else DASH


def _further(result: Record, names: Sequence[str], legged: bool) -> dict[str, str]:
    """Scores, or for legged robots shares of the expert's return, of further evaluations."""
    texts = {}
    for name in names:
        score = result["measures"][f"{name} score"]
        if legged:
            share = {key: value and value / 100.0 for key, value in score.items()}
            texts[f"of the expert's return, {words(name)}"] = spread(share, 3)
        else:
            texts[f"score, {words(name)}"] = spread(score, 1)
    return texts


def _own(measures: Mapping[str, Record]) -> dict[str, str]:
    """The task's own measures: the highest of the kept policies and their mean over them."""
    texts = {}
    for name in measures:
        if f"highest {name}" in measures:
            highest, mean = (measures[f"{kind} {name}"] for kind in ("highest", "mean"))
            texts[words(name)] = f"{fixed(highest['mean'])} / {spread(mean, 2)}"
    return texts


def _expert_row(expert: Record) -> dict[str, str]:
    """The expert as a learner that ran once."""
    measured = ("return_fraction", "return", "success", "survival", "train_s", "latency_us_median")
    result: dict[str, Any] = {
        **{name: {"mean": expert[name], "std": None} for name in (*measured, "latency_us_p99")},
        "task": "",
        "set": DASH,
        "learner": "expert",
        "value": None,
        "seeds": (),
        "test_mse": _NONE,
        "steps": None,
        **{name: expert[name] for name in ("parameters", "return_ci95", "success_ci95")},
        "return_fraction_ci95": None,
    }
    return _row(result, several=False, legged=True) | {"seeds": DASH}


def published(task: str, set_name: str, learner: str) -> str:
    """The published score as text; a dash where there is none."""
    scores = PUBLISHED.get((task, set_name))
    if scores is None or learner not in PUBLISHED_LEARNERS:
        return DASH
    return fixed(scores[PUBLISHED_LEARNERS.index(learner)], 1)


def verdict_rows(record: Record) -> list[dict[str, str]]:
    """A row per published statement, as text; columns without a value are left out."""
    rows = [
        {
            "published": f"{policy(verdict['ahead'])} ahead of {policy(verdict['behind'])}",
            "set": verdict.get("set", ""),
            "value": "" if verdict["value"] is None else f"{verdict['value']:g}",
            "measure": words(verdict.get("measure", "")),
            "source": verdict["source"],
            "the paper": verdict["numbers"],
            "here": _compared(verdict),
            "by chance": chance_text(verdict["chance"]),
            "verdict": verdict["verdict"],
        }
        for verdict in record.get("verdicts", ())
    ]
    shown = [name for name in (rows or [{}])[0] if any(row[name] for row in rows)]
    return [{name: row[name] for name in shown} for row in rows]


def _compared(verdict: Record) -> str:
    """Both numbers of a statement, with their names and unit."""
    unit = verdict.get("unit", "")
    pairs = zip((verdict["ahead"], verdict["behind"]), verdict["means"], strict=True)
    return ", ".join(f"{policy(name)} {_measured(mean, unit)}" for name, mean in pairs)


def _measured(mean: float, unit: str) -> str:
    """A number with its unit, without a break between them."""
    return f"{fixed(mean)}\u00a0{unit}" if unit else fixed(mean)


def sources(plan: Record) -> str:
    """The papers and figures that a plan's statements are from; "" without statements."""
    return "; ".join(dict.fromkeys(said["source"] for said in plan.get("published", ())))


def verdict_lines(record: Record) -> list[str]:
    """A line per published statement under its source: the verdict here, both numbers, and p.

    Of a statement that is told at several values, the line lists the values by verdict, and the
    numbers are those at the last one. None without statements.
    """
    by_source: dict[str, dict[tuple[str, ...], list[Record]]] = {}
    for verdict in record.get("verdicts", ()):
        key = (
            verdict["ahead"],
            verdict["behind"],
            verdict.get("set", ""),
            verdict.get("measure", ""),
        )
        by_source.setdefault(verdict["source"], {}).setdefault(key, []).append(verdict)
    lines = []
    for source, statements in by_source.items():
        lines += ["", f"{source}:", *map(_verdict_line, statements.values())]
    return lines


def _verdict_line(group: Sequence[Record]) -> str:
    """What is told of a statement at all its values."""
    last = group[-1]
    said = f"{policy(last['ahead'])} ahead of {policy(last['behind'])}"
    where = [words(last[name]) for name in ("set", "measure") if last.get(name)]
    at = "" if last["value"] is None else f"at {last['value']:g} "
    here = f"{at}{_compared(last)}, p {chance_text(last['chance'])}"
    return f"  {_told(group)}: {'; '.join([said, *where, here])}"


def shown_verdicts(_: Path, record: Record) -> dict[str, Any]:
    """What a command shows beside the table of a kind of plan: its verdicts."""
    return {"lines": verdict_lines(record)}


def _told(group: Sequence[Record]) -> str:
    """The verdicts of a statement; of several values, those of each verdict."""
    kinds = dict.fromkeys(verdict["verdict"] for verdict in group)
    if len(kinds) == 1:
        return next(iter(kinds))
    texts = []
    for kind in kinds:
        values = (v["value"] for v in group if v["verdict"] == kind)
        texts.append(f"{kind} at {', '.join('-' if v is None else f'{v:g}' for v in values)}")
    return ", ".join(texts)


def chance_text(value: float | None) -> str:
    """A p-value with two digits after the point, or three of a small one; never 0."""
    if value is None or value >= 0.01:
        return fixed(value)
    return fixed(value, 3) if value >= 0.001 else "< 0.001"


def overall_rows(record: Record) -> list[dict[str, str]]:
    """A row per learner over all sets; nothing where there is one set."""
    if len(record["sets"]) < 2:
        return []
    return [
        {
            "learner": _label(row),
            "sets": count(row["sets"]),
            "runs": count(row["runs"]),
            "interquartile mean": spread({"mean": row["iqm"], "std": None}, 1, row["iqm_ci95"]),
            "mean": spread({"mean": row["mean"], "std": None}, 1, row["mean_ci95"]),
        }
        for row in record["overall"]
    ]


def robot_rows(record: Record) -> list[dict[str, str]]:
    """A row per robot, and means of those trained on and left out; nothing for one robot.

    Learners' numbers are shares of the expert's return on that robot.
    """
    results = [result for result in record["results"] if result.get("robots")]
    trained = {name for dataset in record["sets"] for name in dataset.get("robots", ())}
    kinds: dict[str, list[int]] = {"trained on": [], "left out": []}
    rows = []
    for k, group in enumerate(results[0]["robots"] if results else ()):
        kind = "trained on" if group["robot"] in trained else "left out"
        kinds[kind].append(k)
        row = {"robot": group["robot"], "in training": kind}
        for result in results:
            robot = result["robots"][k]
            bounds = robot["return_fraction_ci95"]
            row[_label(result)] = spread(robot["return_fraction"], 3, bounds)
        rows.append(row)
    for kind, indices in kinds.items():
        row = {"robot": f"mean of {len(indices)}", "in training": kind}
        for result in results:
            shares = [result["robots"][k]["return_fraction"]["mean"] for k in indices]
            row[_label(result)] = DASH if None in shares else fixed(fmean(shares or [0.0]), 3)
        rows += [row] if indices else []
    return rows


def _label(row: Record) -> str:
    """A learner's name, and the value that was varied for it."""
    value = row["value"]
    return policy(row["learner"]) + ("" if value is None else f", {value:g}")


def result_charts(record: Record) -> dict[str, list[Panel]]:
    """The charts of the page by their section; an empty list where there is nothing to show."""

    def per_set(chart: Callable[[Record, Record], Iterable[Panel]]) -> list[Panel]:
        return [panel for dataset in record["sets"] for panel in chart(record, dataset)]

    return {
        "overall": list(_overall_chart(record)),
        "varied": [*per_set(_varied_chart), *_rounds_chart(record)],
        "scores": per_set(_score_chart),
        "asked": per_set(_asked_chart),
        "curves": per_set(_curve_chart),
        "returns": per_set(_return_charts),
        "latency": [_latency_chart(record)],
    }


def _title(text: str, record: Record, of: Record) -> str:
    where = [of["task"]] if len(record["sets"]) > 1 else []
    return ": ".join(filter(None, (text, ", ".join(filter(None, (*where, of["set"]))))))


def _of_set(rows: Iterable[Record], of: Record) -> list[Record]:
    return [row for row in rows if (row["task"], row["set"]) == (of["task"], of["set"])]


def _ranked(rows: Iterable[Record]) -> list[Record]:
    return sorted(rows, key=lambda row: row["iqm"], reverse=True)


def _overall_chart(record: Record) -> Iterator[Panel]:
    ranked = _ranked(record["overall"])
    rows = [(_label(row), row["iqm"], row["iqm_ci95"]) for row in ranked]
    if len(record["sets"]) > 1:
        yield charts.intervals("Interquartile mean over all sets", rows)


def _varied_chart(record: Record, of: Record) -> Iterator[Panel]:
    """Scores over the number that varied, the first one with its interval as thin lines."""
    for further in ("", *record["plan"].get("evaluations", ())):
        yield from _varied_by(record, of, further)


def _varied_by(record: Record, of: Record, further: str) -> Iterator[Panel]:
    """The chart of the first score, or of that of a further evaluation."""
    results = [result for result in _of_set(record["results"], of) if result["value"] is not None]
    lines = []
    for learner in dict.fromkeys(result["learner"] for result in results):
        mine = sorted((e for e in results if e["learner"] == learner), key=lambda e: e["value"])
        x = [result["value"] for result in mine]
        scores = [
            result["measures"][f"{further} score"] if further else result["score"]
            for result in mine
        ]
        lines.append(charts.Curve(policy(learner), x, [score["mean"] for score in scores]))
        if not further and all(result["score_ci95"] for result in mine):
            bounds = zip(*(result["score_ci95"] for result in mine), strict=True)
            lines += [charts.Curve(policy(learner), x, limits, thin=True) for limits in bounds]
    if lines:
        name = words(next(iter(record["plan"]["vary"])).rpartition(".")[2])
        intervals = any(line.thin for line in lines)
        note = "Means over the seeds; thin lines are 95 % intervals." if intervals else ""
        title = _title(f"Score by {name}{', ' if further else ''}{words(further)}", record, of)
        yield charts.curves(title, lines, name, "score", note, log=False)


def _rounds_chart(record: Record) -> Iterator[Panel]:
    """Score over the rounds of corrections, beside plain imitation of as many episodes."""
    points: dict[str, dict[int, float]] = {"round": {}, "plain": {}}
    for result in record["results"]:
        kind, _, number = result["set"].rpartition("-")
        if kind in points and number.isdigit():
            points[kind][int(number)] = result["score"]["mean"]
    names = {"round": "with corrections", "plain": "plain imitation"}
    lines = [
        charts.Curve(names[kind], *zip(*scores.items(), strict=True))
        for kind, scores in points.items()
        if scores
    ]
    if lines:
        yield charts.curves("Score by round", lines, "round", "score", log=False)


def _score_chart(record: Record, of: Record) -> Iterator[Panel]:
    results = _of_set(record["results"], of)
    if len(record["sets"]) + len(results) >= 4:
        rows = [
            (_label(result), result["score"]["mean"], result["score_ci95"]) for result in results
        ]
        rows.insert(0, ("training data", of["score"], None))
        note = "“Training data” is the mean score of the episodes that were learned from."
        yield charts.intervals(_title("Score", record, of), rows, note)


def _asked_chart(record: Record, of: Record) -> Iterator[Panel]:
    """Scores of conditioned learners over the scores asked for."""
    lines = []
    for result in _of_set(record["results"], of):
        points = sorted((point["asked"], point["score"]["mean"]) for point in result["asked"])
        if len(points) > 1:
            lines.append(charts.Curve(_label(result), *zip(*points, strict=True)))
    if lines:
        ends = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
        best = fixed(of["score_best"], 0)
        note = f"Asked and returned in scores; the data’s best episode has {best}."
        lines.append(charts.Curve("as asked", ends, ends))
        title = _title("Asked and returned", record, of)
        yield charts.curves(title, lines, "return asked for", "score", note, log=False)


def _curve_chart(record: Record, of: Record) -> Iterator[Panel]:
    """The score of the policies that were kept during training, if more than the last was."""
    runs = _of_set(record["runs"], of)
    lines = []
    for name in dict.fromkeys(map(_label, runs)):
        curves = [dict(run["curve"]) for run in runs if _label(run) == name]
        steps = sorted(set.intersection(*(set(curve) for curve in curves)))
        shares = [step / steps[-1] for step in steps]
        means = [sum(curve[step] for curve in curves) / len(curves) for step in steps]
        lines.append(charts.Curve(name, shares, means))
    if any(len(line.x) > 1 for line in lines):
        note = "Means over the seeds. A run’s updates are 1."
        title = _title("During training", record, of)
        yield charts.curves(title, lines, "share of the updates", "score", note, log=False)


def _return_charts(record: Record, of: Record) -> Iterator[Panel]:
    for kind in ("terrain", "skill"):
        field = f"{kind}s"
        results = [result for result in _of_set(record["results"], of) if result[field]]
        if not results:
            continue
        groups = [words(group[kind]) for group in results[0][field]]
        series = [(_label(r), [group["return_fraction"] for group in r[field]]) for r in results]
        title = _title(f"Return by {kind}", record, of)
        yield charts.grouped_bars(title, groups, series, "of the expert’s return")


def _latency_chart(record: Record) -> Panel:
    """Each learner's time on the set where it is slowest, below the expert's."""
    slowest: dict[str, tuple[float, float | None]] = {}
    if (expert := record["expert"]) is not None:
        slowest[policy("expert")] = expert["latency_us_median"], expert["latency_us_p99"]
    for result in record["results"]:
        times = (result["latency_us_median"]["mean"], result["latency_us_p99"]["mean"])
        name = policy(result["learner"])
        slowest[name] = max(times, slowest.get(name, times), key=lambda pair: pair[0])
    budget = min(dataset["control_dt_s"] for dataset in record["sets"]) * 1e6
    return charts.latency(slowest, budget)


def abstract(record: Record) -> str:
    """The outcome in a few sentences, from the tables' numbers."""
    sets = record["sets"]
    results = record["results"]
    episodes = sum(dataset["episodes"] for dataset in sets)
    values_of = len({result["value"] for result in results})
    learners = amount(len({result["learner"] for result in results}), "learner")
    learners += f" with {values_of} values each" if values_of > 1 else ""
    where = f"{len(sets)} sets of episodes" if len(sets) > 1 else f"{count(episodes)} episodes"
    learnt = [result for result in results if result["return_fraction"]["mean"] is not None]
    if len(sets) > 1:
        outcome = "Score, as the interquartile mean over sets and seeds"
        values = [(result, fixed(result["iqm"], 1)) for result in _ranked(record["overall"])]
    elif learnt:
        levels = ", ".join(sorted({str(cell["level"]) for cell in record["cells"]}))
        outcome = f"Of the expert’s return they reach at terrain level {levels} of 0 to 9"
        learnt.sort(key=lambda result: result["return_fraction"]["mean"], reverse=True)
        values = [(result, spread(result["return_fraction"], 3)) for result in learnt]
    else:
        outcome = "Score"
        values = [(result, spread(result["score"], 1)) for result in results]
    colon = ": " if values_of > 1 else " "
    # Names may have commas.
    best = "; ".join(f"{_label(result)}{colon}{value}" for result, value in values)
    runs = len(record["runs"])
    return f"{learners} on {where}, {runs} trainings. {outcome}: {best}."


def first_runs(record: Record) -> list[str]:
    """The name of each learner's first run."""
    runs = {result["learner"]: result["runs"][0] for result in reversed(record["results"])}
    return list(runs.values())[::-1]


def best_run(record: Record) -> str:
    """The first run of the learner of the highest mean score; "" without one."""
    scored = [result for result in record["results"] if result["score"]["mean"] is not None]
    best = max(scored, key=lambda result: result["score"]["mean"], default=None)
    return best["runs"][0] if best else ""
