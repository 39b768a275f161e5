"""A comparison on a task's sets as one self-contained HTML page, from `comparison.json` alone.

The page loads nothing and needs no script; the same file gives the same bytes.
"""

from collections.abc import Sequence
from pathlib import Path

from datasets.errors import amount
from datasets.formats.d4rl.tasks import TASKS as D4RL_TASKS
from flows.records.records import read_record
from flows.stages.gym.comparison import COMPARISON, FROM_D4RL, OURS, PUBLISHED_TARGETS
from pipeline.report import charts, pages
from pipeline.report.figures import Panel

PAGE_NAME = "comparison.html"
KIND_NAMES = {"fcnet": "FCNet", "dt": "DT"}
BEST = "target: best return"
NONE: pages.Record = {"mean": None, "std": None}
SOURCE = "Tan et al. 2024, Table 2"

PUBLISHED: dict[tuple[str, str], dict[str, tuple[float, float]]] = {
    ("halfcheetah", "medium-expert"): {"fcnet": (91.2, 0.3), "dt": (86.8, 1.3)},
    ("walker2d", "medium-expert"): {"fcnet": (108.8, 0.1), "dt": (108.1, 0.2)},
    ("hopper", "medium-expert"): {"fcnet": (110.5, 0.5), "dt": (107.6, 1.8)},
    ("halfcheetah", "medium"): {"fcnet": (42.9, 0.4), "dt": (42.6, 0.1)},
    ("walker2d", "medium"): {"fcnet": (75.2, 0.5), "dt": (74.0, 1.4)},
    ("hopper", "medium"): {"fcnet": (57.8, 6.0), "dt": (67.6, 1.0)},
    ("halfcheetah", "medium-replay"): {"fcnet": (39.8, 0.8), "dt": (36.6, 0.8)},
    ("walker2d", "medium-replay"): {"fcnet": (63.5, 7.5), "dt": (66.6, 3.0)},
    ("hopper", "medium-replay"): {"fcnet": (85.8, 1.7), "dt": (82.7, 7.0)},
}
"""(task, set) -> kind of model -> (mean, spread over three seeds) of D4RL's normalised score.

Tan et al. 2024 (Fourier Controller Networks), Table 2; the columns FCNet and DT.
"""


def write_gym_comparison(folder: Path) -> Path:
    """Write `comparison.html` into a comparison's folder; returns its path.

    Raises:
        ValueError: there is no comparison, or the folder cannot be written.
    """
    record = read_record(folder / COMPARISON)
    if record is None:
        raise ValueError(f"no comparison in {folder}; `gaitforge gym compare` makes one")
    pages.write_texts(folder, {PAGE_NAME: gym_comparison_page(record)})
    return folder / PAGE_NAME


def gym_comparison_page(record: pages.Record) -> str:
    """The page of a comparison's record, as text."""
    return pages.render(
        "gym_comparison.html",
        abstract=_abstract(record),
        record=record,
        columns=[label for label, _ in _series(record)],
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
        plan=list(pages.flattened(record["plan"])),
    )


def result_rows(record: pages.Record) -> list[dict[str, str]]:
    """A row for every model on every set, as text; ± is the standard deviation over the seeds."""
    return [
        {
            "set": result["set"],
            "model": result["model"],
            "seeds": pages.count(len(result["seeds"])),
            "normalised": pages.spread(result["normalised"], 1),
            "target: best return": pages.spread(result["normalised_asked_best"], 1),
            "published": pages.spread(
                published(record["task"], result["set"], record["models"][result["model"]]), 1
            ),
            "the data's mean": pages.fixed(record["sets"][result["set"]]["normalised"], 1),
            "return": pages.spread(result["return"], 0),
            "length": pages.spread(result["length"], 0),
            "by D4RL's returns": pages.spread(result["d4rl_normalised"], 1),
        }
        for result in record["results"]
    ]


def published(task: str, set_name: str, kind: str) -> dict[str, float | None]:
    """{"mean", "std"} of one kind of model on one set; both None where nothing was published."""
    mean, std = PUBLISHED.get((task, set_name), {}).get(kind, (None, None))
    return {"mean": mean, "std": std}


