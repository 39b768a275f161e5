"""The summary of a pipeline: what was collected, every policy's measures, and means over seeds."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gaitforge.collectors.experts.expert import load_expert
from gaitforge.collectors.intervals import Interval, ratio_interval
from gaitforge.collectors.legged.evaluation import CellResult
from gaitforge.collectors.legged.rewards import LARGEST_RETURN
from gaitforge.datasets import StoreInfo, open_store
from gaitforge.flows.progress import Reporter, Silent
from gaitforge.flows.records.part_records import collection_rate, part_records
from gaitforge.flows.records.records import provenance, to_tree, write_record
from gaitforge.flows.stages.comparison.summary import summarise
from gaitforge.flows.stages.evaluate import (
    PolicyEvaluation,
    PolicyMeasures,
    PolicySource,
    evaluate_policy,
)
from gaitforge.flows.stages.pipeline.plan import PipelinePlan, pipeline_plan
from gaitforge.flows.stages.staging import Stage, seconds_in_all, stage_seconds
from gaitforge.flows.stages.train import TrainPlan, run_training
from gaitforge.learners.training.train import TrainResult

STORE, SUMMARY, WALL, EXPERT_CARD = "legged.zarr", "summary.json", "wall.json", "expert.json"
EXPERT = "expert"


@dataclass(frozen=True)
class PolicySummary(PolicyMeasures):
    """A policy's measures; `return_fraction` is of the expert's return on the same episodes."""

    return_fraction: float
    return_fraction_ci95: Interval | None
    train_s: float | None


@dataclass(frozen=True)
class PipelineSummary:
    """What `summary.json` holds.

    Attributes:
        models: with several seeds, a row per model as `comparison.summary.summarise` makes them.
        largest_return: possible in an episode; wall_s: seconds in which some stage ran.
    """

    dataset: StoreInfo
    collect: Mapping[str, float]
    policies: Mapping[str, PolicySummary]
    cells: tuple[CellResult, ...]
    models: tuple[Mapping[str, Any], ...]
    largest_return: float
    git_revision: str
    versions: Mapping[str, str]
    machine: str
    wall_s: float
    command: str


def write_summary(
    plan: PipelinePlan, out: Path, stages: Sequence[Stage], reporter: Reporter
) -> PipelineSummary:
    """Write `summary.json` and `wall.json` of a pipeline whose trainings and evaluations are done.

    Args:
        stages: those whose seconds count.
    """
    trained = {
        name: run_training(
            TrainPlan(plan.select, config), out / STORE, out / "train" / name, Silent()
        )
        for name, config in plan.runs().items()
    }
    evaluations = {name: _evaluated(plan, out, name) for name in (EXPERT, *trained)}
    steps_per_s = collection_rate(part_records(out / STORE, plan.collect.part_ids()))
    seconds = stage_seconds(out, stages)
    write_record(out / WALL, seconds)
    summary = PipelineSummary(
        dataset=open_store(out / STORE).info(),
        # Every ground is a height field here, flat ones included: one rate serves both names.
        collect={"steps_per_s": steps_per_s, "terrain_steps_per_s": steps_per_s},
        policies=_policies(plan, trained, evaluations),
        cells=tuple(cell for each in evaluations.values() for cell in each.cells),
        models=_models(plan, trained, evaluations),
        largest_return=LARGEST_RETURN,
        wall_s=seconds_in_all(seconds),
        command=_command(plan, out),
        **provenance(),
    )
    write_record(out / SUMMARY, summary)
    return summary


def _command(plan: PipelinePlan, out: Path) -> str:
    """The command that repeats a pipeline."""
    place = out.name if out.is_absolute() else str(out)
    if to_tree(plan) == to_tree(pipeline_plan()):
        return f"gaitforge demo --out {place}"
    return f"gaitforge pipeline {place}-again --plan {place}/plan.json"


def _evaluated(plan: PipelinePlan, out: Path, name: str) -> PolicyEvaluation:
    run = None if name == EXPERT else out / "train" / name
    source = PolicySource(name, run, plan.collect.expert)
    return evaluate_policy(source, plan.evaluate, Silent(), out / "evaluate" / f"{name}.json")


def _policies(
    plan: PipelinePlan,
    trained: Mapping[str, TrainResult],
    evaluations: Mapping[str, PolicyEvaluation],
) -> dict[str, PolicySummary]:
    train_s: dict[str, float | None] = {name: result.train_s for name, result in trained.items()}
    train_s[EXPERT] = load_expert(plan.collect.expert).card.get("wall_s")
    expert = evaluations[EXPERT]
    return {
        name: PolicySummary(
            **{measure.name: getattr(each, measure.name) for measure in fields(PolicyMeasures)},
            return_fraction=each.return_ / expert.return_,
            return_fraction_ci95=ratio_interval(each.returns, expert.returns),
            train_s=train_s[name],
        )
        for name, each in evaluations.items()
    }


def _models(
    plan: PipelinePlan,
    trained: Mapping[str, TrainResult],
    evaluations: Mapping[str, PolicyEvaluation],
) -> tuple[Mapping[str, Any], ...]:
    """Means over the seeds, of every model; nothing for one seed."""
    if len(plan.seeds) == 1:
        return ()
    rows = []
    for seed in plan.seeds:
        for model in plan.models:
            name = plan.run_name(model, seed)
            row = {"run": name, "model": model, "seed": seed, "test_mse": None}
            row |= {key: value for key, value in to_tree(trained[name]).items() if key != "run_dir"}
            rows.append(row | {"evaluation": to_tree(evaluations[name])})
    return tuple(summarise(list(plan.models), rows, to_tree(evaluations[EXPERT]))["models"])
