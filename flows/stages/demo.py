"""The pipeline at small scale: collect, describe, train, evaluate, summarise."""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from collectors.experts.expert import load_expert
from collectors.intervals import Interval, ratio_interval
from collectors.legged.data import COLLECTION_PRESETS
from collectors.legged.evaluation import CellResult, EvaluationGrid
from collectors.legged.rewards import LARGEST_RETURN
from collectors.scenarios.skills import SKILLS
from collectors.scenarios.terrains import TERRAINS
from collectors.timing import EPISODE_STEPS
from datasets import StoreInfo, open_store
from flows.progress import Reporter
from flows.records.part_records import collection_rate, part_records
from flows.records.plans import plan_from_tree
from flows.records.records import provenance, read_record, to_tree, write_record
from flows.stages.collect import collect
from flows.stages.dagger import of_parts
from flows.stages.evaluate import (
    EvaluatePlan,
    PolicyEvaluation,
    PolicyMeasures,
    PolicySource,
    evaluate_policy,
)
from flows.stages.overview import dataset_overview
from flows.stages.train import SelectPlan, TrainPlan, run_training
from flows.tasks.legged import LeggedPlan
from flows.tasks.legged_policy import driven_by
from learners.training.config import TrainConfig
from learners.training.train import TrainResult

STORE = "legged.zarr"
SUMMARY = "summary.json"
WALL = "wall.json"
EXPERT_CARD = "expert.json"

# A window is a whole episode, so every step has its full history. A training takes a minute.
_FCNET_BUDGET = {
    "steps": 3000,
    "batch_size": 8,
    "window_len": EPISODE_STEPS,
    "peak_lr": 8e-3,
    "warmup_fraction": 0.2,
    "ema_decay": 0.995,
}
_BOT_BUDGET = {"steps": 3000}
_FIRST_BUDGET = {**_FCNET_BUDGET, "steps": 1200}
_DEMO = COLLECTION_PRESETS["demo"]


def _training(model: str, objective: str, **settings: Any) -> TrainPlan:
    config = TrainConfig.recommended(model, objective=objective, **settings)
    return TrainPlan(SelectPlan(), config)


@dataclass(frozen=True)
class DemoPlan:
    """The demo's plan. Sizes fit two cores, seven minutes and 4 GiB.

    `first` trains the policy that drives in `corrections`: a round of DAgger, see `stages.dagger`.
    """

    collect: LeggedPlan = field(default_factory=lambda: LeggedPlan(grid=_DEMO))
    first: TrainPlan = field(default_factory=lambda: _training("fcnet", "bc", **_FIRST_BUDGET))
    corrections: LeggedPlan = field(
        default_factory=lambda: LeggedPlan(grid=replace(_DEMO, parts=_DEMO.parts // 2, seed=1000))
    )
    fcnet: TrainPlan = field(default_factory=lambda: _training("fcnet", "bc", **_FCNET_BUDGET))
    bot: TrainPlan = field(default_factory=lambda: _training("bot", "bc", **_BOT_BUDGET))
    fcnet_rc: TrainPlan = field(
        default_factory=lambda: _training("fcnet", "return", **_FCNET_BUDGET)
    )
    evaluate: EvaluatePlan = field(
        default_factory=lambda: EvaluatePlan(
            grid=EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), levels=(4,), episodes=20),
            robots=240,
        )
    )

    def learned(self) -> dict[str, TrainPlan]:
        """The policies that are trained, by name."""
        return {"fcnet": self.fcnet, "bot": self.bot, "fcnet_rc": self.fcnet_rc}


@dataclass(frozen=True)
class PolicySummary(PolicyMeasures):
    """A policy's measures; `return_fraction` is of the expert's return on the same episodes."""

    return_fraction: float
    return_fraction_ci95: Interval | None = field(default=None, kw_only=True)
    train_s: float | None


@dataclass(frozen=True)
class DemoSummary:
    """What `summary.json` holds; `wall_s` of all calls; `largest_return` possible in an episode."""

    dataset: StoreInfo
    collect: Mapping[str, float]
    policies: Mapping[str, PolicySummary]
    cells: tuple[CellResult, ...]
    largest_return: float
    git_revision: str
    versions: Mapping[str, str]
    machine: str
    wall_s: float
    command: str


def describe(store: Path, path: Path) -> StoreInfo:
    """Write what a store holds into the file `path`; returns its sizes."""
    write_record(path, dataset_overview(store))
    return open_store(store).info()


