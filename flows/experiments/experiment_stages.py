"""The stages of an experiment, and the overview of its dataset.

An experiment's folder holds

    plan.json, stages/                what it is, and what is done
    legged.zarr, legged.card/         what it collects
    train/<run>/, pace/<set>-<learner>.json
    evaluate/<policy>.json            test/<run>.json    runs/<run>.json, a run's row
    episodes/<policy>.html            summary.json, wall.json, report.html

`dataset_overview` has counts, returns, randomisation and energy by frequency.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from gaitforge.collectors.experts.expert import drives_a_family, load_expert
from gaitforge.collectors.robots.robot import SEVERAL, load_robots
from gaitforge.collectors.scenarios.randomisation import DRAW_INDEX, DRAWS
from gaitforge.datasets import Selection, open_store
from gaitforge.datasets.statistics import block_spectra
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.page_files import card_of, page_of
from gaitforge.flows.experiments.plan import (
    OF_DATA,
    Corrections,
    DataSet,
    Experiment,
    check_apart,
    file_name,
)
from gaitforge.flows.experiments.runs import (
    LEGGED,
    LearnerRun,
    driven_round,
    driver,
    expert_round,
    tested_with,
)
from gaitforge.flows.experiments.summary import (
    EXPERT_CARD,
    check_measures,
    with_page,
    write_summary,
)
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN
from gaitforge.flows.records.records import digest, read_record, write_record
from gaitforge.flows.settings import with_named
from gaitforge.flows.stages.evaluate import reference_files
from gaitforge.flows.stages.stage import CollectionStage, RecordedStage, Stage, itself
from gaitforge.flows.stages.train import TrainPlan
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.policy_sources import EXPERT
from gaitforge.flows.tasks.registry import evaluation_class, evaluation_of
from gaitforge.learners.training.batches import training_columns, training_hash
from gaitforge.learners.training.config import FREE_TO_CHANGE

# The overview of a dataset.
SPECTRUM_WINDOW = 64
"""Steps of a spectrum's window: the paper's context length on legged data (its Figure 1 takes 256,
longer than our episodes)."""

_SPECTRA = (
    ("projected_gravity", "projected gravity", "1"),
    ("joint_vel", "joint velocity", "rad/s"),
    ("sin_joint_pos", "sine of joint position", "1"),
    ("base_ang_vel_body", "body angular velocity", "rad/s"),
    ("last_action", "last action", "0.25 rad"),
)


def dataset_overview(store_path: Path) -> dict[str, object]:
    """The record behind the report's dataset section, to be written as JSON."""
    store = open_store(store_path)
    selection = store.select()
    episodes = selection.episodes()
    return {
        "info": store.info(),
        "control_dt_s": store.schema.control_dt_s,
        "groups": selection.describe(),
        "levels": selection.describe(("level",)),
        "noise": selection.describe(("action_noise",)),
        "episode_lengths": _histogram(episodes, "length", 24),
        "randomisation": [
            _drawn(episodes, name, draw["unit"])
            for name, draw in store.schema.attributes.get("randomisation", {}).items()
            if not name.startswith(("joint_offset", "joint_strength"))
        ],
        "spectra": _spectra(selection),
    }


def _drawn(episodes: pa.Table, name: str, unit: str) -> dict[str, object]:
    whole = name in DRAW_INDEX and DRAWS[DRAW_INDEX[name]].quantity.whole
    return {"name": name, "unit": unit, **_histogram(episodes, name, 4 if whole else 20)}


def _histogram(episodes: pa.Table, column: str, bins: int) -> dict[str, list[float]]:
    values = episodes.column(column).to_numpy()
    counts, edges = np.histogram(values, bins=bins)
    return {"edges": edges.tolist(), "counts": counts.tolist()}


