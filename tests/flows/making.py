"""A pipeline small enough for tests, and reporters that count or interrupt."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from gaitforge.collectors.legged.data import CollectionGrid
from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim, claim
from gaitforge.flows.experiments.page_files import card_of
from gaitforge.flows.experiments.plan import Corrections, Experiment
from gaitforge.flows.progress import Advance, Reporter, Silent
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.stage import run_stages
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.report.charts import Panel
from gaitforge.pipeline.report.experiment import stages_of
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


TRAINING = _settings("fcnet", "bc")
DEMO = Experiment(
    {"fcnet": _settings("fcnet", "return"), "bot": _settings("bot", "bc")},
    collect=replace(COLLECT, grid=replace(GRID, parts=2)),
    corrections=Corrections(
        replace(COLLECT, grid=replace(GRID, parts=1, seed=1000)), driver=TRAINING
    ),
    evaluate={
        "terrains": ("flat",),
        "skills": ("stand", "run"),
        "levels": (2,),
        "episodes": 2,
        "robots": 4,
    },
)
CLAIM = Claim("demo", DEMO)
LEAN = replace(CLAIM, experiment=replace(DEMO, learners={"fcnet": DEMO.learners["fcnet"]}))
"""`CLAIM` with one learner: every kind of stage, as few processes as can be."""

Results = tuple[str, dict[str, Any]]
"""The dataset's hash, and all episodes' returns."""


def small_run(folder: Path) -> Path:
    """A few steps of training of a small return-conditioned FCNet."""
    make_selection(folder / "walks.zarr")
    plan = TrainPlan(SelectPlan(), TrainConfig(**_settings("fcnet", "return")))
    run_training(plan, folder / "walks.zarr", folder / "run", Silent())
    return folder / "run"


def unplotted() -> Any:
    """Charts are not drawn in the block: those of a store's card take matplotlib seconds."""

    def panel(axes: Any, title: str, description: str, note: str = "") -> Panel:
        return Panel(title, "<svg></svg>", note)

    return patch("gaitforge.pipeline.report.charts.panel", panel)


def blank_card(store: Path, _: Reporter) -> None:
    """An empty page instead of a store's card."""
    page = card_of(store)
    page.parent.mkdir(exist_ok=True)
    page.touch()


def run_experiment(
    made: Claim, out: Path, reporter: Reporter, pages: bool = False
) -> dict[str, Any]:
    """Run or resume an experiment in this process, without pages or with them; its summary."""
    if pages:
        stages = stages_of(made, out)
    else:
        with patch("gaitforge.pipeline.report.experiment.write_store_card", blank_card):
            stages = stages_of(made, out)
        stages = [each for each in stages if each.name.split()[0] not in ("show", "report")]
    claim(made, out)
    run_stages(out, stages, reporter)
    return read_record(out / "summary.json") or {}


def results(out: Path) -> Results:
    """What every run of a pipeline's plan must give."""
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
