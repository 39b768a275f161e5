"""Networks trained by reinforcement learning: learners × tasks × seeds, their curves and scores.

plan.json, train/<run>/, evaluate/<run>.json, summary.json, report.html
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from gaitforge.collectors.training_folder import POLICY
from gaitforge.common.history import HISTORY, read_history
from gaitforge.flows.experiments.claim import check_kept, other_experiment
from gaitforge.flows.experiments.plan import (
    Learners,
    Published,
    Settings,
    check_apart,
    check_name,
    verdicts,
)
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.experiments.summary import needed
from gaitforge.flows.intervals import mean, mean_and_std, ratio, stratified_interval
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import digest, to_tree
from gaitforge.flows.settings import override, with_named
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.stage import RecordedStage, Stage
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.flows.tasks.expert_trainers import ExpertTrainer, network_trainer
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import run_source
from gaitforge.flows.tasks.registry import evaluation_class
from gaitforge.learners.models.registry import preset

_FREE = ("device", "threads")
"""Settings that a training may be resumed with otherwise."""
_OF_TRAININGS = ("steps", "device", "threads")
_OF_EVALUATIONS = ("threads",)
"""Values of the command line that all trainings, and all evaluations, get."""
_POINTS = 60
"""Most points of a run's learning curve."""
AREA = "area"
"""The measure of a run that `area_under` gives."""
_EARLIER_WEIGHTS = "torch"
"""`PPOSettings.initial_weights` of every training before there was a choice."""
_MEASURES = (
    "return",
    AREA,
    "success",
    "survival",
    "vx_error",
    "train_s",
    "steps_per_s",
    "latency_us_median",
)


@dataclass(frozen=True)
class ReinforcementPlan(StagedPlan):
    """Plan of trainings by PPO: networks × tasks × seeds.

    Attributes:
        learners: name -> settings of its trainings in place of the task's; others are compared with
            the first.
        tasks: name -> settings of all its trainings: those of a trainer whose setting is among
            them (`env` of `GymPPOConfig`), else of `ExpertTrainingConfig`.
        evaluate: name of a task -> settings of its evaluation, of held-out episodes.
        seeds: of the trainings, a run each.
        published: a paper's statements, which the returns on every task are held against, or the
            measure of a run that they name: "area", the mean return over all steps of the training.
        title: of the page: the paper, and its figures.
        exceptions: name of a task -> name of a learner -> its settings on that task alone, in place
            of the learner's.
        initial_weights: of all trainings that have none of their own, see `PPOSettings`. A plan
            that says nothing means "torch", as plans of earlier versions did.
    """

    kind: ClassVar[str] = "reinforcement"

    learners: Mapping[str, Settings]
    tasks: Mapping[str, Settings]
    evaluate: Mapping[str, Settings]
    seeds: tuple[int, ...] = (0, 1, 2)
    published: tuple[Published, ...] = ()
    title: str = ""
    exceptions: Mapping[str, Learners] = field(default_factory=dict)
    initial_weights: str = _EARLIER_WEIGHTS

    def __post_init__(self) -> None:
        if not self.learners or not self.tasks:
            raise ValueError("reinforcement learning needs learners and tasks")
        for kind in ("learners", "tasks"):
            for name in getattr(self, kind):
                check_name(kind, name)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"it needs seeds, each once; got {list(self.seeds)}")
        for name in ("evaluate", "exceptions"):
            if unknown := getattr(self, name).keys() - self.tasks.keys():
                raise ValueError(f"{name}: there is no task {min(unknown)}")
        for run in self.runs():
            config = run.config
            preset(config.model, config.model_overrides)
            assert run.evaluation
        check_apart((run.name, run.described) for run in self.runs())

    def runs(self) -> Iterator["ReinforcementRun"]:
        """All trainings: tasks, then learners, then seeds."""
        for task in self.tasks:
            for learner in self.learners:
                for seed in self.seeds:
                    yield ReinforcementRun(self, task, learner, seed)

    def with_options(
        self, values: Mapping[str, Any], settings: Sequence[str]
    ) -> "ReinforcementPlan":
        """The plan with chosen values, then with the settings.

        `learners` are picked, `seeds` replaced; `steps`, `device` and `threads` are for every
        training, and `threads` for every evaluation, too.
        """
        training = {name: values[name] for name in _OF_TRAININGS if name in values}
        scoring = {name: values[name] for name in _OF_EVALUATIONS if name in values}
        picked = values.get("learners", self.learners)
        plan = replace(
            self,
            learners={name: self.learners.get(name, {}) for name in picked},
            tasks={name: {**task, **training} for name, task in self.tasks.items()},
            evaluate={name: {**task, **scoring} for name, task in self.evaluate.items()},
        )
        seeds = {"seeds": values["seeds"]} if "seeds" in values else {}
        plan = override(with_named(plan, seeds), settings)
        return replace(  # for tasks that a setting brought, too
            plan,
            tasks={name: {**training, **task} for name, task in plan.tasks.items()},
            evaluate={name: {**scoring, **task} for name, task in plan.evaluate.items()},
        )

    def check_grown(self, old: "ReinforcementPlan", out: Path) -> None:
        """Raise ValueError unless it has all runs of its folder's, trained with equal settings.

        Learners, tasks and seeds may be added, and policies scored otherwise.
        """
        for kind in ("learners", "tasks", "seeds"):
            check_kept(out, kind, getattr(old, kind), getattr(self, kind))
        runs = {run.name: run for run in self.runs()}
        for run in old.runs():
            was = to_tree(run.config)
            now = to_tree(runs[run.name].config)
            changed = [name for name in was if name not in _FREE and was[name] != now.get(name)]
            if changed:
                raise other_experiment(out, f"another {', '.join(changed)} of {run.described}")

    def work(self, out: Path) -> list[Stage]:
        """Two stages for each run."""
        stages: list[Stage] = []
        for run in self.runs():
            train = f"train {run.name}"
            policy = run.folder(out) / POLICY
            key = run.key
            outputs = (policy / "checkpoint.json", run.folder(out) / HISTORY)
            stages.append(
                RecordedStage(train, key, run=partial(run.train, out), outputs=outputs,
                      place=run.folder(out), device=run.config.processor)
            )  # fmt: skip
            evaluate = partial(_evaluate, run, policy, run.evaluated(out))
            stages.append(
                RecordedStage(
                    f"evaluate {run.name}",
                    digest([key, to_tree(run.evaluation)]),
                    run=evaluate,
                    outputs=(run.evaluated(out),),
                    after=(train,),
                )
            )
        return stages

    def summary(self, out: Path) -> dict[str, Any]:
        """All runs, means over their seeds, and the verdicts on what was published."""
        rows = [run.row(out) for run in self.runs()]
        results = []
        told = []
        for task in self.tasks:
            of_task = [row for row in rows if row["task"] == task]
            published = self.published
            if any(row[AREA] is None for row in of_task):
                published = [each for each in published if each.measure != AREA]
            told += [{"set": task, **row} for row in verdicts(published, of_task, "return")]
            learner_results = [
                _result([row for row in of_task if row["learner"] == learner])
                for learner in self.learners
            ]
            results += [result | _beside(result, learner_results[0]) for result in learner_results]
        return {"runs": rows, "results": results, "verdicts": told}


