"""The stages of a pipeline, and the claim of its folder.

plan.json, stages/, legged.zarr, dataset.json, expert.json, legged.card/
train/<run>/, evaluate/<run>.json, episodes/, summary.json, wall.json, report.html
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.plans import PLAN, plan_from_tree
from gaitforge.flows.records.records import digest, provenance, read_record, to_tree, write_record
from gaitforge.flows.stages.evaluate import PolicySource, evaluate_policy
from gaitforge.flows.stages.overview import dataset_overview
from gaitforge.flows.stages.pipeline.plan import PipelinePlan
from gaitforge.flows.stages.pipeline.summary import EXPERT_CARD, STORE, SUMMARY, write_summary
from gaitforge.flows.stages.staging import Stage
from gaitforge.flows.stages.status import PIPELINE
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.flows.tasks.legged import LeggedPlan
from gaitforge.flows.tasks.legged_policy import LeggedPolicyPlan, driven_by
from gaitforge.learners.training.config import TrainConfig

_FIRST = "first"


@dataclass(frozen=True)
class Pages:
    """What writes a pipeline's pages.

    Attributes:
        card: card(store, reporter) writes `card_of(store)`.
        episodes: episodes(store, page, reporter) writes a page of stored episodes.
        policies: policies(out, names, reporter) writes `page_of(out, name)` of evaluations.
        report: report(out, reporter) writes report.html.
    """

    card: Callable[[Path, Reporter], Any]
    episodes: Callable[[Path, Path, Reporter], Any]
    policies: Callable[[Path, Sequence[str], Reporter], Any]
    report: Callable[[Path, Reporter], Any]


def claim(plan: PipelinePlan, out: Path) -> None:
    """Write the plan, or check that the one in the folder is this one.

    Raises:
        ValueError: `out` cannot be written, or holds a pipeline of another plan.
    """
    if not (out / PLAN).exists():
        write_record(out / PLAN, {"kind": PIPELINE, "plan": plan, **provenance()})
    elif to_tree(recorded_plan(out)) != to_tree(plan):
        raise ValueError(
            f"{out} holds a pipeline with other settings; choose another folder or remove it"
        )


def recorded_plan(path: Path) -> PipelinePlan:
    """The plan of a pipeline's folder, or of its plan's file.

    Raises:
        ValueError: there is none.
    """
    path = path / PLAN if path.is_dir() else path
    record = read_record(path)
    if record is None:
        raise ValueError(f"no plan at {path}")
    try:
        return plan_from_tree(PipelinePlan, record.get("plan", record))
    except (AttributeError, ValueError) as error:
        raise ValueError(f"{path} is not the plan of a pipeline: {error}") from None


def pipeline_stages(plan: PipelinePlan, out: Path, pages: Pages) -> list[Stage]:
    """The stages of a pipeline, each after those whose results it reads."""
    stage, store = partial(Stage, key=digest(plan)), out / STORE
    stages = [stage("collect", collection=partial(_collection, plan), place=store)]
    page = page_of(out, "collected")
    work = partial(pages.episodes, store, page)
    stages.append(stage("show collected", run=work, after=("collect",), page=page))
    if plan.corrections is not None:
        run = out / "train" / _FIRST
        first = partial(_train, _first, plan, store, run)
        stages.append(_training(stage, plan.corrections.config, run, first, "collect"))
        driven = partial(_corrections, plan, run)
        name, after = "collect corrections", (f"train {_FIRST}",)
        stages.append(stage(name, after=after, collection=driven, place=store))
    data = next(each.name for each in reversed(stages) if each.collection is not None)
    described = (out / "dataset.json", out / EXPERT_CARD, card_of(store))
    describing = partial(_describe, plan, out, pages)
    stages.append(
        stage("describe", run=describing, outputs=described, after=(data,), page=card_of(store))
    )
    for name, config in plan.runs().items():
        run = out / "train" / name
        work = partial(_train, _final, plan, store, run)
        stages.append(_training(stage, config, run, work, data))
    evaluations = []
    for name in ("expert", *plan.runs()):
        path = out / "evaluate" / f"{name}.json"
        trained = name != "expert"
        source = PolicySource(name, out / "train" / name if trained else None, plan.collect.expert)
        work = partial(_evaluate, source, plan, path)
        after = (f"train {name}",) if trained else ()
        evaluations.append(stage(f"evaluate {name}", run=work, outputs=(path,), after=after))
    stages += evaluations
    for name in plan.runs():
        work = partial(pages.policies, out, (name,))
        after = ("evaluate expert", f"evaluate {name}")
        stages.append(stage(f"show {name}", run=work, after=after, page=page_of(out, name)))
    names = tuple(each.name for each in evaluations)
    compare = partial(write_summary, plan, out, tuple(stages))
    stages.append(stage("compare", run=compare, outputs=(out / SUMMARY,), after=names))
    report, after = partial(pages.report, out), tuple(each.name for each in stages)
    page = out / "report.html"
    return [*stages, stage("report", run=report, outputs=(page,), after=after, page=page)]


def page_of(out: Path, name: str) -> Path:
    """The page of the episodes of an evaluation, or of those that were collected."""
    return out / "episodes" / f"{name}.html"


def _collection(plan: PipelinePlan) -> LeggedPlan:
    return plan.collect


def card_of(store: Path) -> Path:
    """The page of a store's card."""
    return store.with_name(f"{store.name}.card") / "card.html"


def _training(stage: Any, config: TrainConfig, run: Path, work: Any, after: str) -> Stage:
    done, device = (run / "checkpoint.json",), config.device
    whole = partial(stage, f"train {run.name}", run=work, outputs=done, after=(after,), place=run)
    return whole(trains=True, device=device)


def _corrections(plan: PipelinePlan, first: Path) -> LeggedPolicyPlan:
    assert plan.corrections is not None
    collect = plan.corrections.collect
    return driven_by(collect, str(first), collect.expert)


def _first(plan: PipelinePlan, name: str) -> TrainPlan:
    """The policy that drives learns from the expert's episodes alone."""
    assert plan.corrections is not None
    parts = tuple(plan.collect.part_ids())
    return TrainPlan(SelectPlan(parts=parts), plan.corrections.config)


def _final(plan: PipelinePlan, name: str) -> TrainPlan:
    return TrainPlan(plan.select, plan.runs()[name])


def _train(
    training: Callable[[PipelinePlan, str], TrainPlan],
    plan: PipelinePlan,
    store: Path,
    run: Path,
    reporter: Reporter,
) -> None:
    run_training(training(plan, run.name), store, run, reporter)


def _describe(plan: PipelinePlan, out: Path, pages: Pages, reporter: Reporter) -> None:
    write_record(out / EXPERT_CARD, load_expert(plan.collect.expert).card)
    write_record(out / "dataset.json", dataset_overview(out / STORE))
    pages.card(out / STORE, reporter)


def _evaluate(source: PolicySource, plan: PipelinePlan, path: Path, reporter: Reporter) -> None:
    evaluate_policy(source, plan.evaluate, reporter, path)
