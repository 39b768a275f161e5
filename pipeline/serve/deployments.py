"""What is deployed: the flows of `flows/`, and two that need this floor's pages."""

from pathlib import Path
from typing import Any

from prefect import Flow, flow

from datasets import open_store
from flows.collect import collect, collect_plan
from flows.compare import compare
from flows.demo import demo
from flows.evaluate import evaluate
from flows.export import export
from flows.forms import NONE, Levels, Place, Settings, Skills, Terrains
from flows.importing import import_data
from flows.progress import Reporter
from flows.records.part_records import store_address
from flows.runners.prefect import (
    last_name,
    named_after,
    retried_task,
    show_file,
    show_markdown,
    shown_progress,
)
from flows.stages.demo import DemoSummary
from flows.train import train
from pipeline.report.card import selected, write_card
from pipeline.report.demo import write_demo_report


@retried_task("card", "card {folder.name}")
def write_store_card(
    store: Path | str, folder: Path, cells: dict[str, Any], where: str, channels: bool
) -> tuple[Path, Path, Path]:
    """Write the card of a store's selection; returns its page, its Markdown and its record."""
    selection, filters = selected(open_store(store), cells, where or None)
    return write_card(selection, folder, filters=filters, channels=channels)


@flow(name="card", flow_run_name=named_after("card of", "store"), persist_result=False)
def card(
    store: Place,
    out: str = "",
    terrains: Terrains = NONE,
    skills: Skills = NONE,
    levels: Levels = NONE,
    where: str = "",
    channels: bool = True,
) -> None:
    """Compute a dataset's statistics and write its card.

    Args:
        store: a folder.
        out: folder of the card; empty for STORE.card.
        terrains: empty for all.
        skills: empty for all.
        levels: of the terrain; empty for all.
        where: a boolean SQL expression over the catalog's columns.
        channels: also read the arrays, for the statistics of every channel.
    """
    cells = {"terrain": terrains or None, "skill": skills or None, "level": levels or None}
    folder, name = Path(out or f"{store}.card"), last_name(store)
    page, markdown, _ = write_store_card(store_address(store), folder, cells, where, channels)
    show_markdown(f"card {name}", markdown.read_text(), "dataset card")
    show_file(f"card page {name}", page, "the card as a page")


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