@dataclass(frozen=True)
class ReinforcementRun:
    """A training of a learner on a task with a seed."""

    plan: ReinforcementPlan
    task: str
    learner: str
    seed: int

    @property
    def name(self) -> str:
        """Name of its folder and files."""
        return f"{self.task}-{self.learner}-seed-{self.seed}"

    @property
    def described(self) -> str:
        """What it is, in words."""
        return f"learner '{self.learner}' on task '{self.task}', seed {self.seed}"

    @property
    def settings(self) -> Settings:
        """Settings of the task, overridden by the learner's, and by those of both together."""
        learner = self.plan.learners[self.learner]
        exceptions = self.plan.exceptions.get(self.task, {}).get(self.learner, {})
        return {**self.plan.tasks[self.task], **learner, **exceptions}

    @property
    def trainer(self) -> tuple[str, ExpertTrainer] | None:
        """The task and its trainer that the settings choose; None for a legged robot."""
        return network_trainer(self.settings)

    @property
    def config(self) -> Any:
        """All settings of its training, `PPOSettings`; ValueError for those that do not exist."""
        # Not above: rsl-rl loads for a second, and every experiment's command imports this module.
        from gaitforge.collectors.experts.ppo import ExpertTrainingConfig

        settings = self.settings
        trainer = self.trainer
        kind = ExpertTrainingConfig if trainer is None else trainer[1].settings_class()
        weights = self.plan.initial_weights
        tree = {"model": self.learner, "initial_weights": weights, **settings, "seed": self.seed}
        try:
            return plan_from_tree(kind, to_tree(tree))
        except ValueError as error:
            raise ValueError(f"{self.learner} on {self.task}: {error}") from None

    @property
    def key(self) -> str:
        """Changes with its training; that of an earlier version's training stays."""
        tree = to_tree(self.config)
        if tree["initial_weights"] == _EARLIER_WEIGHTS:
            del tree["initial_weights"]
        return digest(tree)

    @property
    def evaluation(self) -> EvaluationPlan:
        """How its policy is scored."""
        settings = to_tree(self.plan.evaluate.get(self.task, {}))
        if self.trainer is None:
            return plan_from_tree(LeggedEvaluation, {"robot": self.config.robot, **settings})
        task, trainer = self.trainer
        tree = {trainer.setting: self.settings[trainer.setting], **settings}
        return plan_from_tree(evaluation_class(task), tree)

    def train(self, out: Path, reporter: Reporter) -> None:
        """Train it, or resume its training."""
        from gaitforge.flows.stages.expert_training import run_expert_training

        config = self.config
        folder = self.folder(out)
        folder.parent.mkdir(parents=True, exist_ok=True)
        if self.trainer is None:
            run_expert_training(config, folder, reporter, grid=None)
        else:
            self.trainer[1].train_network(config, folder, reporter)

    def folder(self, out: Path) -> Path:
        """Folder of the training."""
        return out / "train" / self.name

    def evaluated(self, out: Path) -> Path:
        """The record of the evaluation."""
        return out / "evaluate" / f"{self.name}.json"

    def row(self, out: Path) -> dict[str, Any]:
        """Its numbers in the summary."""
        record = needed(self.evaluated(out))
        history = read_history(self.folder(out))
        if not history:
            raise ValueError(f"{self.folder(out)} has no history; run the experiment again")
        steps, rates = np.array([[row["steps"], row["steps_per_s"]] for row in history]).T
        seconds = np.cumsum(np.diff(steps, prepend=0) / rates)
        cells = record["cells"]
        errors = [cell["vx_error"] for cell in cells if "vx_error" in cell]
        kept = ("parameters", "return", "return_ci95", "success", "success_ci95", "survival")
        return {
            "run": self.name,
            **{name: getattr(self, name) for name in ("task", "learner", "seed")},
            **{name: record[name] for name in (*kept, "episodes", "latency_us_median")},
            "vx_error": float(np.mean(errors)) if errors else None,
            AREA: area_under(history),
            "steps": history[-1]["steps"],
            "train_s": float(seconds[-1]),
            "steps_per_s": history[-1]["steps"] / float(seconds[-1]),
            "curve": _curve(history, seconds),
        }


