"""The summary of an experiment: what was learned from, every run's numbers, and means over seeds.

Reading only: a lost file is an error that names it.
"""

import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.legged.rewards import LARGEST_RETURN
from gaitforge.common.errors import names_allowed
from gaitforge.datasets import StoreInfo, open_store
from gaitforge.flows.experiments.evaluations import MEASURES, OF_KEPT
from gaitforge.flows.experiments.plan import Experiment, check_stages, verdicts
from gaitforge.flows.experiments.runs import (
    LEGGED,
    LearnerRun,
    Row,
    episode_returns,
    evaluations,
    own_measures,
)
from gaitforge.flows.intervals import (
    interquartile_mean,
    mean,
    mean_and_std,
    ratio,
    ratio_interval,
    stratified_interval,
)
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import collection_rate, part_records
from gaitforge.flows.records.records import (
    digest,
    provenance,
    read_record,
    reading_files,
    to_tree,
    write_record,
)
from gaitforge.flows.stages.stage import RecordedStage, Stage, seconds_in_all, stage_seconds

SUMMARY = "summary.json"
WALL = "wall.json"
EXPERT_CARD = "expert.json"
EXPERT = "expert"
GROUPINGS = {
    "cells": ("terrain", "skill", "level"),
    "terrains": ("terrain",),
    "skills": ("skill",),
    "robots": ("robot",),
}
_OUTCOMES = ("return", "success", "survival")
_LATENCIES = ("latency_us_median", "latency_us_p99")
_MEASURES = (
    "score",
    *_OUTCOMES,
    "return_fraction",
    "train_s",
    "validation_loss",
    "test_mse",
    "train_mse",
    *_LATENCIES,
)
_NUMBERS = (
    "score",
    *_OUTCOMES,
    "length",
    "episodes",
    "parameters",
    "steps",
    "control_steps",
    "train_s",
    "validation_loss",
    *_LATENCIES,
)
"""Numbers of every run's row that a published statement may be about."""
_INTERVALS = ("return_ci95", "success_ci95", "return_fraction_ci95")
_RESULT = ("task", "set", "learner", "value")


@dataclass(frozen=True)
class Summary:
    """Content of `summary.json`.

    Attributes:
        name: of the preset; plan: the experiment.
        dataset: the store that it collected, or None.
        collect: "steps_per_s" of its collection; empty without one.
        sets: a row each: the episodes, their scores, the returns that score 0 and 100, and the
            measures of the expert.
        expert: the expert's row on the cells of the runs; None for tasks without terrains.
        runs: a row each; results: means over the seeds of a learner on a set, with intervals.
        overall: means over all sets, of every learner.
        verdicts: a row for each of the plan's published statements, see `plan.verdicts`.
        cells: a row for each policy, terrain, skill and level of the legged task.
        largest_return: possible in a legged episode; wall_s: seconds in which some stage ran.
        command: repeats the experiment.
    """

    name: str
    plan: Experiment
    dataset: StoreInfo | None
    collect: Mapping[str, float]
    sets: Sequence[Row]
    expert: Row | None
    runs: Sequence[Row]
    results: Sequence[Row]
    overall: Sequence[Row]
    verdicts: Sequence[Row]
    cells: Sequence[Row]
    evaluated_episodes: int
    largest_return: float | None
    wall_s: float
    command: str
    git_revision: str
    versions: Mapping[str, str]
    machine: str


def check_measures(experiment: Experiment, runs: Sequence[LearnerRun]) -> None:
    """Raise ValueError for a published statement about a measure that its learners' runs lack."""
    for statement in experiment.published:
        if not statement.measure:
            continue
        for run in runs:
            if run.learner in (statement.ahead, statement.behind):
                _check_measure(statement.measure, run)