def _spectra(selection: Selection) -> list[dict[str, object]]:
    """Energy shares of the observation's blocks, averaged over a block's channels."""
    kept = ("frequency_hz", "energy_share", "channels")
    spectra = {
        spectrum["block"]: spectrum for spectrum in block_spectra(selection, "obs", SPECTRUM_WINDOW)
    }
    return [
        {"signal": title, "unit": unit, **{key: spectra[name][key] for key in kept}}
        for name, title, unit in _SPECTRA
    ]


# The stages of an experiment.
STORE = "legged.zarr"
_REFERENCES = "evaluate expert"


@dataclass(frozen=True)
class Pages:
    """Writers of an experiment's pages.

    Attributes:
        card: card(store, reporter) writes `card_of(store)`.
        episodes: episodes(store, page, reporter) writes a page of stored episodes; None if no
            package does, and there is no such stage then.
        policies: policies(out, names, reporter) writes `page_of(out, name)` of evaluations; or
            None.
        report: report(out, reporter) writes report.html.
    """

    card: Callable[[Path, Reporter], object]
    episodes: Callable[[Path, Path, Reporter], object] | None
    policies: Callable[[Path, Sequence[str], Reporter], object] | None
    report: Callable[[Path, Reporter], object]


@dataclass(frozen=True)
class _Source:
    """A store, its task's name, and how policies that learn from it are evaluated."""

    store: Path | str
    task: str
    evaluation: EvaluationPlan

    def expert_key(self, experiment: Experiment) -> object:
        """The expert that scores 100, as keys of stages have it: with a hash where it is a file.

        It may be a user's class, whose code or `key` changes, or a run that is trained again. Where
        it cannot be read, or the user does not trust it, it is only a name.
        """
        expert = experiment.scoring_expert or self.evaluation.expert
        if not (":" in expert or Path(expert).exists()):
            return experiment.expert
        with suppress(ValueError):
            source = self.evaluation.source(expert)
            named = source.kind == EXPERT
            weights = self.evaluation.expert_hash(expert) if named else source.key()
            return [experiment.expert, weights]
        return experiment.expert


@dataclass
class _Listing:
    """The stages of an experiment, as they are listed."""

    claim: Claim
    out: Path
    pages: Pages
    sources: Sequence[_Source]
    stages: list[Stage] = field(default_factory=list)
    keys: list[object] = field(default_factory=list)
    """Of the stages, and of pages that nothing writes: without these pages a run stays finished."""
    shown: set[str] = field(default_factory=set)
    experts: dict[str, object] = field(default_factory=dict)
    """Task -> `_Source.expert_key`."""
    alone: set[str] = field(default_factory=set)
    """Tasks whose runs keep names from when their store was the folder's only one."""

    def __post_init__(self) -> None:
        runs = self.runs() if len(self.sources) > 1 else []
        before = {run.task for run in runs if _is_of_task(replace(run, several=False))}
        self.alone = before - {run.task for run in runs if _is_of_task(run)}

    @property
    def experiment(self) -> Experiment:
        return self.claim.experiment

    @property
    def whole_key(self) -> str:
        """Key of what is done for the experiment as a whole, before any policy is evaluated."""
        return digest(replace(self.experiment, evaluations={}))

    def run(
        self, source: _Source, data: DataSet, learner: str, seed: int, value: float | None = None
    ) -> LearnerRun:
        return LearnerRun(
            self.experiment,
            self.out,
            source.store,
            source.task,
            source.evaluation,
            data,
            learner,
            seed,
            value,
            several=len(self.sources) > 1 and source.task not in self.alone,
        )

    def runs(self) -> list[LearnerRun]:
        """All runs; seeds come last, so that every learner has been on every set before."""
        return [
            self.run(source, data, learner, seed, value)
            for seed in self.experiment.seeds
            for source in self.sources
            for data in self.experiment.data_sets()
            for value in self.experiment.values()
            for learner in self.experiment.learners
        ]

    def add(self, name: str, **options: Any) -> str:
        """Add a stage; by default it is done for the experiment as a whole. Returns its name."""
        key = options.pop("key", None) or self.whole_key
        kind = CollectionStage if "collection" in options else RecordedStage
        self.stages.append(kind(name, key, **options))
        self.keys.append(key)
        return name

    def add_page(
        self,
        page: Path,
        write: Callable[..., object] | None,
        *arguments: object,
        after: tuple[str, ...],
        key: str = "",
    ) -> None:
        """Add the stage that writes a page of episodes, if anything writes it."""
        key = key or self.whole_key
        if write is None:
            self.keys.append(key)
            return
        work = partial(write, *arguments)
        self.add(f"show {page.stem}", key=key, run=work, outputs=(page,), after=after, page=page)


