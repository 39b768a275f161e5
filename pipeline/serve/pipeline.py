"""A pipeline as a Prefect flow; every stage is a flow of its own, and every part a task."""

from pathlib import Path
from typing import Any

from gaitforge.flows import forms
from gaitforge.flows.collect import collect_parts
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.artifacts import show_file, show_markdown, show_table, tag_run
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task, shown_progress
from gaitforge.flows.settings import override_form
from gaitforge.flows.stages.pipeline.plan import PipelinePlan, pipeline_plan, with_choices
from gaitforge.flows.stages.pipeline.stages import claim, recorded_plan
from gaitforge.flows.stages.pipeline.summary import SUMMARY
from gaitforge.flows.stages.staging import find_stage, is_done, run_stage
from gaitforge.pipeline.report.expert_section import sheet_figures
from gaitforge.pipeline.report.pipeline import stages_of
from gaitforge.pipeline.report.run_files import read_pictures

stage_task = retried_task("stage", "{stage.name}")(run_stage)


@deployed_flow("stage", "{stage}")
def pipeline_stage(out: forms.Place, stage: str) -> None:
    """Do what is left of a pipeline's stage; parts are tasks, anything else is one.

    Args:
        out: folder of the pipeline; stage: name.
    """
    folder = Path(out)
    found = find_stage(stages_of(recorded_plan(folder), folder), stage)
    if found.collection is not None:
        run_stage(
            folder, found, shown_progress(), lambda plan, store, _: collect_parts(plan, store)
        )
    else:
        stage_task(folder, found, shown_progress())


@deployed_flow("pipeline", named_after("pipeline in", "out", "terrains", "skills", "models"))
def pipeline(  # noqa: PLR0913, the fields of a form
    out: forms.Place,
    preset: forms.Preset = "demo",
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    parts: forms.Parts = 0,
    models: forms.Models = forms.NONE,
    seeds: list[forms.Seed] = forms.NONE,
    settings: forms.Settings = forms.NONE,
    plan: dict[str, Any] | None = None,
) -> None:
    """Collect, describe, train, evaluate, compare and report; stages that are done are skipped.

    Args:
        out: folder of the pipeline; one that died is resumed.
        preset: demo, or the size of another collection.
        terrains: of the collection and the evaluation; empty for the preset's.
        skills: empty for the preset's.
        levels: of the collection; the evaluation is at the middle one. Empty for the preset's.
        parts: of the collection; 0 for the preset's.
        models: empty for the preset's.
        seeds: of the trainings, a run each; empty for the preset's.
        settings: any other settings of the plan, NAME=VALUE.
        plan: as a pipeline's plan.json has it, in place of the preset.
    """
    folder = Path(out)
    start = pipeline_plan(preset) if plan is None else plan_from_tree(PipelinePlan, plan)
    cells = forms.grid_values(terrains, skills, levels, parts=parts)
    given = {"seeds": tuple(seeds) or None}
    chosen = with_choices(start, cells, given, {}, models)
    of_grid = {f"collect.grid.{name}": value for name, value in cells.items()}
    chosen = override_form(chosen, settings, of_grid | given)
    claim(chosen, folder)
    tag_run(model=list(chosen.models), terrain=terrains)
    for stage in stages_of(chosen, folder):
        if not is_done(folder, stage):
            pipeline_stage(out, stage.name)
    summary = read_record(folder / SUMMARY) or {}
    rows = [{"policy": name, **row} for name, row in summary["policies"].items()]
    show_table("policies", rows, "closed-loop evaluation", out)
    pictures, _ = read_pictures(folder)
    sheets = [
        f"### {figure.policy}: {figure.alt}\n![]({figure.uri})"
        for figure in sheet_figures(folder, pictures)
    ]
    if sheets:
        show_markdown("pictures", "\n\n".join(sheets), "typical episodes and failures", out)
    show_file("report", folder / "report.html", "the report of the pipeline")
