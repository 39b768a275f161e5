"""Training and evaluation as Slurm jobs, one each, and what any job does: `run_task`.

Slurm may repeat a job: a training resumes, an evaluation that is there is left.
"""

from dataclasses import replace
from pathlib import Path

from flows.progress import Reporter
from flows.records.part_records import store_address
from flows.records.plans import plan_from_tree
from flows.records.records import read_record, to_tree
from flows.runners.slurm import jobs
from flows.runners.slurm.runner import TRAIN_REQUEUES, check_idle, submit_work
from flows.runners.slurm.script import SlurmSettings, Work
from flows.stages.collect import collect
from flows.stages.evaluate import EVALUATION, EvaluatePlan, evaluate_policy
from flows.stages.train import TrainPlan, run_training
from flows.tasks.policies import run_source
from flows.tasks.registry import LEGGED, collection_plan


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
    plan: EvaluatePlan, run: Path, settings: SlurmSettings
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
    return submit_work(draft, {"store": "", "plan": to_tree(plan)}, work, settings)


def run_task(folder: Path, task: int, reporter: Reporter) -> None:
    """Do one task of a job folder in this process; committed parts are skipped.

    Raises:
        ValueError: no such task, a damaged plan, or what collection and training raise.
    """
    tree = read_record(folder / jobs.PLAN) or {}
    if not {"kind", "target", "store", "plan", "tasks"} <= tree.keys():
        raise ValueError(f"{folder} is no job folder: it holds no {jobs.PLAN} of a job")
    kind, plan, tasks = tree["kind"], tree["plan"], tree["tasks"]
    store = store_address(tree["store"])
    if not 0 <= task < len(tasks):
        raise ValueError(f"{folder} has tasks 0-{len(tasks) - 1}, not {task}")
    if kind == "collect":
        collect(collection_plan(tree.get("task", LEGGED), plan), store, reporter, tasks[task])
    elif kind == "evaluate":
        run = Path(tree["target"])
        evaluating = plan_from_tree(EvaluatePlan, plan)
        evaluate_policy(run_source(run), evaluating, reporter, run / EVALUATION)
    else:
        run_training(plan_from_tree(TrainPlan, plan), store, Path(tree["target"]), reporter)