def _abstract(record: pages.Record) -> str:
    """The outcome in a few sentences, from the table's numbers."""
    sets, models = record["sets"], record["models"]
    text = (
        f"{_listed([_title(record, model) for model in models])} learned {record['env']} from "
        f"{amount(len(sets), 'set')} of episodes, {_number_of_seeds(record)}."
    )
    for name in sets:
        reached = [
            f"{_title(record, result['model'])} {pages.spread(result['normalised'], 1)}"
            for result in record["results"]
            if result["set"] == name
        ]
        text += f" {name}: {', '.join(reached)}."
    return f"{text} 100 is the expert, 0 a random policy."


def _number_of_seeds(record: pages.Record) -> str:
    numbers = sorted({len(result["seeds"]) for result in record["results"]})
    text = str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    return f"{text} seed{'s' * (numbers != [1])} each"


def _title(record: pages.Record, model: str) -> str:
    """FCNet for the only preset of its kind, else the preset's name."""
    kind = record["models"][model]
    alone = list(record["models"].values()).count(kind) == 1
    return KIND_NAMES.get(kind, model) if alone else model


def _series(record: pages.Record) -> list[tuple[str, list[pages.Record]]]:
    """A label and a score per set: what every model reached, and what was published of it."""
    series = []
    for model, kind in record["models"].items():
        title = _title(record, model)
        known = [published(record["task"], name, kind) for name in record["sets"]]
        results = {each["set"]: each for each in record["results"] if each["model"] == model}
        for label, measure in (("ours", "normalised"), (BEST, "normalised_asked_best")):
            scores = (results.get(name, {measure: NONE})[measure] for name in record["sets"])
            series.append((f"{title}, {label}", list(scores)))
        if any(each != NONE for each in known):
            series.append((f"{title}, published", known))
    return series


def _score_table(record: pages.Record) -> list[tuple[str, list[str]]]:
    """A row per set: mean and best of the data, then every model's and the published scores."""
    scores = zip(*(scores for _, scores in _series(record)), strict=True)
    return [
        (
            name,
            [pages.fixed(data["normalised"], 1), pages.fixed(data["normalised_best"], 1)]
            + [pages.spread(score, 1) for score in across],
        )
        for (name, data), across in zip(record["sets"].items(), scores, strict=True)
    ]


def _score_chart(record: pages.Record) -> Panel:
    means = [{"mean": data["normalised"], "std": None} for data in record["sets"].values()]
    shown = [each for each in _series(record) if not each[0].endswith(BEST)]
    bars = [
        charts.BarSeries(label, [s["mean"] for s in scores], [s["std"] for s in scores])
        for label, scores in [("the data’s mean", means), *shown]
    ]
    return charts.grouped_bars(
        "Normalised score by set", list(record["sets"]), bars, 100.0, "normalised score",
        "The dashed line is the expert of each one’s own data.",
    )  # fmt: skip


def _training_rows(record: pages.Record) -> list[dict[str, str]]:
    return [
        {
            "run": run["run"],
            "parameters": pages.count(run["parameters"]),
            "updates": pages.count(run["steps"]),
            "training": pages.duration(run["train_s"]),
            "validation loss": pages.fixed(run["validation_loss"], 4),
            "target return": pages.fixed(run["return_target"]),
            "normalised": pages.fixed(run["normalised"], 1),
            "target: best return": pages.fixed(run["normalised_asked_best"], 1),
            "return": pages.fixed(run["return"], 0),
            "length": pages.fixed(run["length"], 0),
        }
        for run in record["runs"]
    ]


def _sizes(record: pages.Record) -> list[tuple[str, pages.Record]]:
    """Every model with one of its results, all of which are of the same size."""
    by_model = {result["model"]: result for result in record["results"]}
    return [(_title(record, model), by_model[model]) for model in record["models"]]


def _targets_are_published(record: pages.Record) -> bool:
    targets = record["plan"]["return_targets"]
    return all(targets[name] == PUBLISHED_TARGETS.get(name) for name in record["sets"])


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
