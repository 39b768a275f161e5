"""A comparison of models as a Prefect flow."""

from pathlib import Path

from gaitforge.flows import forms
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.runners.artifacts import last_name, show_table, tag_run
from gaitforge.flows.runners.prefect import deployed_flow, named_after, retried_task, shown_progress
from gaitforge.flows.settings import override_form, with_chosen
from gaitforge.flows.stages.comparison.legged import ComparisonPlan, comparison_grid, run_comparison
from gaitforge.flows.stages.train import SelectPlan
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation

compare_models = retried_task("compare", "compare in {out.name}")(run_comparison)


@deployed_flow("compare", named_after("compare in", "out", "models"))
def compare(  # noqa: PLR0913, the fields of a form
    store: forms.Place,
    out: forms.Place,
    models: forms.Models = forms.NONE,
    seeds: list[forms.Seed] = forms.NONE,
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    where: str = "",
    settings: forms.Settings = forms.NONE,
) -> None:
    """Train models on the same episodes with the same budget, and evaluate them, or resume that.

    Args:
        store: a folder, or s3://bucket/prefix.
        out: folder of the comparison; the result is its comparison.json.
        models: presets; empty for fcnet, transformer, history-mlp and mlp.
        seeds: a run each; empty for 0, 1 and 2.
        terrains: of the episodes; empty for all.
        skills: empty for all.
        levels: of the terrain; empty for all.
        where: a boolean SQL expression over the catalog's columns.
        settings: any other settings of the plan, NAME=VALUE.
    """
    address = store_address(store)
    select = SelectPlan(tuple(terrains), tuple(skills), tuple(levels), where)
    grid = LeggedEvaluation(grid=comparison_grid(select.select(address)))
    chosen = {"models": tuple(models) or None, "seeds": tuple(seeds) or None}
    plan = with_chosen(ComparisonPlan(select=select, evaluate=grid), chosen)
    plan = override_form(plan, settings, chosen)
    tag_run(store=last_name(store), model=plan.models, terrain=terrains)
    record = compare_models(plan, address, Path(out), shown_progress())
    names = ("model", "return", "success", "survival", "test_mse", "train_s")
    rows = [
        {name: row[name]["mean"] if isinstance(row[name], dict) else row[name] for name in names}
        for row in record["models"]
    ]
    show_table("compared", rows, "means over the seeds", out)
