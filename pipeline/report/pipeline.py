"""The pages of a pipeline: its store's card, pictures, episodes, and the report."""

from pathlib import Path

from gaitforge.datasets import open_store
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import read_record
from gaitforge.flows.stages.pipeline.plan import PipelinePlan
from gaitforge.flows.stages.pipeline.stages import Pages, card_of, pipeline_stages
from gaitforge.flows.stages.staging import Stage
from gaitforge.pipeline.report.card import write_card
from gaitforge.pipeline.report.explorer.page import explorer_of
from gaitforge.pipeline.report.pictures import make_run_sheets
from gaitforge.pipeline.report.report import write_report
from gaitforge.pipeline.view.page import write_page
from gaitforge.pipeline.view.run_pages import write_evaluation_pages
from gaitforge.pipeline.view.show import write_file
from gaitforge.pipeline.view.stored import spread_over_returns, stored_show

_SHOWN = 30
"""Stored episodes on a page of them."""


def write_store_card(store: Path, reporter: Reporter) -> None:
    """Write the card of a pipeline's store, without pictures."""
    write_card(open_store(store).select(), card_of(store).parent, reporter=reporter)


def write_stored_page(store: Path, page: Path, reporter: Reporter) -> None:
    """Write a page that plays stored episodes, and the explorer of all beside it."""
    selection = open_store(store).select()
    explorer = explorer_of(selection, page.parent).encode()
    write_file(page.with_name("explorer.html"), explorer)
    try:
        show = stored_show(spread_over_returns(selection, _SHOWN), reporter)
        write_page(show, page)
    except ValueError as error:
        reporter.say(f"no page of episodes: {error}")


def write_run_report(out: Path, reporter: Reporter) -> Path:
    """Draw the sheets, write the pages of episodes and the report of a pipeline's folder."""
    make_run_sheets(out, reporter.say)
    policies = (read_record(out / "summary.json") or {}).get("policies", {})
    write_evaluation_pages(out, [*policies], reporter)
    return write_report(out)


def stages_of(plan: PipelinePlan, out: Path) -> list[Stage]:
    """A pipeline's stages, with its pages."""
    pages = Pages(write_store_card, write_stored_page, write_evaluation_pages, write_run_report)
    return pipeline_stages(plan, out, pages)
