"""The trainings of an experiment: what each learns from, and its row of results.

`FirstParts` are what rounds of corrections begin with: the parts of a store that no earlier rounds
collected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from gaitforge.collectors.legged.data import StoredForm
from gaitforge.collectors.legged.replaying import stored_randomisation
from gaitforge.common.errors import listed
from gaitforge.common.trust import naming
from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.storage.s3 import is_bucket_url
from gaitforge.flows.experiments.evaluations import OF_KEPT, measures_of, settings_of
from gaitforge.flows.experiments.plan import (
    FIRST,
    OF_DATA,
    Corrections,
    DataSet,
    Experiment,
    asked_score,
    number_text,
)
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import records_folder
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import digest, kept_record, read_record, write_record
from gaitforge.flows.settings import with_named
from gaitforge.flows.stages.evaluate import evaluate_policy, with_references
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.evaluation import EvaluationPlan, References
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedPolicyPlan, driven_by
from gaitforge.flows.tasks.policy_sources import RUN, PolicySource
from gaitforge.learners.checkpoint import CHECKPOINT, load_policy
from gaitforge.learners.training.batches import training_hash
from gaitforge.learners.training.building import check_start, read_start, start_record
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import (
    HeldOutError,
    finished_result,
    held_out_error,
    split_episodes,
    updates_per_s,
)

# The trainings.
Row = dict[str, Any]

LEGGED = "legged"
SCORED = (
    "return_",
    "success",
    "survival",
    "length",
    "episodes",
    "latency_us_median",
    "latency_us_p99",
)
"""An evaluation's numbers that a row has."""


@dataclass(frozen=True)
class Pace:
    """A learner's measured optimiser steps per second, and the steps of each of its runs."""

    updates_per_s: float
    steps: int


