"""A comparison of models on legged data: as many steps or as much time, the same episodes for all.

Finished runs, tests and evaluations are kept: the next call resumes an interrupted comparison, or
adds models and seeds to a finished one.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import DEFAULT_EXPERT, load_expert
from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.collectors.legged.observations import POLICY_SLICES
from gaitforge.collectors.legged.rewards import LARGEST_RETURN
from gaitforge.collectors.robots.robot import load_robot
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.datasets import Selection
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import (
    kept_record,
    prepare_folder,
    provenance,
    to_tree,
    write_record,
)
from gaitforge.flows.stages.comparison.runs import (
    COMPARISON,
    ComparedModels,
    ComparedRun,
    Row,
    check_unchanged,
    train_once,
)
from gaitforge.flows.stages.comparison.summary import summarise
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.evaluation import PolicyEvaluation
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policies import EXPERT, RUN, PolicySource
from gaitforge.learners.models.registry import PRESETS
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.held_out import HeldOutError, held_out_error, split_episodes
from gaitforge.learners.training.pace import updates_per_s

GRID_EPISODES = 20


@dataclass(frozen=True)
class ComparisonPlan(ComparedModels):
    """What is compared.

    Attributes:
        train_s: seconds of training of every run, instead of config.steps; each model then has the
            training settings of its preset, and as many steps as fit, measured before the first
            training and kept in the folder `pace`.
        select: the episodes to learn from, before some are held out (the same for all runs).
        evaluate: the closed-loop episodes.
        expert: a name or file; returns are given as fractions of its return.
    """

    train_s: float | None = None
    select: SelectPlan = field(default_factory=SelectPlan)
    evaluate: LeggedEvaluation = field(default_factory=LeggedEvaluation)
    expert: str = DEFAULT_EXPERT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.train_s is not None:
            if not (isfinite(self.train_s) and self.train_s > 0):
                raise ValueError(f"train_s must be above 0, got {self.train_s}")
            check_unchanged(self.config, TrainConfig(), ("steps",), "with train_s, config")
        if self.config.held_out_fraction == 0.0:
            raise ValueError("compared runs need a config.held_out_fraction above 0")

    def own_names(self) -> Collection[str]:
        """See `ComparedModels.own_names`."""
        timed = ("batch_size", "window_len") if self.train_s is not None else ()
        return (*super().own_names(), *timed)

    def settings_of(self, model: str) -> Mapping[str, Any]:
        """See `ComparedModels.settings_of`."""
        timed = self.train_s is not None and model in PRESETS
        return {**(PRESETS[model].training if timed else {}), **super().settings_of(model)}

    def runs(self) -> list[ComparedRun]:
        """All runs in their order: every model before the next seed."""
        return [ComparedRun(model, seed) for seed in self.seeds for model in self.models]


@dataclass(frozen=True)
class Pace:
    """A model's measured optimiser steps per second, and the steps of each of its runs."""

    updates_per_s: float
    steps: int


