"""The pages of an experiment: its store's card, pictures, episodes, and the report."""

from pathlib import Path

from gaitforge.datasets import open_store
from gaitforge.flows.experiments.robustness import claimed_robustness, robustness_stages
from gaitforge.flows.experiments.stages import Claim, Pages, card_of, claimed, experiment_stages
from gaitforge.flows.progress import Reporter
from gaitforge.flows.records.records import write_file
from gaitforge.flows.stages.staging import Stage
from gaitforge.flows.stages.status import ROBUSTNESS, is_experiment
from gaitforge.pipeline.report.card import write_card
from gaitforge.pipeline.report.explorer.page import explorer_of
from gaitforge.pipeline.report.pictures import make_experiment_sheets
from gaitforge.pipeline.report.report import write_report
from gaitforge.pipeline.report.robustness import write_robustness_page
from gaitforge.pipeline.view.page import write_page
from gaitforge.pipeline.view.run_pages import write_evaluation_pages
from gaitforge.pipeline.view.stored import spread_over_returns, stored_show

_SHOWN = 30
"""Most stored episodes on a page."""


def write_store_card(store: Path, reporter: Reporter) -> None:
    """Write the card of an experiment's store, without pictures."""
    write_card(open_store(store).select(), card_of(store).parent, reporter=reporter)


def write_stored_page(store: Path, page: Path, reporter: Reporter) -> None:
    """Write a page that plays stored episodes, and the explorer of all beside it."""
    selection = open_store(store).select()
    write_file(page.with_name("explorer.html"), explorer_of(selection, page.parent).encode())
    try:
        show = stored_show(spread_over_returns(selection, _SHOWN), reporter)
        write_page(show, page)
    except ValueError as error:
        reporter.say(f"no page of episodes: {error}")


def write_experiment_report(out: Path, reporter: Reporter) -> Path:
    """Draw the sheets of an experiment's folder, and write its report."""
    make_experiment_sheets(out, reporter.say)
    if (out / "evaluate" / "expert.json").is_file():
        write_evaluation_pages(out, ["expert"], reporter)
    return write_report(out)


def stages_in(out: Path) -> list[Stage]:
    """The stages of an experiment's folder, robustness included; ValueError without one."""
    if is_experiment(out, ROBUSTNESS):
        return robustness_stages(claimed_robustness(out), out, write_robustness_page)
    return stages_of(claimed(out), out)


def stages_of(claim: Claim, out: Path) -> list[Stage]:
    """An experiment's stages, with its pages."""
    pages = Pages(
        write_store_card, write_stored_page, write_evaluation_pages, write_experiment_report
    )
    return experiment_stages(claim, out, pages)
