"""Learners trained on one collection, and scored under several draws of the randomisation.

plan.json, train/<run>/, evaluate/<draws>/<policy>.json, summary.json, report.html
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Self

from gaitforge.collectors.legged.rollout import EvaluationGrid
from gaitforge.collectors.scenarios.skills import SKILLS
from gaitforge.collectors.scenarios.terrains import TERRAINS
from gaitforge.common.errors import names_allowed
from gaitforge.datasets import Store, open_store
from gaitforge.flows.experiments.claim import Claim, check_grown
from gaitforge.flows.experiments.plan import (
    Experiment,
    Learners,
    Settings,
    check_apart,
    check_name,
)
from gaitforge.flows.experiments.runs import LEGGED, LearnerRun
from gaitforge.flows.experiments.staged_plan import StagedPlan
from gaitforge.flows.experiments.summary import needed
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import digest, to_tree
from gaitforge.flows.settings import override, with_named
from gaitforge.flows.stages.evaluate import evaluate_policy
from gaitforge.flows.stages.stage import RecordedStage, Stage
from gaitforge.flows.stages.train import SelectPlan, TrainPlan
from gaitforge.flows.tasks.evaluation import References
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policy_sources import RUN, PolicySource
from gaitforge.flows.tasks.registry import evaluation_of
from gaitforge.learners.checkpoint import CHECKPOINT
from gaitforge.learners.training.batches import training_hash
from gaitforge.learners.training.train import finished_result
from gaitforge.plugins.shift.learners import LEARNERS, SETTINGS
from gaitforge.plugins.shift.sets import (
    COLLECTIONS,
    DRAWS,
    EXPERT,
    MEDIUM,
    MIXED,
    NAME,
    QUALITIES,
    WEAK,
)

_COMPLETE = "terminated or truncated"
"""Episodes that were cut off are left out: their return is unknown."""
_EVALUATED = ("terrains", "skills", "levels", "episodes", "threads")
_TRAINED = ("objective", "steps", "batch_size", "device")
"""Values of the command line for the evaluations, and for every training."""
_SCORED = ("score", "score_ci95", "return", "return_ci95", "success", "success_ci95", "survival")


def _evaluation() -> LeggedEvaluation:
    grid = EvaluationGrid(tuple(TERRAINS), tuple(SKILLS), (4,), 20)
    return LeggedEvaluation(grid=grid, robots=240, threads=1)


@dataclass(frozen=True)
class ShiftPlan(StagedPlan):
    """Plan of a benchmark: learners × sets × seeds, each policy scored under all draws.

    A score is 100 x (return - zero) / (hundred - zero) of mean returns under the same draws, on the
    same held-out episodes.

    Attributes:
        data: the store that is learned from, and no other.
        learners, seeds, settings: as those of `Experiment`.
        qualities: sets of the store's episodes, names of `QUALITIES`.
        draws: name -> randomisation that policies are scored under, as `LeggedPlan` has it. The
            expert's return under the first of them is what return-conditioned learners are asked
            for, under all.
        evaluation: the episodes, and how they are simulated; each of `draws` takes the place of its
            randomisation.
        expert, zero: policies whose returns score 100 and 0; beside: a policy that is only told.
    """

    kind: ClassVar[str] = "shift"

    data: tuple[str, ...]
    learners: Learners = field(default_factory=lambda: LEARNERS)
    seeds: tuple[int, ...] = (0, 1, 2)
    qualities: tuple[str, ...] = (MIXED,)
    settings: Settings = field(default_factory=lambda: SETTINGS)
    draws: Mapping[str, Mapping[str, str | float]] = field(default_factory=lambda: DRAWS)
    evaluation: LeggedEvaluation = field(default_factory=_evaluation)
    expert: str = EXPERT
    zero: str = WEAK
    beside: str = MEDIUM

    def __post_init__(self) -> None:
        if len(self.data) != 1:
            raise ValueError(f"the benchmark learns from one store, got {len(self.data)}")
        for quality in self.qualities:
            if quality not in QUALITIES:
                raise ValueError(f"no quality '{quality}'; {names_allowed(quality, QUALITIES)}")
        if not self.draws:
            raise ValueError("the benchmark needs draws to score policies under")
        for draws in self.draws:
            check_name("draws", draws)
            self.under(draws)  # raises
        for name in self.references:
            check_name("references", name)
        if len(self.references) < len((self.expert, self.zero, self.beside)):
            raise ValueError("expert, zero and beside have to be three policies")
        assert self.experiment  # raises

    @property
    def experiment(self) -> Experiment:
        """The trainings as an experiment."""
        return Experiment(
            learners=self.learners,
            seeds=self.seeds,
            select=SelectPlan(where=_COMPLETE),
            sets={name: QUALITIES[name] for name in self.qualities},
            settings=self.settings,
        )

    @property
    def references(self) -> dict[str, PolicySource]:
        """Name -> policy: those that score 100 and 0, and the one beside them."""
        policies = (self.expert, self.zero, self.beside)
        sources = [self.evaluation.source(policy) for policy in policies]
        return {source.name: source for source in sources}

    def under(self, draws: str) -> LeggedEvaluation:
        """The evaluation under some draws, without its references yet."""
        return replace(self.evaluation, randomisation=self.draws[draws])

    def store(self) -> Store:
        """What is learned from. Raises ValueError unless policies of its task can be scored."""
        [address] = self.data
        store = open_store(address)
        evaluation = evaluation_of(store)
        if evaluation is None or evaluation.kind != LEGGED:
            raise ValueError(f"{address} is not of legged robots, which the benchmark needs")
        return store

    def runs(self, out: Path) -> list[LearnerRun]:
        """All trainings; seeds come last, so that every learner has been on every set before."""
        experiment = self.experiment
        [address] = self.data
        return [
            LearnerRun(experiment, out, address, LEGGED, self.evaluation, data, learner, seed)
            for seed in self.seeds
            for data in experiment.data_sets()
            for learner in self.learners
        ]

    def with_options(self, values: Mapping[str, Any], settings: Sequence[str]) -> Self:
        """The plan with chosen values, then with the settings.

        `learners` are picked, and a name that the plan does not have is a model; `seeds` and
        `expert` are replaced; settings of trainings hold for every learner.
        """
        scoring = {name: values[name] for name in _EVALUATED if name in values}
        training = {name: values[name] for name in _TRAINED if name in values}
        changes = {name: values[name] for name in ("seeds", "expert") if name in values}
        picked = values.get("learners", self.learners)
        learners = {name: self.learners.get(name, {}) for name in picked}
        plan = replace(self, learners=learners, **changes)
        plan = override(replace(plan, evaluation=with_named(plan.evaluation, scoring)), settings)
        learners = plan.learners.items()  # some may have come by a setting
        return replace(plan, learners={name: {**mine, **training} for name, mine in learners})

    def check_grown(self, old: Self, out: Path) -> None:
        """Raise ValueError unless it has all trainings of its folder's, with equal settings.

        Learners, sets and seeds may be added, and policies scored otherwise.
        """
        was, now = (Claim(self.kind, plan.experiment, plan.data) for plan in (old, self))
        check_grown(was, now, out)

    def work(self, out: Path) -> list[Stage]:
        """A stage for the references under each draws, and two for each run."""
        self.store()
        runs = self.runs(out)
        names = [(name, "a reference") for name in self.references]
        check_apart([*names, *((run.name, run.described) for run in runs)])
        stages: list[Stage] = [self._of_references(out, draws) for draws in self.draws]
        keys = [stage.key for stage in stages]
        after = tuple(stage.name for stage in stages)
        for run in runs:
            train = self._training(run)
            paths = tuple(scored(out, draws, run.name) for draws in self.draws)
            evaluate = RecordedStage(
                f"evaluate {run.name}",
                digest([train.key, *keys]),
                run=partial(self.score, run),
                outputs=paths,
                after=(train.name, *after),
            )
            stages += [train, evaluate]
        return stages

    def _of_references(self, out: Path, draws: str) -> Stage:
        plan = self.under(draws)
        sources = self.references.values()
        paths = tuple(scored(out, draws, source.name) for source in sources)
        key = digest([plan, [plan.key(source) for source in sources]])
        work = partial(_evaluate_all, plan, tuple(sources), paths)
        return RecordedStage(f"references {draws}", key, run=work, outputs=paths)

    def _training(self, run: LearnerRun) -> Stage:
        config = run.config()
        selection = TrainPlan(run.select(), config).selection(run.store)
        return RecordedStage(
            f"train {run.name}",
            digest([config.to_json(), training_hash(config, selection)]),
            run=run.train,
            outputs=(run.folder / CHECKPOINT,),
            place=run.folder,
            trains=True,
            device=config.device,
        )

    def score(self, run: LearnerRun, reporter: Reporter) -> None:
        """Evaluate a trained policy under all draws, as far as that is not done."""
        source = PolicySource(run.name, RUN, str(run.folder))
        asked = self.measured(run.out, next(iter(self.draws))).hundred
        for draws in self.draws:
            references = self.measured(run.out, draws)
            plan = replace(
                self.under(draws),
                references=references,
                return_target=asked / references.hundred,
            )
            evaluate_policy(source, plan, reporter, scored(run.out, draws, run.name))

    def measured(self, out: Path, draws: str) -> References:
        """The returns that score 0 and 100 under some draws."""
        hundred, zero, _ = (needed(scored(out, draws, n))["return"] for n in self.references)
        return References(zero, hundred, f"{self.zero} and {self.expert}, {draws}")

    def summary(self, out: Path) -> dict[str, Any]:
        """The data; and for each draws a row for each run and reference, which has no seed."""
        store = self.store()
        runs = self.runs(out)
        sets = []
        for run in {run.data.name: run for run in runs}.values():
            selection = run.selects().select(run.store)
            row = {"task": LEGGED, "set": run.data.name, "store": Path(run.store).name}
            row |= {"collection": collection_of(store), "dataset": store.info().hash}
            sets.append({**row, "episodes": len(selection), "steps": selection.steps})
        rows = []
        for draws in self.draws:
            rows += [_run_row(run) | self._scores(out, draws, run.name) for run in runs]
            rows += [
                {"run": name, "set": "", "learner": name, "seed": None, "steps": None}
                | self._scores(out, draws, name)
                for name in self.references
            ]
        return {"name": NAME, "sets": sets, "runs": rows}

    def _scores(self, out: Path, draws: str, policy: str) -> dict[str, Any]:
        """What a policy's record says under some draws, in units of these draws' references."""
        record = needed(scored(out, draws, policy))
        references = self.measured(out, draws)
        row = {name: record[name] for name in _SCORED if name in record}
        row["score"] = references.score(record["return"])
        if limits := record["return_ci95"]:
            row["score_ci95"] = references.scores(limits)
        return {"draws": draws, **to_tree(row), "episodes": record["episodes"]}


def scored(out: Path, draws: str, policy: str) -> Path:
    """The record of a policy's evaluation under some draws."""
    return out / "evaluate" / draws / f"{policy}.json"


def collection_of(store: Store) -> str:
    """The collection of the benchmark that a store is: all its parts, as collected; "" for none."""
    parts = set() if store.edits() else set(store.parts())
    names = (name for name, plan in COLLECTIONS.items() if set(plan.part_ids()) == parts)
    return next(names, "")


def _evaluate_all(
    plan: LeggedEvaluation,
    sources: Sequence[PolicySource],
    paths: Sequence[Path],
    reporter: Reporter,
) -> None:
    for source, path in zip(sources, paths, strict=True):
        evaluate_policy(source, plan, reporter, path)


def _run_row(run: LearnerRun) -> dict[str, Any]:
    trained = finished_result(run.folder)
    config = run.config()
    return to_tree(
        {
            "run": run.name,
            "set": run.data.name,
            "learner": run.learner,
            "seed": run.seed,
            "model": config.model,
            "objective": config.objective,
            "parameters": trained.parameters,
            "steps": trained.steps,
            "train_s": trained.train_s,
        }
    )