def _check_measure(measure: str, run: LearnerRun) -> None:
    """Raise ValueError for a name of no measure of a run, as far as its plan tells them."""
    experiment = run.experiment
    tested = ("test_mse", "train_mse") if experiment.tested else ()
    of_legged = ("return_fraction",) if run.task == LEGGED else ()
    groups = run.evaluation.cell_groups()
    own = [
        f"{group} {name}".strip() for name in run.evaluation.measures for group in groups or ("",)
    ]
    kept = [f"{which} {name}" for name in own for which in OF_KEPT]
    further = [f"{name} {said}" for name in experiment.evaluations for said in (*MEASURES, *own)]
    known = [*_NUMBERS, *tested, *of_legged, *own, *kept, *further]
    # Of groups that only the cells tell, any name is taken.
    grouped = groups is None and any(measure.endswith(f" {name}") for name in own)
    if measure not in known and not grouped:
        raise ValueError(
            f"published: runs of {run.described} have no measure '{measure}'; "
            f"{names_allowed(measure, known)}"
        )


def write_summary(
    name: str,
    experiment: Experiment,
    runs: Sequence[LearnerRun],
    out: Path,
    stages: Sequence[Stage],
    reporter: Reporter,
) -> None:
    """Write `summary.json` and `wall.json` of an experiment whose runs are scored.

    Args:
        stages: those whose seconds count.

    Raises:
        ValueError: a file of a run is missing; the line names it.
    """
    seconds = stage_seconds(out, stages)
    write_record(out / WALL, seconds)
    write_record(out / SUMMARY, _summary(name, experiment, runs, out, seconds, reporter))


def _summary(
    name: str,
    experiment: Experiment,
    runs: Sequence[LearnerRun],
    out: Path,
    seconds: Sequence[Mapping[str, Any]],
    reporter: Reporter,
) -> Summary:
    """The summary, from the files of the runs."""
    expert = read_record(evaluations(out) / f"{EXPERT}.json")
    legged = [run for run in runs if run.task == LEGGED]
    expert = expert if legged else None
    rows = [_run_row(run, expert if run.task == LEGGED else None) for run in runs]
    names = [EXPERT, *(run.name for run in legged)] if expert else []
    store = runs[0].store if experiment.collect is not None else None
    parts = experiment.collect.part_ids() if experiment.collect is not None else ()
    rate = {"steps_per_s": collection_rate(part_records(store, parts))} if store else {}
    return Summary(
        name=name,
        plan=experiment,
        dataset=open_store(store).info() if store else None,
        collect=rate,
        sets=[_described(run, reporter) for run in _one_a_set(runs)],
        expert=_expert_row(expert, legged[0]) if expert else None,
        runs=rows,
        results=[_result(group) for group in grouped_by(rows, _RESULT)],
        overall=[_overall(group) for group in grouped_by(rows, ("learner", "value"))],
        verdicts=list(verdicts(experiment.published, rows, "score")),
        cells=[cell for policy in names for cell in _evaluation(out, policy)["cells"]],
        evaluated_episodes=sum(row["episodes"] for row in rows),
        largest_return=LARGEST_RETURN if legged else None,
        wall_s=seconds_in_all(seconds),
        command=_command(name, runs, out),
        **provenance(),
    )


def with_page(
    stages: Sequence[Stage],
    out: Path,
    plan: object,
    summarise: Callable[[Reporter], object],
    report: Callable[[Reporter], object],
    keys: Sequence[object] = (),
) -> list[Stage]:
    """Stages, then one that writes `summary.json` of them all, and one that writes the page.

    Args:
        plan: all that the summary and the page tell beside the stages' results, such as the
            published statements: where it changes, both are written again.
        keys: of the stages, and of more that the page depends on; empty for those of the stages.

    Raises:
        ValueError: names of stages or of their files are none, or come twice.
    """
    key = digest([[*keys] or [stage.key for stage in stages], plan])
    page = out / "report.html"
    work = partial(_read, out, summarise)
    names = tuple(stage.name for stage in stages)
    every = [
        *stages,
        RecordedStage("compare", key, run=work, outputs=(out / SUMMARY,), after=names),
        RecordedStage("report", key, run=report, outputs=(page,), after=("compare",), page=page),
    ]
    check_stages(every)
    return every


