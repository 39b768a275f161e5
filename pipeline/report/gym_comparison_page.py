"""A comparison on a task's sets as one self-contained HTML page, from `comparison.json` alone.

The page loads nothing and needs no script; the same file gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from flows.records.records import read_record
from flows.stages.gym.comparison import COMPARISON, FROM_D4RL, OURS, PUBLISHED_TARGETS
from pipeline.report import charts
from pipeline.report.figures import Panel
from pipeline.report.gym_published import PUBLISHED, SOURCE, published
from pipeline.report.pages import (
    DASH,
    Record,
    count,
    duration,
    fixed,
    flattened,
    render,
    spread,
    write_texts,
)

PAGE_NAME = "comparison.html"
KIND_NAMES = {"fcnet": "FCNet", "dt": "DT"}


def write_gym_comparison(folder: Path) -> Path:
    """Write `comparison.html` into a comparison's folder; returns its path.

    Raises:
        ValueError: there is no comparison, or the folder cannot be written.
    """
    record = read_record(folder / COMPARISON)
    if record is None:
        raise ValueError(f"no comparison in {folder}; `gaitforge gym compare` makes one")
    write_texts(folder, {PAGE_NAME: gym_comparison_page(record)})
    return folder / PAGE_NAME


def gym_comparison_page(record: Record) -> str:
    """The page of a comparison's record, as text."""
    return render(
        "gym_comparison.html",
        abstract=_abstract(record),
        record=record,
        columns=_columns(record),
        table=_score_table(record),
        chart=_score_chart(record),
        results=result_rows(record),
        source=SOURCE,
        seeds=_number_of_seeds(record),
        trained=_training_rows(record),
        d4rl=D4RL_TASKS[record["task"]],
        sizes=_sizes(record),
        published_targets=_targets_are_published(record),
        ours=record["recorded_by"] == OURS,
        from_d4rl=record["recorded_by"] == FROM_D4RL,
        plan=list(flattened(record["plan"])),
    )


def result_rows(record: Record) -> list[dict[str, str]]:
    """A row for every model on every set, as text; ± is the standard deviation over the seeds."""
    return [
        {
            "set": result["set"],
            "model": result["model"],
            "seeds": count(len(result["seeds"])),
            "normalised": spread(result["normalised"], 1),
            "asked for the best": spread(result["normalised_asked_best"], 1),
            "published": spread(_published(record, result["set"], result["model"]), 1),
            "the data's mean": fixed(record["sets"][result["set"]]["normalised"], 1),
            "return": spread(result["return"], 0),
            "length": spread(result["length"], 0),
            "by D4RL's returns": spread(result["d4rl_normalised"], 1),
        }
        for result in record["results"]
    ]


def _abstract(record: Record) -> str:
    """The outcome in a few sentences, from the table's numbers."""
    sets, models = record["sets"], record["models"]
    text = (
        f"{_listed([_title(record, model) for model in models])} learned {record['env']} from "
        f"{len(sets)} set{'s' * (len(sets) != 1)} of episodes, {_number_of_seeds(record)}."
    )
    for name in sets:
        reached = [
            f"{_title(record, result['model'])} {spread(result['normalised'], 1)}"
            for result in record["results"]
            if result["set"] == name
        ]
        text += f" {name}: {', '.join(reached)}."
    return f"{text} 100 is the expert, 0 a random policy."


def _number_of_seeds(record: Record) -> str:
    numbers = sorted({len(result["seeds"]) for result in record["results"]})
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{text} seed{'s' * (numbers != [1])} each"


def _title(record: Record, model: str) -> str:
    """FCNet for the only preset of its kind, else the preset's name."""
    kind = record["models"][model]
    alone = list(record["models"].values()).count(kind) == 1
    return KIND_NAMES.get(kind, model) if alone else model


def _columns(record: Record) -> list[str]:
    heads = []
    for model in record["models"]:
        heads += [f"{_title(record, model)}, ours", f"{_title(record, model)}, asked for the best"]
        if _has_published(record, model):
            heads.append(f"{_title(record, model)}, published")
    return heads


def _score_table(record: Record) -> list[tuple[str, list[str]]]:
    """A row a set: what the data themselves reach, then every model's score and the published."""
    rows = []
    for name, data in record["sets"].items():
        cells = [fixed(data["normalised"], 1), fixed(data["normalised_best"], 1)]
        for model in record["models"]:
            result = _result(record, name, model)
            cells += [
                DASH if result is None else spread(result[measure], 1)
                for measure in ("normalised", "normalised_asked_best")
            ]
            if _has_published(record, model):
                cells.append(spread(_published(record, name, model), 1))
        rows.append((name, cells))
    return rows


def _score_chart(record: Record) -> Panel:
    names = list(record["sets"])
    data = [record["sets"][name] for name in names]
    series = [
        charts.BarSeries("the data’s mean", [each["normalised"] for each in data], _none(names))
    ]
    for model in record["models"]:
        results = [_result(record, name, model) for name in names]
        scores = [
            {"mean": None, "std": None} if each is None else each["normalised"] for each in results
        ]
        series.append(_bars(f"{_title(record, model)}, ours", scores))
        if _has_published(record, model):
            known = [_published(record, name, model) for name in names]
            series.append(_bars(f"{_title(record, model)}, published", known))
    return charts.grouped_bars(
        "Normalised score by set", names, series, 100.0, "normalised score",
        "The dashed line is the expert of each one’s own data.",
    )  # fmt: skip


def _bars(label: str, scores: Sequence[Record]) -> charts.BarSeries:
    return charts.BarSeries(
        label, [each["mean"] for each in scores], [each["std"] for each in scores]
    )


def _none(names: Sequence[str]) -> list[None]:
    return [None] * len(names)


def _training_rows(record: Record) -> list[dict[str, str]]:
    return [
        {
            "run": run["run"],
            "parameters": count(run["parameters"]),
            "updates": count(run["steps"]),
            "training": duration(run["train_s"]),
            "validation loss": fixed(run["validation_loss"], 4),
            "asked for": fixed(run["return_target"]),
            "normalised": fixed(run["normalised"], 1),
            "asked for the best": fixed(run["normalised_asked_best"], 1),
            "return": fixed(run["return"], 0),
            "length": fixed(run["length"], 0),
        }
        for run in record["runs"]
    ]


def _sizes(record: Record) -> list[tuple[str, Record]]:
    """Every model with one of its results, all of which are of the same size."""
    by_model = {result["model"]: result for result in record["results"]}
    return [(_title(record, model), by_model[model]) for model in record["models"]]


def _targets_are_published(record: Record) -> bool:
    targets = record["plan"]["return_targets"]
    return all(targets[name] == PUBLISHED_TARGETS.get(name) for name in record["sets"])


def _result(record: Record, set_name: str, model: str) -> Record | None:
    return next(
        (each for each in record["results"] if (each["set"], each["model"]) == (set_name, model)),
        None,
    )


def _has_published(record: Record, model: str) -> bool:
    return any(
        record["models"][model] in PUBLISHED.get((record["task"], name), {})
        for name in record["sets"]
    )


def _published(record: Record, set_name: str, model: str) -> Record:
    return published(record["task"], set_name, record["models"][model])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
