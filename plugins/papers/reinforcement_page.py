"""The page and the table of reinforcement learning, from `summary.json` alone."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from gaitforge.flows.experiments.page_files import page_address
from gaitforge.flows.experiments.summary import SUMMARY
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record
from gaitforge.pipeline.report import charts, pages
from gaitforge.pipeline.report.added_pages import write_evaluation_pages
from gaitforge.pipeline.report.charts import Curve, Panel
from gaitforge.pipeline.report.pages import DASH, Record, Section, count, fixed, write_sections
from gaitforge.pipeline.report.results import VERDICT_GROUPS, VERDICTS, verdict_rows
from gaitforge.pipeline.terminal import duration
from gaitforge.plugins.papers.measurements_page import page_title

_PLAYED = "The worst, the median and the best episode of each task's best run, to play."


def write_page(out: Path, reporter: Reporter) -> Path:
    """Write report.html from a folder's summary, and the episodes of the best run of each task."""
    summary = read_record(out / SUMMARY) or {}
    best = best_runs(summary)
    legged = [row["run"] for row in summary["runs"] if row["vx_error"] is not None]
    write_evaluation_pages(
        out, [run for run in best.values() if run in legged], reporter, ghosts=False
    )
    links = {page_address(out, run): f"{task}: {run}" for task, run in best.items()}
    links.pop("", None)  # no page
    page = out / "report.html"
    tables = [
        Section(
            "Results",
            "Means over the seeds ± their standard deviation, of mean actions in held-out "
            "episodes; in brackets the 95 % interval over the seeds. Above the first: by how much "
            "the mean return is higher than the first network's on that task; of the first: its "
            "share of that return, a dash where that is not above 0. Mean return in training: the "
            "area under the learning curve over its steps.",
            summary_rows(summary),
            groups=("task",),
        ),
        *_published(summary),
        Section(
            "Learning curves",
            "Mean return of the training's own episodes, with exploration and curriculum; thin "
            "lines are single seeds.",
            charts=list(_charts(summary)),
        ),
        *([Section("Episodes", _PLAYED, links=links)] if links else []),
        Section("All runs", rows=_run_rows(summary)),
    ]
    tasks, learners = (dict.fromkeys(row[name] for row in summary["runs"])
                       for name in ("task", "learner"))  # fmt: skip
    abstract = (
        f"{len(learners)} networks trained by PPO on {', '.join(tasks)}, {len(summary['runs'])} "
        "runs in all; actor and critic have the same settings."
    )
    title = page_title(summary["plan"], "Reinforcement learning")
    write_sections(page, title, abstract, tables)
    return page


def _published(summary: Record) -> list[Section]:
    """The section of the paper's statements; none without any."""
    rows = verdict_rows(summary)
    return [Section("Published", VERDICTS, rows, VERDICT_GROUPS)] if rows else []


def best_runs(summary: Record) -> dict[str, str]:
    """The run of the highest return on each task."""
    ordered = sorted(summary["runs"], key=lambda row: row["return"])
    return {row["task"]: row["run"] for row in ordered}


def summary_rows(summary: Record) -> list[dict[str, str]]:
    """A row for each task and learner, as text."""
    return [
        {
            "task": row["task"],
            "network": row["learner"],
            "parameters": count(row["parameters"]),
            "return": pages.spread(row["return"], 2, row["return_ci95"]),
            "above the first": fixed(row.get("over_first")),
            "of the first": fixed(row["of_first"]),
            "mean return in training": _optional(row["area"]),
            "success": pages.spread(row["success"], 2),
            "survival": pages.spread(row["survival"], 2),
            "speed error, m/s": _optional(row["vx_error"]),
            "training": duration(row["train_s"]["mean"]),
        }
        for row in summary["results"]
    ]


def _optional(measure: Record) -> str:
    return DASH if measure["mean"] is None else pages.spread(measure, 2)


def _run_rows(summary: Record) -> list[dict[str, str]]:
    names = ("return", "success", "survival")
    return [
        {
            "run": row["run"],
            **{name: fixed(row[name]) for name in names},
            "mean return in training": fixed(row["area"]),
            "speed error, m/s": fixed(row["vx_error"]),
            "steps": count(row["steps"]),
            "training": duration(row["train_s"]),
            "steps/s": count(row["steps_per_s"]),
            "control step, µs": fixed(row["latency_us_median"], 0),
        }
        for row in summary["runs"]
    ]


def _charts(summary: Record) -> Iterator[Panel]:
    """Return over steps, and over the seconds of training."""
    for task in dict.fromkeys(row["task"] for row in summary["runs"]):
        rows = [row for row in summary["runs"] if row["task"] == task]
        for unit, label in (("steps", "environment steps"), ("seconds", "seconds of training")):
            lines = [line for row in _by_learner(rows).items() for line in _lines(*row, unit)]
            yield charts.curves(f"Return: {task}", lines, label, "return", log=False)


def _by_learner(rows: Sequence[Record]) -> Mapping[str, Sequence[Record]]:
    names = dict.fromkeys(row["learner"] for row in rows)
    return {name: [row["curve"] for row in rows if row["learner"] == name] for name in names}


def _lines(learner: str, runs: Sequence[Record], unit: str) -> Iterator[Curve]:
    """The mean of the seeds, and each of several seeds thin."""
    if len(runs) > 1:
        for run in runs:
            yield Curve(learner, run[unit], run["return"], thin=True)
    points = min(len(run[unit]) for run in runs)
    mean = [
        [sum(run[name][k] for run in runs) / len(runs) for k in range(points)]
        for name in (unit, "return")
    ]
    yield Curve(learner, *mean)