def _read(out: Path, summarise: Callable[[Reporter], object], reporter: Reporter) -> None:
    """Summarise the files of an experiment; ValueError where they hold wrong types."""
    with reading_files(out):
        summarise(reporter)


def _command(name: str, runs: Sequence[LearnerRun], out: Path) -> str:
    """The command that repeats an experiment."""
    folder = out.name if out.is_absolute() else str(out)
    stores = {str(run.store): None for run in runs if run.experiment.collect is None}
    again = ["gaitforge", "run", f"{folder}/plan.json", *stores, "--out", f"{folder}-again"]
    return shlex.join(again)


def _evaluation(out: Path, name: str) -> Row:
    return needed(evaluations(out) / f"{name}.json")


def needed(path: Path) -> Row:
    """The record that a stage has written; ValueError where it is missing."""
    record = read_record(path)
    if record is None:
        raise ValueError(f"{path} is missing, which a stage has written; run the experiment again")
    return record


def _run_row(run: LearnerRun, expert: Row | None) -> Row:
    row = needed(run.record)
    return row | (_outcomes(needed(run.evaluated), expert) if expert else {})


def _expert_row(expert: Row, run: LearnerRun) -> Row:
    name = run.experiment.scoring_expert or run.evaluation.expert
    card = {} if "," in name else load_expert(name).card
    row = {"run": EXPERT, "task": LEGGED, "set": "", "learner": EXPERT, "seed": None, "value": None}
    row |= {"parameters": expert["parameters"], "score": 100.0, "train_s": card.get("wall_s")}
    return row | {name: expert[name] for name in _LATENCIES} | _outcomes(expert, expert)


def _outcomes(evaluation: Row, expert: Row) -> Row:
    """Return, success and survival, over all cells and by terrain and skill.

    `return_fraction` is the mean return over the expert's on the same cells, see `ratio`. The 95 %
    intervals are over episodes.
    """
    row = {name: evaluation[name] for name in (*_OUTCOMES, *_INTERVALS[:2])}
    row["return_fraction"] = ratio(evaluation["return"], expert["return"])
    row["return_fraction_ci95"] = ratio_interval(evaluation["returns"], expert["returns"])
    for name, by in GROUPINGS.items():
        row[name] = _grouped(evaluation, expert, by)
    return row


def _grouped(evaluation: Row, expert: Row, by: Sequence[str]) -> list[Row]:
    """A row per group of cells; both evaluations have the same cells in the same order.

    None for columns that the cells lack, as robots where there is one.
    """
    if not set(by) <= evaluation["cells"][0].keys():
        return []
    groups: dict[tuple[Any, ...], list[int]] = {}
    for k, cell in enumerate(evaluation["cells"]):
        groups.setdefault(tuple(cell[name] for name in by), []).append(k)
    rows = []
    for key, group in groups.items():
        cells, of = ([record["cells"][k] for k in group] for record in (evaluation, expert))
        row = dict(zip(by, key, strict=True)) | {
            "episodes": sum(cell["episodes"] for cell in cells)
        }
        row |= {name: fmean(cell[name] for cell in cells) for name in _OUTCOMES}
        row["return_fraction"] = ratio(row["return"], fmean(cell["return"] for cell in of))
        returns = ([record["returns"][k] for k in group] for record in (evaluation, expert))
        rows.append(row | {"return_fraction_ci95": ratio_interval(*returns)})
    return rows


def _one_a_set(runs: Sequence[LearnerRun]) -> list[LearnerRun]:
    return list({(run.task, run.data.name): run for run in reversed(runs)}.values())[::-1]


