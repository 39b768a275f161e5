"""Training and evaluation as Slurm jobs, one each.

Slurm may repeat a job: a training resumes, an evaluation that is there is left.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.plans import plan_from_tree
from gaitforge.flows.records.records import to_tree
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.runners.slurm.runner import TRAIN_REQUEUES, check_idle, submit_work
from gaitforge.flows.runners.slurm.script import SlurmSettings, Work
from gaitforge.flows.stages.evaluate import EVALUATION, evaluate_policy
from gaitforge.flows.stages.train import TrainPlan, run_training
from gaitforge.flows.tasks.evaluation import EvaluationPlan
from gaitforge.flows.tasks.policies import run_source
from gaitforge.flows.tasks.registry import evaluation_class


def run_training_on_slurm(
    plan: TrainPlan,
    store_path: Path | str,
    out: Path,
    settings: SlurmSettings | None = None,
) -> jobs.Job | str:
    """Submit a training in `out`; returns the job, or with `dry_run` its script.

    Raises:
        ValueError: nothing is selected, a live job trains in `out`, no Slurm, or its reason to
            refuse; nothing is submitted.
    """
    settings = settings or SlurmSettings()
    store = store_address(store_path)
    if not settings.after:  # which may collect what is to be selected
        plan.select.select(store)
    place = out.absolute() / "jobs"
    if not settings.dry_run:
        check_idle(place, "train", f"trains {out}")
    work = Work("gaitforge-train", 1, False, False, TRAIN_REQUEUES)
    draft = jobs.Job(place, "", "train", str(out.absolute()), 0.0, settings.partition, (), ((),))
    return submit_work(draft, {"store": str(store), "plan": to_tree(plan)}, work, settings)


def run_evaluation_on_slurm(
    plan: EvaluationPlan, run: Path, settings: SlurmSettings
) -> jobs.Job | str:
    """Submit the evaluation of a training run, into its evaluation.json; returns the job.

    Raises:
        ValueError: no such run, a live job evaluates it, no Slurm, or its reason to refuse.
    """
    run_source(run)
    place = run.absolute() / "jobs"
    check_idle(place, "evaluate", f"evaluates {run}")
    settings = replace(settings, nodes=1, gpus=0)
    work = Work("gaitforge-evaluate", 1, False, False, TRAIN_REQUEUES)
    target = str(run.absolute())
    draft = jobs.Job(place, "", "evaluate", target, 0.0, settings.partition, (), ((),))
    return submit_work(
        draft, {"store": "", "task": plan.kind, "plan": to_tree(plan)}, work, settings
    )


def train_task(tree: Mapping[str, Any], reporter: Reporter) -> None:
    """Do the training of a job's record, here. Raises ValueError as `run_training`."""
    plan, store = plan_from_tree(TrainPlan, tree["plan"]), store_address(tree["store"])
    run_training(plan, store, Path(tree["target"]), reporter)


def evaluate_task(tree: Mapping[str, Any], reporter: Reporter) -> None:
    """Do the evaluation of a job's record, here. Raises ValueError as `evaluate_policy`."""
    run, plan = Path(tree["target"]), plan_from_tree(evaluation_class(tree["task"]), tree["plan"])
    evaluate_policy(run_source(run), plan, reporter, run / EVALUATION)
