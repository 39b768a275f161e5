"""Training as a Prefect flow."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from prefect import State
from prefect.states import Completed

from gaitforge.datasets.history import read_history
from gaitforge.flows import forms
from gaitforge.flows.progress import Advance, Reporter
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.runners.artifacts import NO_SERVER, last_name, show_table, tag_run
from gaitforge.flows.runners.dask_clusters import DaskSettings
from gaitforge.flows.runners.dask_stages import run_on_dask
from gaitforge.flows.runners.prefect import (
    deployed_flow,
    making,
    named_after,
    retried_task,
    shown_progress,
)
from gaitforge.flows.runners.prefect_jobs import check_one_place, jobs_do
from gaitforge.flows.runners.slurm.script import SlurmForm
from gaitforge.flows.runners.slurm.training import run_training_on_slurm
from gaitforge.flows.settings import override_form
from gaitforge.flows.stages.status import training_status
from gaitforge.flows.stages.train import SelectPlan, TrainPlan, run_training
from gaitforge.learners.training.config import TrainConfig
from gaitforge.learners.training.train import TrainResult

TABLE_PERIOD_S = 60.0
TABLE_ROWS = 60
"""Most rows of a training's table, spread over the run."""


@retried_task("train", "train {out.name}")
def train_run(
    plan: TrainPlan, store: Path | str, out: Path, dask: DaskSettings | None
) -> TrainResult:
    """Train on this machine or on a worker of a Dask cluster."""
    work, reporter = partial(run_training, plan, store, out), shown_progress()
    if dask is not None:
        return run_on_dask(f"train {out.name}", work, reporter, dask)
    return work(_TrainingTable(reporter, out))


@deployed_flow("train", named_after("train", "out", "model", "terrains", "skills"))
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
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
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
        dask: a cluster that does the work; none for this machine.
        slurm: a job that does the work; none for this machine.
    """
    check_one_place(dask, slurm)
    select = SelectPlan(tuple(terrains), tuple(skills), tuple(levels), where)
    given = {"objective": objective, "steps": steps, "seed": seed}
    config = TrainConfig.recommended(model, **given)
    chosen = {f"config.{name}": value for name, value in {"model": model, **given}.items()}
    plan = override_form(TrainPlan(select, config), settings, chosen)
    run, address = Path(out).absolute(), store_address(store)
    tag_run(store=last_name(store), model=model, terrain=terrains)
    if slurm is not None and training_status(run).state != "complete":
        submit = partial(run_training_on_slurm, plan, address, run)
        if left := jobs_do(run / "jobs", "train", slurm, submit):
            return Completed(message=left)
    result = making(train_run, run, address)(plan, address, run, dask)
    row = {"run": str(run), "model": model, "steps": result.steps, "loss": result.loss}
    row |= {"held-out loss": result.validation_loss, "train_s": result.train_s}
    show_table("trained", [row], "training run", run)
    return Completed(message=f"{result.steps:,} steps, loss {result.loss:.4f}")


class _TrainingTable:
    """A reporter that also shows a training's history as a table, anew every minute.

    Args:
        shown: a reporter; run: the training's folder.
    """

    def __init__(self, shown: Reporter, run: Path):
        self._shown, self._run = shown, run

    @contextmanager
    def step(self, name: str, total: int, unit: str, done: int = 0) -> Iterator[Advance]:
        """See `gaitforge.flows.progress.Reporter.step`."""
        updated = time.monotonic()
        with self._shown.step(name, total, unit, done) as show:

            def advance(n: int, note: str) -> None:
                nonlocal updated
                show(n, note)
                if time.monotonic() - updated >= TABLE_PERIOD_S:
                    updated = time.monotonic()
                    self._table(total)

            yield advance
            self._table(total)

    def say(self, text: str) -> None:
        """See `gaitforge.flows.progress.Reporter.say`."""
        self._shown.say(text)

    def _table(self, total: int) -> None:
        history = read_history(self._run)
        spacing = max(1, -(-len(history) // TABLE_ROWS))
        rows = [_row(row, total) for row in history[::-1][::spacing]]
        if rows:
            with suppress(*NO_SERVER):
                show_table("training", rows, f"training of {self._run.name}", self._run)


def _row(row: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """A row of a training's history, as its table shows it."""
    left_s = row["elapsed_s"] / max(row["step"], 1) * (steps - row["step"])
    return {
        "step": row["step"],
        "of": steps,
        "loss": row["loss"],
        "held-out loss": row.get("validation_loss"),
        "control steps/s": row["steps_per_s"],
        "minutes": row["elapsed_s"] / 60,
        "minutes left": left_s / 60,
    }
