"""A suite in stages, of which many can run in parallel: each run of a learner is one."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gaitforge.datasets import Selection, StoreInfo, open_store
from gaitforge.datasets.errors import listed
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import (
    digest,
    prepare_folder,
    provenance,
    read_record,
    to_tree,
    write_record,
)
from gaitforge.flows.settings import with_named
from gaitforge.flows.stages.comparison.runs import mean_and_std
from gaitforge.flows.stages.evaluate import evaluate_policy, reference_files, with_references
from gaitforge.flows.stages.staging import Stage
from gaitforge.flows.stages.suites.bootstrap import interquartile_mean, mean, stratified_interval
from gaitforge.flows.stages.suites.plan import COMPLETE, SuitePlan
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.evaluation import EvaluationPlan, References
from gaitforge.flows.tasks.policies import RUN, PolicySource
from gaitforge.flows.tasks.registry import TASKS, evaluation_of
from gaitforge.learners.training.config import TrainConfig

SUITE = "suite.json"
CURVE_POINTS = 4
"""Policies of a run whose scores are its learning curve, the last one included."""

Row = dict[str, Any]
SCORED = ("score", "return", "success", "train_s", "control_us")


@dataclass(frozen=True)
class _Set:
    """A set of one store's episodes, and how the policies that learn it are evaluated."""

    store: Path | str
    name: str
    condition: str
    evaluation: EvaluationPlan

    @property
    def task(self) -> str:
        """The name of the store's task."""
        return self.evaluation.name

    def select(self, best: float = 1.0) -> SelectPlan:
        """The complete episodes, or the best of them."""
        given = f" and ({self.condition})" if self.condition else ""
        return SelectPlan(where=f"({COMPLETE}){given}", best=best)


