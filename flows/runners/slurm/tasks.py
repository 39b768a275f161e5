"""A task of a job folder, done in a process of its own.

What trains is imported when a task trains: it brings torch, which collecting does not need.
"""

from importlib import import_module
from pathlib import Path

from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.part_records import store_address
from gaitforge.flows.records.records import read_record
from gaitforge.flows.runners.slurm import jobs
from gaitforge.flows.stages.collect import collect
from gaitforge.flows.tasks.registry import collection_plan

LEARNING = {
    "train": "gaitforge.flows.runners.slurm.training:train_task",
    "evaluate": "gaitforge.flows.runners.slurm.training:evaluate_task",
}
"""Kind of job -> "module:function" of its task."""


def run_task(folder: Path, task: int, reporter: Reporter) -> None:
    """Do one task of a job folder in this process; committed parts are skipped.

    Raises:
        ValueError: no such task, a damaged plan, or what collection and training raise.
    """
    tree = read_record(folder / jobs.PLAN) or {}
    if not {"kind", "target", "store", "plan", "tasks"} <= tree.keys():
        raise ValueError(f"{folder} is no job folder: it holds no {jobs.PLAN} of a job")
    kind, tasks = tree["kind"], tree["tasks"]
    if kind not in (allowed := ("collect", *LEARNING)):
        raise ValueError(f"{folder} is a job of kind '{kind}'; allowed: {', '.join(allowed)}")
    if not 0 <= task < len(tasks):
        raise ValueError(f"{folder} has tasks 0-{len(tasks) - 1}, not {task}")
    if kind == "collect":
        plan = collection_plan(tree.get("task", ""), tree["plan"])
        collect(plan, store_address(tree["store"]), reporter, tasks[task])
    else:
        module, function = LEARNING[kind].split(":")
        getattr(import_module(module), function)(tree, reporter)
