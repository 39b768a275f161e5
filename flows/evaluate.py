"""Closed-loop evaluation as a Prefect flow."""

from functools import partial
from pathlib import Path

from prefect import State
from prefect.states import Completed

from gaitforge.collectors.legged.evaluation import EvaluationGrid
from gaitforge.flows import forms
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.runners.artifacts import show_table, show_view, tag_run
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
from gaitforge.flows.runners.slurm.training import run_evaluation_on_slurm
from gaitforge.flows.settings import override_form, setting_paths, with_named
from gaitforge.flows.stages import evaluate as stage
from gaitforge.flows.tasks.evaluation import EvaluationPlan, PolicyEvaluation
from gaitforge.flows.tasks.legged_evaluation import LeggedEvaluation
from gaitforge.flows.tasks.policies import PolicySource, run_source
from gaitforge.flows.tasks.registry import run_evaluation


@retried_task("evaluate", "evaluate {source.name}")
def evaluate_policy(
    source: PolicySource, plan: EvaluationPlan, path: Path, dask: DaskSettings | None
) -> PolicyEvaluation:
    """Run a policy on this machine or on a worker of a Dask cluster."""
    work = partial(stage.evaluate_policy, source, plan, path=path)
    reporter = shown_progress()
    name = f"evaluate {source.name}"
    return run_on_dask(name, work, reporter, dask) if dask else work(reporter)


@deployed_flow("evaluate", named_after("evaluate", "run", "terrains", "skills"))
def evaluate(  # noqa: PLR0913, the fields of a form
    run: forms.Place,
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    episodes: forms.Episodes = 0,
    seed: forms.Seed = EvaluationGrid.seed,
    threads: forms.Threads | None = None,
    settings: forms.Settings = forms.NONE,
    dask: DaskSettings | None = None,
    slurm: SlurmForm | None = None,
) -> State[None]:
    """Run a trained policy in closed loop on held-out episodes of its task.

    Args:
        run: folder of a training run; the result is its evaluation.json.
        terrains: empty for flat and rough.
        skills: empty for standing and running.
        levels: of the terrain; empty for 4, the middle one.
        episodes: of a cell; 0 for 32.
        seed: of the held-out episodes.
        threads: that step the simulator; empty for the plan's own.
        settings: any other settings of the plan, NAME=VALUE.
        dask: a cluster that does the work; none for this machine.
        slurm: a job that does the work; none for this machine.
    """
    check_one_place(dask, slurm)
    folder = Path(run).absolute()
    values = forms.grid_values(terrains, skills, levels, episodes=episodes, seed=seed)
    values = {name: value for name, value in values.items() if value is not None}
    values |= {"threads": threads} if threads else {}
    plan = run_evaluation(folder) or LeggedEvaluation()
    plan, paths = with_named(plan, values), setting_paths(plan)
    plan = override_form(plan, settings, {paths[name]: value for name, value in values.items()})
    source, path = run_source(folder), folder / stage.EVALUATION
    tag_run(model=source.name, terrain=terrains)
    if slurm is not None and not stage.is_evaluated(source, plan, path):
        submit = partial(run_evaluation_on_slurm, plan, folder)
        if left := jobs_do(folder / "jobs", "evaluate", slurm, submit):
            return Completed(message=left)
    evaluation = making(evaluate_policy, path, folder)(source, plan, path, dask)
    show_table("evaluation", to_tree(evaluation.cells), "closed-loop evaluation", folder)
    show_view(path)
    return Completed(message=f"return {evaluation.return_:.2f}, success {evaluation.success:.0%}")