@dataclass(frozen=True)
class LearnerRun:
    """A learner's training on a set with one seed.

    Attributes:
        out: the experiment's folder; store: what it learns from; task: the store's, by name.
        evaluation: what its policy is scored on, without the references yet.
        value: value of the number that varies; None where none does.
        several: whether the experiment has runs of other tasks, too.
    """

    experiment: Experiment
    out: Path
    store: Path | str
    task: str
    evaluation: EvaluationPlan
    data: DataSet
    learner: str
    seed: int
    value: float | None = None
    several: bool = False

    @property
    def name(self) -> str:
        """The name of the run's files and stages."""
        if self.learner == FIRST:
            return FIRST if self.data.rounds == 0 else f"{FIRST}-{self.data.rounds}"
        alone = self.experiment.fixed and len(self.experiment.seeds) == 1
        return self.seeded if alone else f"{self.seeded}-seed-{self.seed}"

    @property
    def seeded(self) -> str:
        """The name that its runs of all seeds share."""
        task = self.task if (self.data.name or self.several) and self.task != LEGGED else ""
        value = "" if self.value is None else number_text(self.value)
        return "-".join(filter(None, (task, self.data.name, self.learner, value)))

    @property
    def described(self) -> str:
        """What it is, in words."""
        varied = "" if self.value is None else f" with {number_text(self.value)}"
        data = f" on set '{self.data.name}'" if self.data.name else ""
        return f"learner '{self.learner}'{varied}{data} of {self.task}, seed {self.seed}"

    @property
    def folder(self) -> Path:
        """The training's folder."""
        return self.out / "train" / self.name

    @property
    def record(self) -> Path:
        """The file of its row of results."""
        return self.out / "runs" / f"{self.name}.json"

    @property
    def evaluated(self) -> Path:
        """The file of its evaluation."""
        return evaluations(self.out) / f"{self.name}.json"

    def further(self, name: str) -> dict[str, Any]:
        """The settings of a further evaluation that differ for this run from the first one's."""
        evaluation = self.experiment.evaluations[name]
        settings = settings_of(evaluation, self.data.name, self.config())
        if settings.get("reset_every") == self.evaluation.reset_every:
            del settings["reset_every"]
        return settings

    def further_file(self, name: str) -> Path:
        """The file of a further evaluation; the first one's where they are the same."""
        return (
            self.evaluated.with_stem(f"{self.name}-{name}")
            if self.further(name)
            else self.evaluated
        )

    @property
    def references_folder(self) -> Path:
        """The folder of the evaluations of the policies that score 0 and 100."""
        return evaluations(self.out) / ("" if self.task == LEGGED else self.task)

    @property
    def pace(self) -> Path:
        """The file of its learner's speed on its set."""
        return self.out / "pace" / f"{self.seeded}.json"

    def config(self) -> TrainConfig:
        """The training's settings, without those that its data determines."""
        return self.experiment.config(self.learner, self.seed, self.value)

    def select(self) -> SelectPlan:
        """The run's episodes. Raises ValueError while a policy that collects some is missing."""
        varied: dict[str, Any] = {
            field: kind(self.value)
            for name, (field, kind) in OF_DATA.items()
            if name in self.experiment.vary and self.value is not None
        }
        best = 1.0 if self.learner == FIRST else self.experiment.best(self.learner)
        return self.selects(best=best, **varied)

    def selects(self, **shares: Any) -> SelectPlan:
        """The episodes of its set; `shares` replaces fields of the selection, such as `best`."""
        select = replace(self.experiment.select, **shares)
        if self.data.condition:
            where = f"({select.where}) and ({self.data.condition})" if select.where else ""
            select = replace(select, where=where or self.data.condition)
        if self.data.rounds is None or self.experiment.corrections is None:
            return select
        parts = list(self.first_parts())
        for k in range(1, self.data.rounds + 1):
            parts += self._round(self.experiment.corrections, k)
        return replace(select, parts=tuple(parts))

    def _round(self, corrections: Corrections, k: int) -> list[str]:
        plan = expert_round if self.data.plain else driven_round
        return plan(self, corrections, k).part_ids()

    def first_parts(self) -> tuple[str, ...]:
        """The parts before any round of corrections."""
        collect = self.experiment.collect
        return self.experiment.select.parts if collect is None else tuple(collect.part_ids())

    def train(self, reporter: Reporter) -> None:
        """Train, or resume that; see `run_training`."""
        config = self.config()
        select = self.select()
        begun = next((record["plan"]["config"] for _, record in self._begun()), {})
        if self.experiment.train_s is not None:
            config = replace(config, steps=begun.get("steps") or self.measure(reporter).steps)
        elif self.data.rounds:  # each training passes over its data as often as the first
            first = replace(select, parts=self.first_parts()).select(self.store).steps
            steps = config.steps * select.select(self.store).steps / first
            config = replace(config, steps=round(steps))
        config = self.experiment.kept(config)  # of as many steps as it has now
        if self.experiment.targets and self._asked() != (None,):
            _, references = self.referred(reporter)
            measured = {"return_scale": references.hundred, "return_zero": references.zero}
            chosen = self.experiment.chosen_settings(self.learner)
            # A run stays in the units that it began with, however its policy is scored later.
            units = {n: begun.get(n, value) for n, value in measured.items() if n not in chosen}
            config = replace(config, **units)
        plan = TrainPlan(select, config)
        settings = self.experiment.evaluate.items()
        evaluate = {name: value for name, value in settings if name not in _NOT_RECORDED}
        expert = self.experiment.scoring_expert
        run_training(plan, self.store, self.folder, reporter, evaluate, expert)

    def _begun(self) -> Iterator[tuple[str, Row]]:
        """Name and record of this run, if it has begun, then of its learner's other seeds."""
        for seed in (self.seed, *self.experiment.seeds):
            run = replace(self, seed=seed)
            if record := read_record(run.folder / PLAN):
                yield run.name, record

    def check_start(self) -> None:
        """Raise ValueError unless the run can begin with the weights that its plan names, if any.

        They are to be of the file that other seeds began with. Of episodes that are yet to be
        collected only the weights are looked for.
        """
        config = self.config()
        if not config.start_from or (self.folder / CHECKPOINT).exists():
            return
        start = read_start(config)
        for name, record in self._begun():
            if (old := record.get("start")) and old["sha256"] != start_record(config)["sha256"]:
                raise ValueError(
                    f"start_from: {config.start_from} is not the policy that {name} of {self.out} "
                    "began with; bring that file back, or choose another folder"
                )
        if is_bucket_url(self.store) or Path(self.store).exists():
            check_start(config, open_store(self.store).schema, start)

    def measure(self, reporter: Reporter) -> Pace:
        """Measure the learner's speed once, and the steps that fit into `train_s`."""
        assert self.experiment.train_s is not None, "the experiment gives steps instead"
        seconds = self.experiment.train_s * self.experiment.budget(self.value)
        selection = self.select().select(self.store)
        config = self.experiment.config(self.learner, self.experiment.seeds[0], self.value)

        def make() -> Pace:
            with reporter.step(f"time {self.seeded}", 1, "learner"):
                rate = updates_per_s(config, selection)
            return Pace(rate, max(1, round(rate * seconds)))

        seen = training_hash(config, selection)
        key = {"train_s": seconds, "config": config.to_json(), "selection": seen}
        timed = (read_record(self.pace) or {}).get("key", {}).get("config")
        if timed and not config.differences({**timed, "seed": config.seed}):
            key["config"] = timed  # of another seed or device: all seeds have the same steps
        return kept_record(self.pace, key, Pace, make)

    def score(self, reporter: Reporter) -> None:
        """Test and score the trained policy, as far as that is not done, and write its row.

        Raises:
            ValueError: the training has not finished.
        """
        trained = finished_result(self.folder)
        config = self.config()
        asked = self._asked()
        best = 0.0
        if asked != (None,):
            returns = episode_returns(self.selects().select(self.store))
            best = self.referred(reporter)[1].score(float(returns.max()))
        scores = []
        for number, target in enumerate(asked):
            share = None if target is None else asked_score(target, best) / 100.0
            score = self._score(reporter, share, "last", f"-asked-{number}" if number else "")
            scores.append({"target": target, "asked": share and 100.0 * share, **score})
        share = scores[0]["asked"] and scores[0]["asked"] / 100.0
        *earlier, last = self.experiment.scored_steps(trained.steps)
        curve = {
            step: self._score(reporter, share, f"step-{step}", f"-step-{step}") for step in earlier
        }
        curve[last] = scores[0]
        measures = _over_kept([point["measures"] for point in curve.values()])
        for name in self.experiment.evaluations:
            further = self.further(name)
            again = (
                self._score(reporter, share, "last", f"-{name}", further) if further else scores[0]
            )
            measures |= measures_of(name, again)
        row = {
            "run": self.name,
            "task": self.task,
            "set": self.data.name,
            "learner": self.learner,
            "seed": self.seed,
            "value": self.value,
            "model": config.model,
            "objective": config.objective,
            "parameters": trained.parameters,
            "steps": trained.steps,
            "control_steps": trained.control_steps,
            "train_s": trained.train_s,
            "validation_loss": trained.validation_loss,
            **self._errors(reporter),
            **{name: value for name, value in scores[0].items() if name not in _OF_ASKING},
            "measures": measures,
            "episodes": (len(scores) + len(curve) - 1) * scores[0]["episodes"],
            "asked": scores if asked != (None,) else [],
            "curve": [[step, point["score"]] for step, point in curve.items()],
        }
        write_record(self.record, row)

    def referred(self, reporter: Reporter) -> tuple[EvaluationPlan, References]:
        """The evaluation with the references that scores need, and these."""
        folder = self.references_folder
        expert = self.experiment.scoring_expert
        with naming(self.out / PLAN):
            return with_references(self.evaluation, folder, reporter, expert)

    def _asked(self) -> Sequence[float | None]:
        return self.experiment.asked(self.learner)

    def _score(
        self,
        reporter: Reporter,
        share: float | None,
        which: str,
        suffix: str,
        further: Mapping[str, Any] | None = None,
    ) -> Row:
        referred, references = self.referred(reporter)
        plan = self.evaluation if share is None else replace(referred, return_target=share)
        plan = with_named(plan, further or {})
        source = PolicySource(self.name, RUN, str(self.folder), which)
        path = self.evaluated.with_stem(f"{self.name}{suffix}")
        evaluation = evaluate_policy(source, plan, reporter, path)
        row = {name.rstrip("_"): getattr(evaluation, name) for name in SCORED}
        measures = own_measures(plan, evaluation.cells)
        return row | {"score": references.score(evaluation.return_), "measures": measures}

    @cached_property
    def held_out(self) -> Selection:
        """The episodes of its set that policies are tested on."""
        held_out = split_episodes(self.config(), self.selects().select(self.store)).held_out
        if held_out is None:
            text = "an experiment that tests needs two episodes, one to train on, one to hold out"
            raise ValueError(f"{self.name}: {text}")
        return held_out

    @cached_property
    def _learned(self) -> Selection:
        """The episodes that it was trained on."""
        return split_episodes(self.config(), self.select().select(self.store)).train

    def _errors(self, reporter: Reporter) -> dict[str, float | None]:
        """Errors on held-out episodes, and on about as many learned from; None where not tested."""
        if not self.experiment.tested:
            return {"test_mse": None, "train_mse": None}
        held_out = self.held_out
        every = max(1, len(self._learned) // len(held_out))
        learned = self._learned.with_rows(self._learned.rows[::every])
        return {
            "test_mse": self._error(held_out, self.name, reporter),
            "train_mse": self._error(learned, f"{self.name}-train", reporter),
        }

    def _error(self, episodes: Selection, name: str, reporter: Reporter) -> float:
        source = PolicySource(self.name, RUN, str(self.folder))

        def make() -> HeldOutError:
            policy = load_policy(self.folder)
            with reporter.step(f"test {self.name}", episodes.steps, "step") as advance:
                learned = self._learned if policy.label_scale is None else None
                return held_out_error(
                    policy, episodes, lambda n: advance(n, ""), self.config(), learned
                )

        key = {"held_out": episodes.hash, "weights": source.key()} | tested_with(self.config())
        return kept_record(self.out / "test" / f"{name}.json", key, HeldOutError, make).mse


_OF_ASKING = ("target", "asked")
_NOT_RECORDED = ("robot", "threads")
"""Settings of an experiment's evaluation that are not for each run: its store names the robot."""


def tested_with(config: TrainConfig) -> dict[str, str]:
    """Part of the key of a run's errors, so that those of an older version are computed again.

    That version gave held-out episodes labels of their own, and tested all on the stored actions.
    """
    is_plain = config.objective == "bc" and not config.executed_actions
    return {} if is_plain else {"labels": "of the training"}


def own_measures(plan: EvaluationPlan, cells: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Means of the task's own measures over an evaluation's cells, of each group of cells."""
    groups = dict.fromkeys(cell.get("group", "") for cell in cells)
    return {
        f"{group} {name}".strip(): fmean(
            cell[name] for cell in cells if cell.get("group", "") == group
        )
        for name in plan.measures
        for group in groups
    }


def _over_kept(policies: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The last policy's measures, and the highest and the mean of all that a run kept."""
    highest, average = OF_KEPT
    measures = dict(policies[-1])
    for name in policies[-1]:
        every = [policy[name] for policy in policies]
        measures |= {f"{highest} {name}": max(every), f"{average} {name}": fmean(every)}
    return measures


def evaluations(out: Path) -> Path:
    """The folder of an experiment's evaluations."""
    return out / "evaluate"


def driver(run: LearnerRun, k: int) -> LearnerRun:
    """The run whose policy drives in round k, trained on all episodes before it."""
    corrections = run.experiment.corrections
    data = DataSet(f"round-{k - 1}", rounds=k - 1)
    if corrections is not None and corrections.driver:
        return replace(run, data=replace(data, name=""), learner=FIRST, seed=0, value=None)
    [learner], [seed] = run.experiment.learners, run.experiment.seeds
    return replace(run, data=data, learner=learner, seed=seed)


def driven_round(run: LearnerRun, corrections: Corrections, k: int) -> LeggedPolicyPlan:
    """The plan of round k. Raises ValueError while the policy that drives is missing."""
    plan = expert_round(run, corrections, k)
    folder = str(driver(run, k).folder)
    turns = {"share": corrections.share, "stretch": corrections.stretch}
    return driven_by(plan, folder, plan.expert, **turns)


def expert_round(run: LearnerRun, corrections: Corrections, k: int) -> LeggedPlan:
    """The plan of round k's episodes with the expert alone, for plain imitation."""
    if (collect := run.experiment.collect) is not None:
        plan = corrections.collect
        grid = replace(plan.grid, seed=plan.grid.seed + k - 1)
        return replace(plan, grid=grid, randomisation=collect.randomisation)
    return round_on_store(corrections, run.store, k)


def round_on_store(corrections: Corrections, store: Path | str, k: int) -> LeggedPlan:
    """The plan of round k's episodes with the expert alone, in the form of a store's."""
    plan = corrections.collect
    grid = replace(plan.grid, seed=plan.grid.seed + k - 1)
    schema = open_store(store).schema
    names = schema.names()
    half = schema.field("obs").dtype == "float16"
    form = StoredForm("state" in names, "privileged" in names, half)
    randomisation = stored_randomisation(schema).written()
    return replace(plan, grid=grid, form=form, randomisation=randomisation)


def episode_returns(selection: Selection) -> np.ndarray:
    """(E,) returns of the episodes."""
    return selection.episodes("return").column("return").to_numpy()


# What rounds of corrections begin with.
_ROUNDS = "rounds-"
"""Beginning of the names of files in a store's records that tell its rounds' plain parts."""
_NOBODY = ""
_ITSELF = "itself"
_DEMONSTRATORS = {
    _NOBODY: "policy_hash is null or policy_hash = ''",
    _ITSELF: "policy_hash = expert_hash",
}
"""Who drove beside the expert -> the condition that holds for these episodes."""


@dataclass(frozen=True)
class FirstParts:
    """Parts of a store.

    Attributes:
        kept: those that rounds begin with; left_out: those that earlier rounds have collected.
        where: SQL condition that leaves out earlier corrections within parts that are kept, as an
            import has them, which makes parts of its own; "" for none.
    """

    kept: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    where: str = ""


def parts_of_demonstrations(store_path: Path | str, among: Sequence[str] = ()) -> FirstParts:
    """The parts in which nobody else drove than who acted, told by the catalog's rows.

    Where a store has no others, episodes in which a policy acted for itself are demonstrations.

    Args:
        among: all that are looked at; empty for all.

    Raises:
        ValueError: there are none.
    """
    store = open_store(store_path)
    selection = store.select().of_parts(among) if among else store.select()
    columns = [
        name for name in ("policy_hash", "expert_hash") if name in selection.catalog.column_names
    ]
    drivers: dict[str, set[str]] = {part: set() for part in among or store.parts()}
    for row in selection.episodes("part", *columns).to_pylist():
        driver = row.get("policy_hash") or _NOBODY
        drivers[row["part"]].add(_ITSELF if driver == row.get("expert_hash") else driver)
    for demonstrator, condition in _DEMONSTRATORS.items():
        kept = tuple(part for part, part_drivers in drivers.items() if demonstrator in part_drivers)
        if kept:
            shared = [part for part in kept if len(drivers[part]) > 1]
            names = ", ".join(f"'{part}'" for part in shared)
            where = f"{condition} or part not in ({names})" if shared else ""
            left_out = tuple(part for part in drivers if part not in kept)
            return FirstParts(kept, left_out, where)
    raise ValueError(
        f"all parts of {store_path} are corrections of policies; choose those of round 0 by "
        "--set select.parts=NAME,NAME"
    )


def without_rounds(experiment: Experiment, store_path: Path | str) -> FirstParts:
    """An experiment's parts without those of plain imitation, of its own rounds or earlier ones.

    Its own are known by their names, those of other rounds by the store's records.

    Raises:
        ValueError: none is left.
    """
    if experiment.corrections is None:
        return FirstParts(experiment.select.parts)
    corrections = experiment.corrections
    chosen = set(experiment.select.parts)
    rounds = set(_noted_parts(store_path))
    for k in count(1):
        plain = set(_plain_parts(corrections, store_path, k))
        if k > corrections.rounds and not plain & chosen:
            break  # earlier ones had no more rounds either
        rounds |= plain
    kept = tuple(part for part in experiment.select.parts if part not in rounds)
    if not kept:
        raise ValueError(
            f"all of {listed(experiment.select.parts)} of {store_path} belong to rounds of "
            "corrections; choose those of round 0 by --set select.parts=NAME,NAME"
        )
    return FirstParts(kept, tuple(part for part in experiment.select.parts if part in rounds))


def note_rounds(experiment: Experiment, store_path: Path | str) -> None:
    """Note in a store's records which parts are an experiment's plain imitation.

    No catalog tells them from demonstrations: the expert alone drives.
    """
    corrections = experiment.corrections
    if corrections is None or experiment.collect is not None or not corrections.plain:
        return
    rounds = range(1, corrections.rounds + 1)
    parts = [part for k in rounds for part in _plain_parts(corrections, store_path, k)]
    if not set(parts) <= set(_noted_parts(store_path)):
        path = records_folder(store_path) / f"{_ROUNDS}{digest(parts)}.json"
        write_record(path, {"parts": parts})


def with_first(experiment: Experiment, first: FirstParts) -> Experiment:
    """An experiment that begins with these parts."""
    select = replace(experiment.select, parts=first.kept)
    if first.where:
        where = f"({select.where}) and ({first.where})" if select.where else first.where
        select = replace(select, where=where)
    return replace(experiment, select=select)


def _plain_parts(corrections: Corrections, store_path: Path | str, k: int) -> list[str]:
    return round_on_store(corrections, store_path, k).part_ids()


def _noted_parts(store_path: Path | str) -> list[str]:
    paths = sorted(records_folder(store_path).glob(f"{_ROUNDS}*.json"))
    records = (read_record(path) for path in paths)
    return [part for record in records if record is not None for part in record["parts"]]