def _is_of_task(run: LearnerRun) -> bool:
    """Whether a run's folder holds a training on its task."""
    record = read_record(run.folder / PLAN) or {}
    named = record.get("robot") or record.get("task")
    return bool(named) and _task_name(named) == run.task


def experiment_stages(claim: Claim, out: Path, pages: Pages) -> list[Stage]:
    """The stages of an experiment, each after those whose results it reads.

    Raises:
        ValueError: a store of a task that is not simulated here, two of one task, or an empty set.
    """
    experiment = claim.experiment
    listing = _Listing(claim, out, pages, list(_sources(claim, out)))
    listing.experts |= {source.task: source.expert_key(experiment) for source in listing.sources}
    runs = listing.runs()
    _check_runs(experiment, runs)
    data = _add_collection(listing)
    if experiment.own_rounds:
        _add_references(listing)
    if experiment.corrections is not None:
        data = _add_rounds(listing, experiment.corrections, runs, data)
    if experiment.collect is not None:
        store = out / STORE
        outputs = (out / "dataset.json", out / EXPERT_CARD, card_of(store))
        work = partial(_describe, experiment.collect.expert, store, out, pages)
        page = outputs[-1]
        listing.add("describe", run=work, outputs=outputs, after=data, page=page)
    if not experiment.own_rounds:
        _add_references(listing)
        for run in runs:
            _add_run(listing, run, data)
    work = partial(write_summary, claim.name, experiment, runs, out, tuple(listing.stages))
    return with_page(listing.stages, out, claim, work, partial(pages.report, out), listing.keys)


def _check_runs(experiment: Experiment, runs: Sequence[LearnerRun]) -> None:
    """Raise ValueError if two runs would share a folder, a stage or a record.

    Or for a further evaluation, or a published statement, that does not fit the runs.
    """
    check_apart((run.name, run.described) for run in runs)
    check_measures(experiment, runs)
    for run in runs:
        for name in experiment.evaluations:
            with_named(run.evaluation, run.further(name))  # raises
    by_name = {run.name: run for run in runs}
    # Files of one run beside its own, see `LearnerRun.score`: no other run may have such names.
    beside = r"(-asked-\d+|-step-\d+|-train)"
    for name, run in by_name.items():
        match = re.fullmatch(f"(.+?){beside}", name)
        if match and match[1] in by_name:
            holder = by_name[match[1]].described
            raise ValueError(
                f"{run.described} would be named {name}, as a file of {holder}; rename one of them"
            )


def _sources(claim: Claim, out: Path) -> Iterator[_Source]:
    experiment = claim.experiment
    tasks = set[str]()
    if experiment.collect is not None:
        drawn = {"randomisation": experiment.collect.randomisation}
        plan = with_named(evaluation_class(LEGGED)(), {**drawn, **experiment.evaluate})
        yield _Source(out / STORE, LEGGED, plan)
    for address in claim.stores:
        store = open_store(address)
        plan = evaluation_of(store)
        if plan is None:
            raise ValueError(
                f"{address} is of {store.schema.robot or 'an unknown task'}, in which no policy "
                "can be evaluated here"
            )
        task = LEGGED if plan.kind == LEGGED else _task_name(store.schema.robot or plan.kind)
        if task in tasks:
            raise ValueError(f"an experiment takes one store of each task, got two of {task}")
        tasks.add(task)
        source = _Source(address, task, with_named(plan, experiment.evaluate))
        if plan.kind == LEGGED:
            _check_robot(experiment, store.schema.robot, source)
        for learner in experiment.learners:
            config = experiment.config(learner, experiment.seeds[0])
            TrainPlan(experiment.select, config).selection(address)
        yield source


