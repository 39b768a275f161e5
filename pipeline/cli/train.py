"""`gaitforge train` and `models`: policies from a store."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path

from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import read_plan
from gaitforge.flows.stages.status import training_status
from gaitforge.learners.models.registry import describe_models
from gaitforge.learners.training.config import TrainConfig
from gaitforge.pipeline.cli.parsing.parser import command, given, option, planned, setting
from gaitforge.pipeline.cli.work import Result, Work, work
from gaitforge.pipeline.tables import show

SELECTED = ("terrain", "skill", "level", "where")
TRAINED = ("objective", "steps", "batch_size", "device")
"""Arguments that are fields of a selection's plan, and of every training's config."""


@work(
    "gaitforge train legged.zarr --model fcnet --terrain flat,rough --out runs/fcnet",
    "store --model --objective --out --steps --batch-size",
    option("--optimiser", "adamw, adam or lion (default: adamw)", metavar="NAME"),
    option("--seed", "random seed of the weights and the data order", int),
    "--device CELLS --where --selection",
    option("--plan", "a plan's file, e.g. the plan.json of another run", Path, metavar="FILE"),
    setting("config.peak_lr=0.001"),
    "--json",
)
def train_command(arguments: argparse.Namespace) -> Work:
    """Train a model on a selection of a store, or resume a run."""
    from gaitforge.flows.stages.staging import Stage
    from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
    from gaitforge.learners.training.train import TrainResult, finished_result

    chosen = given(arguments, *TRAINED, "optimiser", "seed")
    if arguments.plan:
        plan = plan_from_tree(TrainPlan, read_plan(arguments.plan)[0])
    else:
        select = SelectPlan(**given(arguments, *SELECTED, saved="selection"))
        config = TrainConfig.recommended(arguments.model, **chosen)
        plan = TrainPlan(select, config)
    plan = planned(plan, arguments)
    store, run = store_address(arguments.store), arguments.out.absolute()
    if arguments.runner != "local" and not arguments.after:  # which may collect what is selected
        plan.select.select(store)

    def result(trained: TrainResult | None) -> Result:
        record = asdict(trained or finished_result(run)) | {"run_dir": str(arguments.out)}
        told = f"{record['steps']:,} steps, loss {record['loss']:.4f}"
        row = {"run": str(run), "model": plan.config.model, **record}
        return Result(record, title="trained", about=run, message=told, tables={"trained": [row]})

    stage = Stage(
        "train",
        run=partial(run_training, plan, store, arguments.out),
        place=run,
        reads=(store,),
        trains=True,
        done=lambda: training_status(run).state == "complete",
    )
    return Work(arguments.out, [stage], result, arguments.words)


@command("gaitforge models --json", "--json")
def models_command(arguments: argparse.Namespace) -> None:
    """List the models and their sizes."""
    show(describe_models(), arguments.json)