def comparison_grid(selection: Selection, episodes: int = GRID_EPISODES) -> EvaluationGrid:
    """The terrains and skills of the selected episodes, at the middle one of their levels.

    Raises:
        ValueError: terrains or skills that this program cannot simulate.
    """
    table = selection.episodes()

    def present(column: str, order: Mapping[str, Any]) -> tuple[str, ...]:
        found = set(table.column(column).to_pylist())
        return tuple(sorted(found, key=[*order, *sorted(found)].index))

    levels = np.unique(table.column("level").to_numpy())
    middle = int(levels[(len(levels) - 1) // 2])
    return EvaluationGrid(
        present("terrain", TERRAINS), present("skill", SKILLS), (middle,), episodes
    )


def run_comparison(
    plan: ComparisonPlan, store_path: Path | str, out: Path, reporter: Reporter
) -> Row:
    """Run or resume the comparison in `out`; returns what `comparison.json` holds.

    Raises:
        ValueError: no store or nothing selected, data that this program's simulator does not fit,
            or an `out` that cannot be written or holds runs with other settings.
    """
    selection = selected(plan, store_path)
    prepare_folder(out)
    episodes = split_episodes(plan.config, selection)
    held_out = episodes.held_out
    assert held_out is not None, "a plan holds some episodes out"
    # First: it takes no training, and shows whatever is wrong with the evaluation.
    expert = to_tree(evaluate_expert(plan, out, reporter))
    for model in plan.models if plan.train_s is not None else ():
        measure_pace(model, plan, store_path, out, reporter)
    runs = [compared_run(run, plan, store_path, out, reporter) for run in plan.runs()]
    record = {
        "plan": plan,
        "store": Path(store_path).name,
        "dataset": selection.store.info(),
        "selection": selection.hash,
        "control_dt_s": selection.schema.control_dt_s,
        "trained_on": {"episodes": len(episodes.train), "steps": episodes.train.steps},
        "held_out": {
            "episodes": len(held_out),
            "steps": held_out.steps,
            "selection": held_out.hash,
        },
        "largest_return": LARGEST_RETURN,
        **summarise(plan.models, runs, expert),
        **provenance(),
    }
    write_record(out / COMPARISON, record)
    return to_tree(record)


def selected(plan: ComparisonPlan, store_path: Path | str) -> Selection:
    """The episodes that are learned from and tested on.

    Raises:
        ValueError: no store, nothing selected, or data that cannot be evaluated on.
    """
    selection = plan.select.select(store_path)
    schema = selection.schema
    slices = schema.field("obs").slices
    if {name: tuple(each) for name, each in (slices or {}).items()} != POLICY_SLICES:
        raise ValueError(
            "the store's observation is not the one that this program's simulator makes, so no "
            "policy that reads it can be evaluated"
        )
    driven = load_expert(plan.expert).policy.robot
    robot = load_robot(plan.evaluate.robot or schema.robot)
    if robot.name != driven.name:
        raise ValueError(
            f"expert {plan.expert} drives {driven.name}, but the models drive {robot.name}; give "
            "an expert of that robot"
        )
    return selection


def evaluate_expert(plan: ComparisonPlan, out: Path, reporter: Reporter) -> PolicyEvaluation:
    """The expert's evaluation, unless it is there."""
    source, path = PolicySource(EXPERT, EXPERT, plan.expert), out / "evaluate/expert.json"
    return evaluate_policy(source, plan.evaluate, reporter, path)


def pace_file(out: Path, model: str) -> Path:
    """Where a model's measured speed is kept."""
    return out / "pace" / f"{model}.json"


def measure_pace(
    model: str, plan: ComparisonPlan, store_path: Path | str, out: Path, reporter: Reporter
) -> Pace:
    """The speed of a model's training, unless it is known, and the steps that fit into train_s."""
    assert plan.train_s is not None, "the plan gives steps instead"
    selection = plan.select.select(store_path)
    config, seconds = plan.train_config(model, 0), plan.train_s

    def make() -> Pace:
        with reporter.step(f"time {model}", 1, "model"):
            rate = updates_per_s(config, selection)
        return Pace(rate, max(1, round(rate * seconds)))

    key = {"train_s": seconds, "config": config.to_json(), "selection": selection.hash}
    return kept_record(pace_file(out, model), key, Pace, make)


def compared_run(
    run: ComparedRun, plan: ComparisonPlan, store_path: Path | str, out: Path, reporter: Reporter
) -> Row:
    """Train, test and evaluate one run, as far as that is not done yet."""
    config = plan.train_config(run.model, run.seed)
    if plan.train_s is not None:
        pace = measure_pace(run.model, plan, store_path, out, reporter)
        config = replace(config, steps=pace.steps)
    held_out = split_episodes(plan.config, plan.select.select(store_path)).held_out
    assert held_out is not None, "a plan holds some episodes out"
    row = train_once(run, config, plan.select, store_path, out, reporter)
    source = PolicySource(run.name, RUN, str(run.folder(out)))
    tested = _test_once(source, held_out, run.record(out, "test"), reporter)
    evaluated = evaluate_policy(source, plan.evaluate, reporter, run.record(out, "evaluate"))
    return {**row, "test_mse": tested.mse, "evaluation": to_tree(evaluated)}


def _test_once(
    source: PolicySource, held_out: Selection, path: Path, reporter: Reporter
) -> HeldOutError:
    """The error on the held-out episodes, unless `path` already holds that of these weights."""

    def make() -> HeldOutError:
        policy = source.network(None)
        with reporter.step(f"test {source.name}", held_out.steps, "step") as advance:
            return held_out_error(policy, held_out, lambda n: advance(n, ""))

    key = {"held_out": held_out.hash, "weights": source.key()}
    return kept_record(path, key, HeldOutError, make)
