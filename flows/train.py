"""Training as a Prefect flow."""

from pathlib import Path

from prefect import flow

from flows import forms
from flows.records.part_records import store_address
from flows.runners.prefect import named_after, retried_task, show_table, shown_progress
from flows.settings import override_form
from flows.stages.train import SelectPlan, TrainPlan, run_training
from learners.training.config import TrainConfig

train_run = retried_task("train", "train {out.name}")(run_training)


@flow(name="train", flow_run_name=named_after("train", "out"), persist_result=False)
def train(  # noqa: PLR0913, the fields of a form
    store: forms.Place,
    out: forms.Place,
    model: forms.Model = "fcnet",
    objective: forms.Objective = "bc",
    steps: forms.Steps = TrainConfig.steps,
    seed: forms.Seed = 0,
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    where: str = "",
    settings: forms.Settings = forms.NONE,
) -> None:
    """Train a model on a selection of a store, or resume the run that is there.

    Args:
        store: a folder, or s3://bucket/prefix.
        out: folder of the run.
        model: a preset of sizes.
        objective: behaviour cloning, plain or conditioned on the return.
        steps: optimiser steps in all.
        seed: of the initial weights and of the data's order.
        terrains: empty for all.
        skills: empty for all.
        levels: of the terrain; empty for all.
        where: a boolean SQL expression over the catalog's columns.
        settings: any other settings of the plan, NAME=VALUE.
    """
    select = SelectPlan(tuple(terrains), tuple(skills), tuple(levels), where)
    given = {"objective": objective, "steps": steps, "seed": seed}
    config = TrainConfig.recommended(model, **given)
    chosen = {f"config.{name}": value for name, value in {"model": model, **given}.items()}
    plan = override_form(TrainPlan(select, config), settings, chosen)
    run = Path(out)
    result = train_run(plan, store_address(store), run, shown_progress())
    row = {"run": str(run), "model": model, "steps": steps, "train_s": result.train_s}
    show_table(f"trained {run.name}", [row], "training run")