def _evaluate(run: ReinforcementRun, policy: Path, path: Path, reporter: Reporter) -> None:
    source = replace(run_source(policy), name=run.name)
    evaluate_policy(source, run.evaluation, reporter, path)


def _beside(result: Mapping[str, Any], first: Mapping[str, Any]) -> dict[str, float | None]:
    """A mean return beside the first learner's: the difference, and the share of it.

    A share of a return that is not above 0 says nothing: of -1000, the worse return of -2000 would
    be twice as much.
    """
    value = result["return"]["mean"]
    of = first["return"]["mean"]
    if value is None or of is None:  # some seed's is not finite
        return {"over_first": None, "of_first": None}
    return {"over_first": value - of, "of_first": ratio(value, of)}


def _result(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the seeds; the interval of the return is over them, too."""
    first = {name: rows[0][name] for name in ("task", "learner", "parameters", "steps")}
    spread = {name: to_tree(mean_and_std([row[name] for row in rows])) for name in _MEASURES}
    interval = stratified_interval([[row["return"] for row in rows]], mean)
    return {**first, "seeds": [row["seed"] for row in rows], **spread, "return_ci95": interval}


def area_under(history: Sequence[Mapping[str, Any]]) -> float | None:
    """The area under the learning curve over its steps: the mean return of the whole training.

    The curve is that of the training's own episodes, straight between updates at whose end some
    had ended, and level before the first and after the last of these. None without any.
    """
    ended = [(row["steps"], row["return"]) for row in history if row["return"] is not None]
    if not ended:
        return None
    at, returns = np.array(ended, dtype=float).T
    last = float(history[-1]["steps"])
    steps = np.concatenate([[0.0], at, [last]])
    values = np.concatenate([returns[:1], returns, returns[-1:]])
    return float(np.trapezoid(values, steps) / last)


def _curve(history: Sequence[Mapping[str, Any]], seconds: np.ndarray) -> dict[str, list[float]]:
    """Steps, seconds and the mean return of the episodes that ended, in equal pieces."""
    rows = [(row["steps"], at, row["return"]) for row, at in zip(history, seconds, strict=True)]
    ended = np.array([row for row in rows if row[2] is not None])
    pieces = np.array_split(ended, min(_POINTS, len(ended))) if len(ended) else []
    columns = np.array([piece.mean(axis=0) for piece in pieces]).reshape(-1, 3).T.tolist()
    return dict(zip(("steps", "seconds", "return"), columns, strict=True))