def _task_name(text: str) -> str:
    """The name of a task that a store names: a folder's, and not that of the legged task."""
    return file_name(text if text != LEGGED else f"{text} ")


def _check_robot(experiment: Experiment, robot: str, source: _Source) -> None:
    """Raise ValueError if the expert that scores or labels drives another robot than learners."""
    expert = experiment.scoring_expert or source.evaluation.expert
    robots = getattr(source.evaluation, "robot", "") or robot
    if robots == SEVERAL:
        raise ValueError(f"{source.store} has several robots; name some: evaluate.robot=go1,go2")
    if "," in expert or drives_a_family(load_expert(expert).weights):
        LeggedPlan(expert=expert, robot=robots).pairs()
        return
    driven = load_expert(expert).policy.robot.name
    if any(card.name != driven for card in load_robots(robots)):
        raise ValueError(
            f"expert {expert} drives {driven}, but the learners drive {robots}; give an expert of "
            "that robot"
        )


def _add_collection(listing: _Listing) -> tuple[str, ...]:
    """Collect and show the episodes; returns the names of stages that later ones wait for."""
    collect = listing.experiment.collect
    out = listing.out
    store = listing.out / STORE
    if collect is None:
        return ()
    listing.add("collect", collection=partial(itself, collect), place=store)
    page = page_of(out, "collected")
    listing.add_page(page, listing.pages.episodes, store, page, after=("collect",))
    return ("collect",)


def _add_references(listing: _Listing) -> None:
    """Evaluate the policies that score 0 and 100, where the task has no references."""
    for source in listing.sources:
        learner = next(iter(listing.experiment.learners))
        seed = listing.experiment.seeds[0]
        run = listing.run(source, DataSet(), learner, seed)
        outputs = reference_files(source.evaluation, run.references_folder)
        if outputs:
            name = _REFERENCES if source.task == LEGGED else f"{_REFERENCES} of {source.task}"
            key = digest([source.evaluation, listing.experts[source.task]])
            listing.add(name, key=key, run=run.referred, outputs=outputs)


def _add_rounds(
    listing: _Listing, corrections: Corrections, runs: Sequence[LearnerRun], data: tuple[str, ...]
) -> tuple[str, ...]:
    """Add the rounds, with the learner's own runs where it drives; as `_add_collection`."""
    [source], own_rounds = listing.sources, listing.experiment.own_rounds
    store = Path(source.store)
    for k in range(1, corrections.rounds + 1):
        if own_rounds:
            _add_round(listing, runs, k - 1, data)
        drives = driver(runs[0], k)
        name = f"collect round-{k}"
        if not own_rounds:
            _add_training(listing, drives, data)
            name = "collect corrections" if k == 1 else f"collect corrections-{k}"
        driven = partial(driven_round, drives, corrections, k)
        after = (f"train {drives.name}",)
        data = (listing.add(name, collection=driven, place=store, after=after),)
        if corrections.plain:
            alone = partial(expert_round, drives, corrections, k)
            data += (listing.add(f"collect plain-{k}", collection=alone, place=store),)
    if own_rounds:
        _add_round(listing, runs, corrections.rounds, data)
    return data


def _add_round(
    listing: _Listing, runs: Sequence[LearnerRun], k: int, data: tuple[str, ...]
) -> None:
    for run in runs:
        if run.data.rounds == k:
            _add_run(listing, run, data)


