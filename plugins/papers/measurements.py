"""Measurements: figures of a paper that need no training, each at the points of its axes.

plan.json, measure/<measure>-<axis>-<value>.json, summary.json, report.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import check_kept, other_experiment
from gaitforge.flows.experiments.plan import Published, Settings, file_name, number_text, verdicts
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.experiments.summary import grouped_by, needed
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import digest, to_tree, write_record
from gaitforge.flows.settings import override, with_named
from gaitforge.flows.stages.stage import RecordedStage, Stage
from gaitforge.learners.training.train import torch_threads
from gaitforge.plugins.papers.measures.attention import Attention
from gaitforge.plugins.papers.measures.control_steps import ControlStep
from gaitforge.plugins.papers.measures.interface import Measure, Point
from gaitforge.plugins.papers.measures.spectra import Spectra
from gaitforge.plugins.papers.measures.timing import machine
from gaitforge.plugins.papers.measures.training_steps import TrainMemory, TrainStep

MEASURES: Mapping[str, type[Measure]] = {
    "spectra": Spectra,
    "control-step": ControlStep,
    "train-step": TrainStep,
    "train-memory": TrainMemory,
    "attention": Attention,
}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class MeasurementPlan(StagedPlan):
    """Plan of measurements and their repeats.

    Attributes:
        measures: names of `MEASURES` -> settings in place of the measure's own; its axes are
            settings, too.
        stores: datasets, for measures that read them.
        repeats: figures of every candidate at a point; it counts with their median.
        threads: of PyTorch.
        published: a paper's statements about candidates, told at every point that has both; a
            repeat counts as a seed.
        title: of the page: the paper, and its figure or table.
    """

    kind: ClassVar[str] = "measurement"

    measures: Mapping[str, Settings]
    stores: tuple[str, ...] = ()
    repeats: int = 7
    threads: int = 1
    published: tuple[Published, ...] = ()
    title: str = ""

    def __post_init__(self) -> None:
        if not self.measures:
            raise ValueError(f"measurements need measures; allowed: {', '.join(MEASURES)}")
        if self.repeats < 1 or self.threads < 1:
            raise ValueError("repeats and threads must be at least 1")
        measures = [self.measure(name) for name in self.measures]
        if self.stores and not any(measure.reads_stores for measure in measures):
            raise ValueError(f"{', '.join(self.measures)}: these measure no stores")
        if not self.points():
            raise ValueError("there is nothing to measure: no axis has values")

    def measure(self, name: str) -> Measure:
        """A measure with its settings; ValueError for one that does not exist."""
        if name not in MEASURES:
            raise ValueError(f"no measure '{name}'; allowed: {', '.join(MEASURES)}")
        settings = self.measures[name]
        if not isinstance(settings, Mapping):
            raise ValueError(f'{name} needs settings like {{"steps": 3}}, not {settings!r}')
        return plan_from_tree(MEASURES[name], to_tree(settings))

    def points(self) -> list[tuple[str, Point]]:
        """Every measure with each of its points."""
        points = []
        for name in self.measures:
            try:
                measure_points = dict.fromkeys(self.measure(name).points(self.stores))
                points += [(name, point) for point in measure_points]
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from None
        return points

    def with_options(self, values: Mapping[str, Any], settings: Sequence[str]) -> "MeasurementPlan":
        """The plan with chosen `threads`, then with the settings."""
        threads = {"threads": values["threads"]} if "threads" in values else {}
        return override(with_named(self, threads), settings)

    def check_grown(self, old: "MeasurementPlan", out: Path) -> None:
        """Raise ValueError unless it measures as its folder's does, maybe at other points."""
        for name in ("repeats", "threads"):
            if getattr(old, name) != getattr(self, name):
                raise other_experiment(out, f"another number of {name}")
        check_kept(out, "stores", old.stores, self.stores)
        for name in old.measures.keys() & self.measures.keys():
            was = old.measure(name)
            now = self.measure(name)
            for setting in to_tree(was).keys() - set(was.axes):
                if to_tree(was)[setting] != to_tree(now)[setting]:
                    raise other_experiment(out, f"another {setting} of {name}")

    def work(self, out: Path) -> list[Stage]:
        """A stage for each point; times are taken one after another."""
        stages: list[Stage] = []
        timed = any(self.measure(name).timed for name in self.measures)
        for name, point in self.points():
            measure = self.measure(name)
            title = _title(name, point)
            stores = self.stores if measure.reads_stores else ()
            hashes = [open_store(store).info().hash for store in stores]
            settings = {
                k: v for k, v in to_tree(measure).items() if k not in measure.axes and v != {}
            }
            key = digest([name, settings, point, self.repeats, self.threads, stores, hashes])
            path = _path(out, name, point)
            run = partial(_measure, self, name, point, path)
            after = (stages[-1].name,) if timed and stages else ()
            stages.append(
                RecordedStage(title, key, run=run, outputs=(path,), after=after, waits=True)
            )
        return stages

    def summary(self, out: Path) -> dict[str, Any]:
        """A row for each candidate at each point, and the verdicts on what was published."""
        rows: list[Row] = []
        told: list[Row] = []
        machines: dict[str, Row] = {}
        for name, point in self.points():
            record = needed(_path(out, name, point))
            machines[str(record["machine"])] = record["machine"]
            rows += [_row(self.measure(name), name, point, series) for series in record["series"]]
        for group in grouped_by(rows, ("measure", "axis")):
            told += self._verdicts(group)
        return {"rows": rows, "verdicts": told, "machines": list(machines.values())}

    def _verdicts(self, group: Sequence[Row]) -> list[Row]:
        """What the rows of a measure along an axis tell of the statements."""
        first = group[0]
        runs = [
            {"learner": row["series"], "value": row["value"], "seed": repeat, "figure": figure}
            for row in group
            for repeat, figure in enumerate(row["figures"])
        ]
        less = self.measure(first["measure"]).less_is_better
        title = f"{first['title'].lower()}, {first['unit']}: {first['axis']}"
        told = verdicts(self.published, runs, "figure", less_is_better=less)
        return [{"set": title, "unit": first["unit"], **row} for row in told]


def _title(name: str, point: Point) -> str:
    axis, value = point
    # An axis may hold names of a store and of its fields, which can be any text.
    words = [name, *(file_name(word) for word in axis.split(" "))]
    return " ".join(words if value is None else [*words, number_text(value)])


def _path(out: Path, name: str, point: Point) -> Path:
    return out / "measure" / f"{_title(name, point).replace(' ', '-')}.json"


def _measure(
    plan: MeasurementPlan, name: str, point: Point, path: Path, reporter: Reporter
) -> None:
    measure = plan.measure(name)
    with (
        torch_threads(plan.threads),
        reporter.step(_title(name, point), plan.repeats + 1, "turn") as advance,
    ):
        series = list(measure.series(point, plan.repeats, plan.stores, advance))
    write_record(path, {"series": series, "machine": machine()})


def _row(measure: Measure, name: str, point: Point, series: Row) -> Row:
    low, median, high = np.percentile(series["values"], [25, 50, 75])
    return {
        "measure": name,
        "title": measure.title,
        "unit": measure.unit,
        "axis": point[0],
        "value": point[1],
        "series": series["name"],
        "median": median,
        "quartiles": [low, high],
        "figures": series["values"],
        "facts": series["facts"],
        "spectrum": series["spectrum"],
    }