@dataclass(frozen=True)
class _Run:
    """A learner's training on a set with one seed."""

    plan: SuitePlan
    of: _Set
    learner: str
    seed: int
    out: Path

    @property
    def name(self) -> str:
        """The name of the run's files and stage."""
        return f"{self.of.task}-{self.of.name}-{self.learner}-seed-{self.seed}"

    @property
    def folder(self) -> Path:
        """The training's folder."""
        return self.out / "train" / self.name

    @property
    def record(self) -> Path:
        """The file of the run's row."""
        return self.out / "runs" / f"{self.name}.json"

    def config(self) -> TrainConfig:
        """The training's configuration; the scale of the returns comes from the scorer."""
        config = self.plan.config(self.learner, self.seed)
        return replace(config, keep_every=max(1, config.steps // CURVE_POINTS))

    def do(self, reporter: Reporter) -> None:
        """Train and score, as far as that is not done, and write the row."""
        plan = self.plan
        select = self.of.select(plan.best(self.learner))
        _, scale = _scored(plan, self.of, self.out, reporter)
        config, asked = self.config(), plan.asked(self.learner)
        if asked != (None,):
            config = replace(config, return_scale=scale.hundred, return_zero=scale.zero)
        trained = run_training(TrainPlan(select, config), self.of.store, self.folder, reporter)
        best = float(_returns(self.of.select().select(self.of.store)).max())
        scores = []
        for number, target in enumerate(asked):
            share = None if target is None else target * scale.score(best) / 100.0
            score = self._score(reporter, share, "last", f"-asked-{number}" if number else "")
            wanted = None if share is None else 100.0 * share
            scores.append({"target": target, "asked": wanted, **score})
        share = None if scores[0]["asked"] is None else scores[0]["asked"] / 100.0
        kept = range(config.keep_every or 1, trained.steps, config.keep_every or 1)
        curve = [
            [step, self._score(reporter, share, f"step-{step}", f"-step-{step}")["score"]]
            for step in kept
        ]
        row = {
            "task": self.of.task,
            "set": self.of.name,
            "learner": self.learner,
            "seed": self.seed,
            "model": config.model,
            "objective": config.objective,
            "parameters": trained.parameters,
            "steps": trained.steps,
            "train_s": trained.train_s,
            **{name: scores[0][name] for name in ("score", "return", "success", "control_us")},
            "episodes": (len(scores) + len(curve)) * scores[0]["episodes"],
            "asked": scores if asked != (None,) else [],
            "curve": [*curve, [trained.steps, scores[0]["score"]]],
        }
        write_record(self.record, row)

    def _score(self, reporter: Reporter, share: float | None, which: str, suffix: str) -> Row:
        path = self.out / "evaluate" / f"{self.name}{suffix}.json"
        plan, _ = _scored(self.plan, self.of, self.out, reporter)
        plan = plan if share is None else replace(plan, return_target=share)
        source = PolicySource(self.folder.name, RUN, str(self.folder), which)
        found = evaluate_policy(source, plan, reporter, path)
        return {
            "return": found.return_,
            "score": found.score,
            "success": found.success,
            "episodes": found.episodes,
            "control_us": found.latency_us_median,
        }


def _scored(
    plan: SuitePlan, of: _Set, out: Path, reporter: Reporter
) -> tuple[EvaluationPlan, References]:
    """A set's evaluation, and the returns that score 0 and 100."""
    return with_references(of.evaluation, out / "evaluate" / of.task, reporter, plan.expert)


def suite_stages(
    name: str, plan: SuitePlan, stores: Sequence[Path | str], out: Path
) -> list[Stage]:
    """The experts' evaluations, every run, and the summary `suite.json`.

    Seeds come last: after the first seed's runs every learner has been on every set.

    Raises:
        ValueError: a store of no task that is evaluated here, or without rewards, two stores of one
            task, or an empty set.
    """
    prepare_folder(out)
    sets = _open(plan, stores, out)
    stages, first = [], {}
    for each in {each.task: each for each in sets}.values():
        if files := reference_files(each.evaluation, out / "evaluate" / each.task):
            key, work = digest([each.evaluation, plan.expert]), partial(_scored, plan, each, out)
            stages.append(Stage(f"evaluate {each.task} expert", key, work, files))
            first[each.task] = (stages[-1].name,)
    runs = [
        _Run(plan, each, learner, seed, out)
        for seed in plan.seeds
        for each in sets
        for learner in plan.learners
    ]
    for run in runs:
        selected = run.of.select(plan.best(run.learner)).select(run.of.store).hash
        scored = run.of.evaluation, plan.asked(run.learner)
        key = digest([run.config().to_json(), selected, *scored])
        after = first.get(run.of.task, ())
        stages.append(Stage(run.name, key, run.do, (run.record,), after, place=run.folder))
    names = tuple(stage.name for stage in stages)
    work = partial(_summarise, name, plan, sets, runs, out)
    key = digest([stage.key for stage in stages])
    return [*stages, Stage("compare", key, work, (out / SUITE,), names)]


def _open(plan: SuitePlan, stores: Sequence[Path | str], out: Path) -> list[_Set]:
    opened = [(store, _evaluation(plan, store)) for store in stores]
    tasks = sorted(evaluation.name for _, evaluation in opened)
    if len(set(tasks)) < len(tasks):
        raise ValueError(f"a suite takes one store of each task, got {', '.join(tasks)}")
    sets = [
        _Set(store, name, condition, evaluation)
        for store, evaluation in opened
        for name, condition in plan.sets.items()
    ]
    for each in sets:
        try:
            each.select().select(each.store)
        except ValueError as error:
            raise ValueError(f"set {each.name}, of episodes that ended: {error}") from None
    return sets


def _evaluation(plan: SuitePlan, store_path: Path | str) -> EvaluationPlan:
    store = open_store(store_path)
    if "reward" not in store.schema.names("step"):
        raise ValueError(f"{store.address} has no rewards, from which a suite's learners learn")
    found = evaluation_of(store)
    if found is None or (plan.evaluate and found.kind not in plan.evaluate):
        raise ValueError(
            f"{store.address} is of {store.schema.robot or 'an unknown task'}; the suite takes "
            f"stores of {listed(plan.evaluate or TASKS)}"
        )
    chosen = {**to_tree(found), **to_tree(plan.evaluate.get(found.kind, {}))}
    evaluation = plan_from_tree(type(found), chosen)
    return with_named(evaluation, {"episodes": plan.episodes} if plan.episodes else {})


def _returns(selection: Selection) -> np.ndarray:
    return selection.episodes("return").column("return").to_numpy()


def _summarise(
    name: str,
    plan: SuitePlan,
    sets: Sequence[_Set],
    runs: Sequence[_Run],
    out: Path,
    reporter: Reporter,
) -> None:
    rows = [row for run in runs if (row := read_record(run.record)) is not None]
    record = {
        "suite": name,
        "plan": asdict(plan),
        "sets": [_described(plan, each, out) for each in sets],
        "results": [
            _result(group)
            for each in sets
            for learner in plan.learners
            if (
                group := [
                    row
                    for row in rows
                    if (row["task"], row["set"], row["learner"]) == (each.task, each.name, learner)
                ]
            )
        ],
        "overall": [
            _overall(learner, [row for row in rows if row["learner"] == learner])
            for learner in plan.learners
        ],
        "evaluated_episodes": sum(row["episodes"] for row in rows),
        "runs": rows,
        **provenance(),
    }
    write_record(out / SUITE, record)


def _described(plan: SuitePlan, each: _Set, out: Path) -> Row:
    selection = each.select().select(each.store)
    _, scale = _scored(plan, each, out, Silent())
    info: StoreInfo = open_store(each.store).info()
    returns = _returns(selection)

    return {
        "task": each.task,
        "set": each.name,
        "store": Path(each.store).name,
        "dataset": info.hash,
        "selection": selection.hash,
        "episodes": len(selection),
        "steps": selection.steps,
        "zero": scale.zero,
        "expert": scale.hundred,
        "score": scale.score(float(returns.mean())),
        "score_std": scale.score(float(returns.std()) + scale.zero),
        "score_best": scale.score(float(returns.max())),
        "control_dt_s": selection.schema.control_dt_s,
    }


def _result(rows: Sequence[Mapping[str, Any]]) -> Row:
    first, scores = rows[0], [row["score"] for row in rows]
    alike = ("task", "set", "learner", "model", "objective", "parameters", "steps")
    asked = [
        {
            "target": first["asked"][k]["target"],
            "asked": first["asked"][k]["asked"],
            "score": mean_and_std([row["asked"][k]["score"] for row in rows]),
        }
        for k in range(len(first["asked"]))
    ]
    return {
        **{name: first[name] for name in alike},
        "seeds": [row["seed"] for row in rows],
        **{name: mean_and_std([row[name] for row in rows]) for name in SCORED},
        "score_ci95": stratified_interval([scores], mean),
        "asked": asked,
    }


def _overall(learner: str, rows: Sequence[Mapping[str, Any]]) -> Row:
    """Mean and interquartile mean over all sets, with their intervals; None before any run."""
    by_set: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        by_set.setdefault((row["task"], row["set"]), []).append(row["score"])
    scores = list(by_set.values())
    every = np.concatenate(scores) if scores else None
    return {
        "learner": learner,
        "sets": len(scores),
        "runs": 0 if every is None else len(every),
        "mean": None if every is None else float(mean(every)),
        "mean_ci95": stratified_interval(scores, mean),
        "iqm": None if every is None else float(interquartile_mean(every)),
        "iqm_ci95": stratified_interval(scores, interquartile_mean),
    }
