"""The flows that are deployed: what a schedule or a form asks for becomes a frozen plan.

Each is a thin layer: parameters with types that a form can show, the plan that they make, the plain
function or the tasks that carry it out, and artifacts of what came out. Empty lists and zeros leave
a plan as its preset has it. Places are as the process sees them that runs the flow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from prefect import Flow, State, flow
from prefect.runtime import flow_run
from prefect.states import Completed

from collectors.experts.expert import DEFAULT_EXPERT
from collectors.legged.evaluation import EvaluationGrid
from datasets import open_store
from datasets.formats import importer_class
from flows.records.part_records import collection_rate
from flows.runners.prefect import collect_in_tasks, demo_in_tasks
from flows.runners.prefect_tasks import (
    ProgressArtifacts,
    RunLog,
    run_stage,
    show_file,
    show_markdown,
    show_table,
)
from flows.stages.demo import DemoPlan
from flows.stages.evaluate import EvaluatePlan, PolicySource, evaluate_once
from flows.stages.export import ExportPlan, run_export
from flows.stages.importing import IngestPlan, ingest
from flows.stages.train import SelectPlan, TrainPlan, run_training
from learners.deploy.export import ExportOptions
from learners.training.config import TrainConfig
from pipeline.cli.arguments import store_address
from pipeline.cli.commands import write_demo_report
from pipeline.cli.plan_choices import collection_plan, with_chosen
from pipeline.cli.settings import override
from pipeline.report.card import selected, write_card
from pipeline.serve.deployment_forms import (
    Checkpoint,
    DataFormat,
    Episodes,
    Formats,
    Levels,
    Model,
    Objective,
    Parts,
    Place,
    Preset,
    Seed,
    Settings,
    Skills,
    Steps,
    Terrains,
    Threads,
)

NONE: list[Any] = []
"""The default of lists; nothing here changes one."""


def _named(what: str, parameter: str) -> Callable[[], str]:
    """Names a run after the last part of the place that it works on."""
    return lambda: f"{what} {_name(flow_run.parameters[parameter])}"


@flow(name="collect", flow_run_name=_named("collect into", "store"), persist_result=False)
def collect(
    store: Place,
    preset: Preset = "demo",
    terrains: Terrains = NONE,
    skills: Skills = NONE,
    levels: Levels = NONE,
    parts: Parts = 0,
    episodes_per_part: Episodes = 0,
    seed: Seed = 0,
    new_every_day: bool = False,
    expert: str = DEFAULT_EXPERT,
    threads: Threads = 2,
    settings: Settings = NONE,
) -> State[None]:
    """Collect the parts of a plan that a store lacks, each a task.

    Args:
        store: a folder, or s3://bucket/prefix; made if absent.
        preset: the plan that the other values change.
        terrains: none for the preset's.
        skills: none for the preset's.
        levels: of the terrain; none for the preset's.
        parts: of the plan; 0 for the preset's.
        episodes_per_part: 0 for the preset's.
        seed: of everything random.
        new_every_day: the day of the scheduled start, as yyyymmdd, is the seed, so that every day's
            runs add parts of their own; a run that died goes on within the day.
        expert: a name, or the path of a file.
        threads: simulators that run at once.
        settings: any other settings of the plan, NAME=VALUE.
    """
    grid = {
        "terrains": tuple(terrains) or None,
        "skills": tuple(skills) or None,
        "levels": tuple(levels) or None,
        "parts": parts or None,
        "episodes_per_part": episodes_per_part or None,
        "seed": int(_scheduled().strftime("%Y%m%d")) if new_every_day else seed,
    }
    plan = collection_plan(preset, grid, {"expert": expert, "threads": threads}, settings)
    made = collect_in_tasks(plan, store_address(store), RunLog())
    rows = [
        {"part": r.part, "episodes": r.episodes, "steps": r.steps, "seconds": r.ended - r.started}
        for r in made
    ]
    if rows:
        rate = f"{collection_rate(made):,.0f} steps/s"
        show_table(f"collected {_name(store)}", rows, f"parts collected now, at {rate}")
    there = plan.grid.parts - len(made)
    return Completed(message=f"{len(made)} parts collected, {there} were there")


@flow(name="card", flow_run_name=_named("card of", "store"), persist_result=False)
def card(
    store: Place,
    out: str = "",
    terrains: Terrains = NONE,
    skills: Skills = NONE,
    levels: Levels = NONE,
    where: str = "",
    channels: bool = True,
) -> None:
    """Compute a dataset's statistics and write its card.

    Args:
        store: a folder.
        out: folder of the card; empty for STORE.card.
        terrains: none for all.
        skills: none for all.
        levels: of the terrain; none for all.
        where: a boolean SQL expression over the catalog's columns.
        channels: also read the arrays, for the statistics of every channel.
    """
    cells = {"terrain": terrains or None, "skill": skills or None, "level": levels or None}
    folder = Path(out or f"{store}.card")

    def work() -> tuple[Path, Path]:
        selection, filters = selected(open_store(store_address(store)), cells, where or None)
        return write_card(selection, folder, filters=filters, channels=channels)

    page, markdown = run_stage(f"card {_name(store)}", work)
    show_markdown(f"card {_name(store)}", markdown.read_text(), "dataset card")
    show_file(f"card page {_name(store)}", page, "the card as a page")


@flow(name="train", flow_run_name=_named("train", "out"), persist_result=False)
def train(
    store: Place,
    out: Place,
    model: Model = "fcnet",
    objective: Objective = "bc",
    steps: Steps = TrainConfig.steps,
    seed: Seed = 0,
    terrains: Terrains = NONE,
    skills: Skills = NONE,
    levels: Levels = NONE,
    where: str = "",
    settings: Settings = NONE,
) -> None:
    """Train a model on a selection of a store, or go on with the run that is there.

    Args:
        store: a folder, or s3://bucket/prefix.
        out: folder of the run.
        model: a preset of sizes.
        objective: behaviour cloning, plain or conditioned on the return.
        steps: optimiser steps in all.
        seed: of the initial weights and of the data's order.
        terrains: none for all.
        skills: none for all.
        levels: of the terrain; none for all.
        where: a boolean SQL expression over the catalog's columns.
        settings: any other settings of the plan, NAME=VALUE.
    """
    select = SelectPlan(tuple(terrains), tuple(skills), tuple(levels), where)
    config = TrainConfig(model=model, objective=objective, steps=steps, seed=seed)
    plan = override(TrainPlan(select, config), settings)
    run = Path(out)
    shown = ProgressArtifacts(RunLog())
    work = partial(run_training, plan, store_address(store), run, shown)
    result = run_stage(f"train {run.name}", work)
    row = {"run": str(run), "model": model, "steps": steps, "train_s": result.train_s}
    show_table(f"trained {run.name}", [row], "training run")


@flow(name="evaluate", flow_run_name=_named("evaluate", "run"), persist_result=False)
def evaluate(
    run: Place,
    terrains: Terrains = NONE,
    skills: Skills = NONE,
    levels: Levels = NONE,
    episodes: Episodes = 0,
    seed: Seed = EvaluationGrid.seed,
    threads: Threads = 2,
    settings: Settings = NONE,
) -> None:
    """Run a trained policy in closed loop on held-out episodes.

    Args:
        run: folder of a training run; the result is its evaluation.json.
        terrains: none for flat and rough.
        skills: none for standing and running.
        levels: of the terrain; none for 2.
        episodes: of a cell; 0 for 32.
        seed: of the held-out episodes.
        threads: that step the simulator.
        settings: any other settings of the plan, NAME=VALUE.
    """
    grid = {
        "terrains": tuple(terrains) or None,
        "skills": tuple(skills) or None,
        "levels": tuple(levels) or None,
        "episodes": episodes or None,
        "seed": seed,
    }
    plan = EvaluatePlan(grid=with_chosen(EvaluationGrid(), grid), threads=threads)
    plan = override(plan, settings)
    folder = Path(run)
    if not folder.is_dir():
        raise ValueError(f"no training run at {folder}; the train deployment makes one")
    source = PolicySource(folder.resolve().name, run=folder)
    shown = ProgressArtifacts(RunLog())
    work = partial(evaluate_once, source, plan, folder / "evaluation.json", shown)
    record = run_stage(f"evaluate {source.name}", work)
    show_table(f"evaluation {source.name}", record["cells"], "closed-loop evaluation")


@flow(name="export", flow_run_name=_named("export", "run"), persist_result=False)
def export(
    run: Place,
    out: Place,
    formats: Formats = NONE,
    checkpoint: Checkpoint = "last",
    settings: Settings = NONE,
) -> None:
    """Write a trained policy as files for a robot's program.

    Args:
        run: folder of a training run.
        out: new folder of the files; the same again changes nothing.
        formats: of the control step; none for all.
        checkpoint: the last, or the one with the lowest validation loss.
        settings: any other settings of the plan, NAME=VALUE.
    """
    options = ExportOptions(formats=tuple(formats)) if formats else ExportOptions()
    plan = override(ExportPlan(checkpoint=checkpoint, options=options), settings)
    shown = ProgressArtifacts(RunLog())
    work = partial(run_export, plan, Path(run), Path(out), shown)
    result = run_stage(f"export {_name(run)}", work)
    rows = [{"file": name, "bytes": size} for name, size in result.sizes.items()]
    show_table(f"exported {_name(run)}", rows, "files for a robot's program")


@flow(name="import", flow_run_name=_named("import into", "store"), persist_result=False)
def import_data(format: DataFormat, source: Place, store: Place, settings: Settings = NONE) -> None:
    """Import data of another project's format into a store.

    Args:
        format: whose the source is.
        source: a file or folder of that format, as the worker sees it.
        store: a folder, or s3://bucket/prefix; made if absent.
        settings: options of the format's reader, NAME=VALUE.
    """
    options = override(importer_class(format).Options(), settings)
    plan = IngestPlan(format, asdict(options))
    shown = ProgressArtifacts(RunLog())
    work = partial(ingest, plan, source, store_address(store), shown)
    report = run_stage(f"import {_name(source)}", work)
    rows = [
        {"what": what, "line": line}
        for what, lines in asdict(report.carried).items()
        for line in lines
    ]
    show_table(f"imported {_name(source)}", rows, "what was carried over, and what was not")


@flow(name="demo", flow_run_name=_named("demo in", "out"), persist_result=False)
def demo(out: Place, settings: Settings = NONE) -> None:
    """Run the whole road at small scale: collect, describe, train, evaluate, report.

    Args:
        out: folder of the run; one that died goes on.
        settings: of the demo's plan, NAME=VALUE.
    """
    plan = override(DemoPlan(), settings)
    folder = Path(out)
    demo_in_tasks(plan, folder, RunLog(), partial(write_demo_report, folder))


FLOWS: dict[str, Flow[..., Any]] = {
    f.name: f for f in (collect, card, train, evaluate, export, import_data, demo)
}
"""Everything that is deployed, by name."""

COLLECTIONS_AT_ONCE = 1
"""Of one deployment: two would fight for the cores."""


def _scheduled() -> datetime:
    """When this run was to start."""
    return flow_run.scheduled_start_time


def _name(store: str) -> str:
    return Path(store.rstrip("/")).name