@dataclass(frozen=True)
class DemoStages:
    """The stages as functions of this process; `flows.demo` has them as Prefect tasks."""

    collect: Callable[[LeggedPlan, Path, Reporter], Any] = collect
    describe: Callable[[Path, Path], StoreInfo] = describe
    train: Callable[[TrainPlan, Path, Path, Reporter], TrainResult] = run_training
    evaluate: Callable[[PolicySource, EvaluatePlan, Reporter, Path], PolicyEvaluation] = (
        evaluate_policy
    )


def run_demo(
    plan: DemoPlan, out: Path, reporter: Reporter, stages: DemoStages | None = None
) -> DemoSummary:
    """Run or resume the demo in `out`; returns what `summary.json` holds.

    Raises:
        ValueError: `out` cannot be written, or holds a demo of another plan.
    """
    stages = stages or DemoStages()
    _claim(plan, out)
    store = out / STORE
    with _timed(out, "collect"):
        stages.collect(plan.collect, store, reporter)
    write_record(out / EXPERT_CARD, load_expert(plan.collect.expert).card)
    with _timed(out, "train first"):
        first = replace(plan.first.select, where=of_parts(plan.collect.part_ids()))
        stages.train(replace(plan.first, select=first), store, out / "train/first", reporter)
    with _timed(out, "collect corrections"):
        driven = driven_by(plan.corrections, str(out / "train/first"), plan.corrections.expert)
        stages.collect(driven, store, reporter)
    with _timed(out, "describe"):
        info = stages.describe(store, out / "dataset.json")
    trained: dict[str, TrainResult] = {}
    for name, training in plan.learned().items():
        with _timed(out, f"train {name}"):
            trained[name] = stages.train(training, store, out / "train" / name, reporter)
    sources = [PolicySource("expert", expert=plan.collect.expert)]
    sources += [PolicySource(name, out / "train" / name) for name in trained]
    evaluations = {}
    for source in sources:
        path = out / "evaluate" / f"{source.name}.json"
        with _timed(out, f"evaluate {source.name}"):
            evaluations[source.name] = stages.evaluate(source, plan.evaluate, reporter, path)
    steps_per_s = collection_rate(part_records(store, plan.collect.part_ids()))
    summary = DemoSummary(
        dataset=info,
        # Every ground is a height field here, flat ones included: one rate serves both names.
        collect={"steps_per_s": steps_per_s, "terrain_steps_per_s": steps_per_s},
        policies=_policies(plan, trained, evaluations),
        cells=tuple(cell for each in evaluations.values() for cell in each.cells),
        largest_return=LARGEST_RETURN,
        wall_s=sum(entry["seconds"] for entry in read_record(out / WALL) or []),
        command=f"gaitforge demo --out {out.name if out.is_absolute() else out}",
        **provenance(),
    )
    write_record(out / SUMMARY, summary)
    return summary


def _claim(plan: DemoPlan, out: Path) -> None:
    """Write the plan, or check that the one in the folder is this one."""
    known = read_record(out / "plan.json")
    # An older version's plan lacks the settings that are new.
    if known is not None and to_tree(plan_from_tree(DemoPlan, known["plan"])) != to_tree(plan):
        raise ValueError(
            f"{out} holds a demo with other settings; choose another --out or remove it"
        )
    if known is None:
        write_record(out / "plan.json", {"plan": plan, **provenance()})


def _policies(
    plan: DemoPlan,
    trained: Mapping[str, TrainResult],
    evaluations: Mapping[str, PolicyEvaluation],
) -> dict[str, PolicySummary]:
    train_s: dict[str, float | None] = {name: result.train_s for name, result in trained.items()}
    train_s["expert"] = load_expert(plan.collect.expert).card.get("wall_s")
    return {
        name: PolicySummary(
            **{measure.name: getattr(each, measure.name) for measure in fields(PolicyMeasures)},
            return_fraction=each.return_ / evaluations["expert"].return_,
            return_fraction_ci95=ratio_interval(each.returns, evaluations["expert"].returns),
            train_s=train_s[name],
        )
        for name, each in evaluations.items()
    }


@contextmanager
def _timed(out: Path, stage: str) -> Iterator[None]:
    """Add a stage's seconds to a file: a resumed demo's time is that of all its runs."""
    started = time.perf_counter()
    try:
        yield
    finally:
        seconds = round(time.perf_counter() - started, 3)
        known = read_record(out / WALL) or []
        write_record(out / WALL, [*known, {"stage": stage, "seconds": seconds}])
