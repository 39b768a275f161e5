"""What is deployed: the flows of `flows/`, and two that need this floor's pages."""

from pathlib import Path
from typing import Any

from prefect import Flow, flow

from flows.collect import collect, collect_plan
from flows.compare import compare
from flows.demo import demo
from flows.evaluate import evaluate
from flows.export import export
from flows.forms import NONE, Place, Settings
from flows.importing import import_data
from flows.progress import Reporter
from flows.runners.prefect import (
    last_name,
    named_after,
    retried_task,
    show_file,
    shown_progress,
)
from flows.stages.demo import DemoSummary
from flows.train import train
from pipeline.report.demo import write_demo_report
from pipeline.serve.card import card


@retried_task("report", "report {out.name}")
def report_demo(out: Path, reporter: Reporter) -> Path:
    """Draw the policies' sheets and write the report of a demo's folder."""
    return write_demo_report(out, reporter)


@flow(name="demo-report", flow_run_name=named_after("demo in", "out"), persist_result=False)
def demo_report(
    out: Place, settings: Settings = NONE, plan: dict[str, Any] | None = None
) -> tuple[DemoSummary, Path]:
    """Run the flow demo, then write its report.

    Args:
        out: folder of the run; a run that died is resumed.
        settings: changes to the plan, NAME=VALUE.
        plan: as a demo's plan.json has it; none for the shipped one.

    Returns:
        What `summary.json` holds, and the report.
    """
    summary = demo(out, settings, plan)
    page = report_demo(Path(out), shown_progress())
    show_file(f"report {last_name(out)}", page, "the report of the run")
    return summary, page


_FORMS = (collect, collect_plan, import_data, card, train, evaluate, compare, export)
FLOWS: dict[str, Flow[..., Any]] = {each.name: each for each in (*_FORMS, demo, demo_report)}
"""Everything that is deployed, by name."""