def _add_run(listing: _Listing, run: LearnerRun, data: tuple[str, ...]) -> None:
    """Time, train, score and show a run."""
    if listing.experiment.train_s is not None and run.seed == listing.experiment.seeds[0]:
        key = digest([listing.experiment.train_s, _timed(run), _data_key(run)])
        work = run.measure
        outputs = (run.pace,)
        data += (listing.add(f"time {run.seeded}", key=key, run=work, outputs=outputs, after=data),)
    trained = _add_training(listing, run, data)
    expert = listing.experts[run.task]
    further = {name: run.further(name) for name in run.experiment.evaluations}
    key = digest([_train_key(run, expert), run.evaluation, expert, run.experiment.targets,
                  run.experiment.curve, run.experiment.tested and _tested_with(run),
                  *([further] if further else [])])  # fmt: skip
    references = [stage.name for stage in listing.stages if stage.name.startswith(_REFERENCES)]
    after = (trained, *references)
    outputs = tuple(dict.fromkeys([run.record, run.evaluated, *map(run.further_file, further)]))
    name = f"evaluate {run.name}"
    listing.add(name, key=key, run=run.score, outputs=outputs, after=after)
    if run.task == LEGGED and run.learner not in listing.shown:
        listing.shown.add(run.learner)
        page = page_of(listing.out, run.name)
        write = listing.pages.policies
        listing.add_page(page, write, listing.out, (run.name,), after=(name, *references), key=key)


def _add_training(listing: _Listing, run: LearnerRun, data: tuple[str, ...]) -> str:
    run.check_start()
    paced = [f"time {run.seeded}"] if run.experiment.train_s is not None else []
    names = {stage.name for stage in listing.stages}
    return listing.add(
        f"train {run.name}",
        key=_train_key(run, listing.experts[run.task]),
        run=run.train,
        outputs=(run.folder / "checkpoint.json",),
        after=(*data, *(name for name in paced if name in names)),
        place=run.folder,
        trains=True,
        device=run.config().device,
    )


def _train_key(run: LearnerRun, expert: object) -> str:
    scaled = run.experiment.targets and run.experiment.asked(run.learner) != (None,)
    by = [run.evaluation, expert] if scaled else []
    return digest([run.config().to_json(), run.experiment.train_s, _data_key(run), by])


def _timed(run: LearnerRun) -> dict[str, object]:
    """The settings of a training whose change has its learner timed again."""
    free = ("seed", *FREE_TO_CHANGE)
    return {name: value for name, value in run.config().to_json().items() if name not in free}


def _tested_with(run: LearnerRun) -> object:
    """What the errors of a tested run depend on beside it; True, as before, for plain cloning.

    A version took the error of training from all episodes of a set, whatever was learned from.
    """
    of_part = OF_DATA.keys() & run.experiment.vary or run.experiment.best(run.learner) < 1.0
    learned = {"train_mse": "of the training"} if of_part else {}
    return tested_with(run.config()) | learned or True


def _data_key(run: LearnerRun) -> object:
    """Key of what a run's training sees of its episodes."""
    if not run.experiment.fixed:
        return training_hash(run.config(), run.select().select(run.store))
    corrections = run.experiment.corrections
    rounds = corrections and replace(corrections, rounds=run.data.rounds or corrections.rounds)
    plans: list[object] = [run.experiment.collect, rounds, run.experiment.select, run.data]
    edits = _edits_seen(run)
    return [*plans, edits] if edits else plans


def _edits_seen(run: LearnerRun) -> list[str]:
    """SHA-256 of the edits of a run's store that can change what its training sees."""
    if run.experiment.collect is not None and not Path(run.store).exists():
        return []  # it is not collected yet
    columns = set(training_columns(run.config()))
    narrowed = bool(run.experiment.select.where or run.data.condition)
    return [
        edit.sha256
        for edit in open_store(run.store).edits()
        if narrowed or edit.kind != "annotate" or columns.intersection(edit.columns)
    ]


def _describe(expert: str, store: Path, out: Path, pages: Pages, reporter: Reporter) -> None:
    write_record(out / EXPERT_CARD, load_expert(expert).card)
    write_record(out / "dataset.json", dataset_overview(store))
    pages.card(store, reporter)
