"""The pipeline at small scale as a Prefect flow; every stage is a task, and so is every part."""

from pathlib import Path
from typing import Any

from prefect import flow

from flows import forms
from flows.collect import collect_parts
from flows.evaluate import evaluate_policy
from flows.progress import Reporter
from flows.records.part_records import PartCollected
from flows.records.plans import plan_from_tree
from flows.records.records import to_tree
from flows.runners.prefect import named_after, retried_task, show_table, shown_progress
from flows.settings import override
from flows.stages.demo import DemoPlan, DemoStages, DemoSummary, describe, run_demo
from flows.tasks.legged import LeggedPlan
from flows.train import train_run

describe_store = retried_task("describe", "describe {store.name}")(describe)


def collect_store(plan: LeggedPlan, store: Path, reporter: Reporter) -> list[PartCollected]:
    """Collect the demo's parts, one task each."""
    return collect_parts(plan, store)  # which reports to the flow's own reporter


TASKS = DemoStages(collect_store, describe_store, train_run, evaluate_policy)


@flow(name="demo", flow_run_name=named_after("demo in", "out"), persist_result=False)
def demo(
    out: forms.Place, settings: forms.Settings = forms.NONE, plan: dict[str, Any] | None = None
) -> DemoSummary:
    """Run the pipeline at small scale: collect, describe, train, evaluate.

    Args:
        out: folder of the run; a run that died is resumed.
        settings: changes to the plan, NAME=VALUE.
        plan: as a demo's plan.json has it; none for the shipped one.

    Returns:
        What `summary.json` holds.
    """
    folder, whole = Path(out), plan_from_tree(DemoPlan, plan or {})
    summary = run_demo(override(whole, settings), folder, shown_progress(), TASKS)
    rows = [{"policy": name, **to_tree(each)} for name, each in summary.policies.items()]
    show_table(f"policies {folder.name}", rows, "closed-loop evaluation")
    return summary
