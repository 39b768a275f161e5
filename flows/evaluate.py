"""Closed-loop evaluation as a Prefect flow."""

from pathlib import Path

from prefect import flow

from collectors.legged.evaluation import EvaluationGrid
from flows import forms
from flows.records.records import to_tree
from flows.runners.prefect import named_after, retried_task, show_table, show_view, shown_progress
from flows.settings import override_form, with_chosen
from flows.stages import evaluate as stage
from flows.stages.evaluate import EvaluatePlan
from flows.tasks.policies import run_source

evaluate_policy = retried_task("evaluate", "evaluate {source.name}")(stage.evaluate_policy)


@flow(name="evaluate", flow_run_name=named_after("evaluate", "run"), persist_result=False)
def evaluate(
    run: forms.Place,
    terrains: forms.Terrains = forms.NONE,
    skills: forms.Skills = forms.NONE,
    levels: forms.Levels = forms.NONE,
    episodes: forms.Episodes = 0,
    seed: forms.Seed = EvaluationGrid.seed,
    threads: forms.Threads = 2,
    settings: forms.Settings = forms.NONE,
) -> None:
    """Run a trained policy in closed loop on held-out episodes.

    Args:
        run: folder of a training run; the result is its evaluation.json.
        terrains: empty for flat and rough.
        skills: empty for standing and running.
        levels: of the terrain; empty for 4, the middle one.
        episodes: of a cell; 0 for 32.
        seed: of the held-out episodes.
        threads: that step the simulator.
        settings: any other settings of the plan, NAME=VALUE.
    """
    grid = forms.grid_values(terrains, skills, levels, episodes=episodes, seed=seed)
    plan = EvaluatePlan(grid=with_chosen(EvaluationGrid(), grid), threads=threads)
    chosen = {f"grid.{name}": value for name, value in grid.items()} | {"threads": threads}
    plan = override_form(plan, settings, chosen)
    source = run_source(Path(run))
    path = Path(run) / "evaluation.json"
    evaluation = evaluate_policy(source, plan, shown_progress(), path)
    show_table(f"evaluation {source.name}", to_tree(evaluation.cells), "closed-loop evaluation")
    show_view(path)
