"""A pipeline small enough for tests, and reporters that count or interrupt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.datasets import open_store
from gaitforge.flows.progress import Advance, Reporter, Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.pipeline.plan import CorrectionsPlan, PipelinePlan
from gaitforge.flows.stages.pipeline.stages import claim
from gaitforge.flows.stages.staging import run_stages
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.report.pipeline import stages_of
from tests.learners.making import SMALL, make_selection

GRID = CollectionGrid(
    terrains=("flat", "rough"),
    skills=("stand", "run"),
    levels=(2,),
    parts=3,
    episodes_per_part=8,
)
COLLECT = LeggedPlan(grid=GRID, robots=8, threads=1)


def _settings(model: str, objective: str) -> dict[str, Any]:
    return {
        "model": model,
        "model_overrides": SMALL[model],
        "objective": objective,
        "steps": 3,
        "batch_size": 4,
        "window_len": 8,
        "held_out_fraction": 0.5,
        "history_every": 1,
        "validation_every": 2,
        "validation_batches": 1,
        "checkpoint_every": 2,
        "threads": 1,
    }


TRAINING = TrainPlan(SelectPlan(), TrainConfig(**_settings("fcnet", "bc")))
DEMO = PipelinePlan(
    collect=replace(COLLECT, grid=replace(GRID, parts=2)),
    corrections=CorrectionsPlan(
        TRAINING.config, replace(COLLECT, grid=replace(GRID, parts=1, seed=1000))
    ),
    models={"fcnet": _settings("fcnet", "return"), "bot": _settings("bot", "bc")},
    evaluate=LeggedEvaluation(
        grid=EvaluationGrid(("flat",), ("stand", "run"), levels=(2,), episodes=2), robots=4
    ),
)


def small_run(folder: Path) -> Path:
    """A few steps of training of a small return-conditioned FCNet."""
    make_selection(folder / "walks.zarr")
    plan = TrainPlan(SelectPlan(), TrainConfig(**_settings("fcnet", "return")))
    run_training(plan, folder / "walks.zarr", folder / "run", Silent())
    return folder / "run"


def run_pipeline(plan: PipelinePlan, out: Path, reporter: Reporter) -> dict[str, Any]:
    """Run or resume a pipeline in this process; its summary."""
    claim(plan, out)
    run_stages(out, stages_of(plan, out), reporter)
    return read_record(out / "summary.json") or {}


def plain_results(out: Path) -> tuple[str, dict[str, Any]]:
    """The results of `DEMO` from one undisturbed process, which draws no pages."""
    claim(DEMO, out)
    pages = ("describe", "compare", "report")
    stages = [each for each in stages_of(DEMO, out) if each.name.split()[0] not in ("show", *pages)]
    run_stages(out, stages, Silent())
    return results(out)


def results(out: Path) -> tuple[str, dict[str, Any]]:
    """What every run of a pipeline's plan must give: the dataset's hash, all episodes' returns."""
    files = sorted((out / "evaluate").glob("*.json"))
    returns = {path.stem: (read_record(path) or {})["returns"] for path in files}
    return open_store(out / "legged.zarr").info().hash, returns


@dataclass
class Counting:
    """A reporter that counts the units of work of every step."""

    units: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        self.units.setdefault(name, 0)

        def advance(n: int, note: str) -> None:
            self.units[name] += n

        yield advance

    def say(self, text: str) -> None:
        """Nothing is shown."""


class Stop(Exception):
    """What an interrupting reporter raises."""


@dataclass
class Interrupting(Counting):
    """A reporter that raises one time, once a step has made some units of work."""

    after: int = 0
    error: type[BaseException] = Stop
    raised: bool = False

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        with super().step(name, total, unit, done) as count:

            def advance(n: int, note: str) -> None:
                count(n, note)
                if self.units[name] >= self.after and not self.raised:
                    self.raised = True
                    raise self.error

            yield advance


def without_times(summary: dict[str, Any]) -> dict[str, Any]:
    """A summary without the seconds that the runs took."""
    return {name: value for name, value in summary.items() if name != "wall_s"}