def _described(run: LearnerRun, reporter: Reporter) -> Row:
    """A set: where its episodes are, how many, and how they score."""
    selection = run.selects().select(run.store)
    info = open_store(run.store).info()
    row: Row = {
        "task": run.task,
        "set": run.data.name,
        "store": Path(run.store).name,
        "dataset": info.hash,
        "selection": selection.hash,
        "episodes": len(selection),
        "steps": selection.steps,
        "control_dt_s": selection.schema.control_dt_s,
    }
    if run.task == LEGGED and "robot" in selection.catalog.column_names:
        row["robots"] = selection.episodes("robot").column("robot").unique().to_pylist()
    if run.experiment.tested:
        held_out = run.held_out
        row["held_out"] = {
            "episodes": len(held_out),
            "steps": held_out.steps,
            "selection": held_out.hash,
        }
    plan, references = run.referred(reporter)
    expert = read_record(run.references_folder / f"{EXPERT}.json") if plan.measures else None
    row["measures"] = own_measures(plan, expert["cells"]) if expert else {}
    scores = np.array([references.score(value) for value in episode_returns(selection)])
    row |= {"zero": references.zero, "expert": references.hundred}
    return row | {"score": scores.mean(), "score_std": scores.std(), "score_best": scores.max()}


def grouped_by(rows: Iterable[Row], names: Sequence[str]) -> list[list[Row]]:
    """Rows with equal values of these names, in the order in which they first come."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[name] for name in names), []).append(row)
    return list(groups.values())


def _result(rows: Sequence[Row]) -> Row:
    """Mean and standard deviation over the seeds, with 95 % intervals.

    The score's interval is over the seeds. Those of return and success are over episodes, which the
    seeds share: their limits are the means of the seeds' limits.
    """
    first = rows[0]
    alike = (*_RESULT, "model", "objective", "parameters", "steps")
    measures = {name: mean_and_std([row.get(name) for row in rows]) for name in _MEASURES}
    result: Row = {
        **{name: first[name] for name in alike},
        "runs": [row["run"] for row in rows],
        "seeds": [row["seed"] for row in rows],
        "control_steps": fmean(row["control_steps"] for row in rows),
        **to_tree(measures),
        "measures": {
            name: to_tree(mean_and_std([row["measures"][name] for row in rows]))
            for name in first.get("measures", ())
        },
        "score_ci95": stratified_interval([[row["score"] for row in rows]], mean),
        **{name: _mean_limits([row.get(name) for row in rows]) for name in _INTERVALS},
        "asked": [
            {**target, "score": to_tree(mean_and_std([row["asked"][k]["score"] for row in rows]))}
            for k, target in enumerate(first["asked"])
        ],
    }
    for name, by in GROUPINGS.items():
        groups = zip(*(row.get(name, []) for row in rows), strict=True)
        result[name] = [_over_seeds(group, by) for group in groups]
    return result


def _over_seeds(group: Sequence[Row], by: Sequence[str]) -> Row:
    row = {name: group[0][name] for name in (*by, "episodes")}
    for name in (*_OUTCOMES, "return_fraction"):
        row[name] = to_tree(mean_and_std([seed_row[name] for seed_row in group]))
    limits = _mean_limits([seed_row["return_fraction_ci95"] for seed_row in group])
    return row | {"return_fraction_ci95": limits}


def _mean_limits(intervals: Sequence[Any]) -> list[float] | None:
    return None if None in intervals else np.mean(intervals, axis=0).tolist()


def _overall(rows: Sequence[Row]) -> Row:
    """Mean and interquartile mean of a learner over all sets, with their intervals."""
    scores = [[row["score"] for row in group] for group in grouped_by(rows, ("task", "set"))]
    every = np.concatenate(scores)
    return {
        "learner": rows[0]["learner"],
        "value": rows[0]["value"],
        "sets": len(scores),
        "runs": len(every),
        "mean": float(mean(every)),
        "mean_ci95": stratified_interval(scores, mean),
        "iqm": float(interquartile_mean(every)),
        "iqm_ci95": stratified_interval(scores, interquartile_mean),
    }
