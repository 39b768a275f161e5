"""An experiment as a Prefect flow; every stage is a flow of its own, and every part a task."""

from pathlib import Path
from typing import Annotated, Any

from gaitforge.collectors.legged.data import COLLECTION_PRESETS
from gaitforge.flows import forms
from gaitforge.flows.collect import collect_parts
from gaitforge.flows.experiments.stages import Claim, claim, claimed
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.artifacts import show_file, show_markdown, show_table, tag_run
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task, shown_progress
from gaitforge.flows.stages.staging import find_stage, is_done, run_stage
from gaitforge.pipeline.experiments.presets import PRESETS, chosen_claim, collecting_preset
from gaitforge.pipeline.report.experiment import stages_of
from gaitforge.pipeline.report.expert_section import sheet_figures
from gaitforge.pipeline.report.results import result_rows
from gaitforge.pipeline.report.run_files import read_pictures

Preset = Annotated[str, forms.one_of(dict.fromkeys((*PRESETS, *COLLECTION_PRESETS)))]

stage_task = retried_task("stage", "{stage.name}")(run_stage)


@deployed_flow("stage", "{stage}")
def experiment_stage(out: forms.Place, stage: str) -> None:
    """Do what is left of an experiment's stage; parts are tasks, anything else is one.

    Args:
        out: folder of the experiment; stage: name.
    """
    folder = Path(out)
    made = find_stage(stages_of(claimed(folder), folder), stage)
    if made.collection is not None:
        run_stage(folder, made, shown_progress(), lambda plan, store, _: collect_parts(plan, store))
    else:
        stage_task(folder, made, shown_progress())


@deployed_flow("experiment", named_after("experiment in", "out", "preset", "learners"))
def experiment(  # noqa: PLR0913, the fields of a form
    out: forms.Place,
    preset: Preset = "demo",
    stores: list[forms.Place] = forms.NONE,
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    where: str = "",
    parts: forms.Parts = 0,
    learners: list[str] = forms.NONE,
    seeds: list[forms.Seed] = forms.NONE,
    settings: forms.Settings = forms.NONE,
    plan: dict[str, Any] | None = None,
) -> None:
    """Collect, train, evaluate, compare and report; stages that are done are skipped.

    Args:
        out: folder of the experiment; one that died is resumed.
        preset: the experiment that the other values change.
        stores: folders or s3://bucket/prefix to learn from; none where the preset collects.
        terrains: of the episodes and the evaluation; empty for the preset's.
        skills: empty for the preset's.
        levels: of the episodes; the evaluation is at the middle one. Empty for the preset's.
        where: a boolean SQL expression over the catalog's columns.
        parts: of a collection; 0 for the preset's.
        learners: of the preset, or models; empty for the preset's.
        seeds: of the trainings, a run each; empty for the preset's.
        settings: any other settings of the plan, NAME=VALUE.
        plan: as an experiment's plan.json has it, in place of all else.
    """
    folder = Path(out)
    if plan is None:
        cells = forms.grid_values(terrains, skills, levels, parts=parts)
        chosen = {**cells, "where": where or None, "learners": tuple(learners) or None}
        chosen["seeds"] = tuple(seeds) or None
        addresses = tuple(str(store_address(store)) for store in stores)
        ships = preset in PRESETS and (addresses or preset not in COLLECTION_PRESETS)
        start = PRESETS[preset]() if ships else collecting_preset(preset)
        made = chosen_claim(preset, start, addresses, chosen, settings, folder)
    else:
        names = Claim.__dataclass_fields__
        made = plan_from_tree(Claim, {name: plan[name] for name in names if name in plan})
    stages = stages_of(made, folder)
    claim(made, folder)
    tag_run(model=list(made.experiment.learners), terrain=terrains)
    for stage in stages:
        if not is_done(folder, stage):
            experiment_stage(out, stage.name)
    show_table("results", result_rows(read_record(folder / "summary.json") or {}), "results", out)
    pictures, _ = read_pictures(folder)
    sheets = [
        f"### {figure.policy}: {figure.alt}\n![]({figure.uri})"
        for figure in sheet_figures(folder, pictures)
    ]
    if sheets:
        show_markdown("pictures", "\n\n".join(sheets), "typical episodes and failures", out)
    show_file("report", folder / "report.html", "the report of the experiment")
