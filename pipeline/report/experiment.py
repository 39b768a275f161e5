"""The pages of an experiment: its store's card, pictures, episodes, and the report.

Every command of an experiment loads this module, but few write pages, so what these need (above
all matplotlib) is imported by the functions that write them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gaitforge.datasets import open_store
from gaitforge.flows.experiments.claim import Claim
from gaitforge.flows.experiments.experiment_stages import Pages, experiment_stages
from gaitforge.flows.experiments.page_files import card_of
from gaitforge.flows.experiments.staged_plan import plan_class
from gaitforge.flows.progress import Reporter
from gaitforge.flows.stages.stage import Stage
from gaitforge.flows.stages.status import EXPERIMENT, staged_kind
from gaitforge.pipeline.report.added_pages import (
    episode_pages,
    write_evaluation_pages,
    write_stored_page,
)


def write_store_card(store: Path, reporter: Reporter) -> None:
    """Write the card of an experiment's store, without pictures."""
    from gaitforge.pipeline.report.card import write_card

    write_card(open_store(store).select(), card_of(store).parent, reporter=reporter)


def write_experiment_report(out: Path, reporter: Reporter) -> Path:
    """Draw the sheets of an experiment's folder, and write its report."""
    from gaitforge.pipeline.report.pictures import make_experiment_sheets
    from gaitforge.pipeline.report.report import write_report

    make_experiment_sheets(out, reporter.say)
    if (out / "evaluate" / "expert.json").is_file():
        write_evaluation_pages(out, ["expert"], reporter)
    return write_report(out)


def rewrite_report(out: Path, _: Reporter) -> Path:
    """Write the report of an experiment's folder from its files alone; returns its path."""
    from gaitforge.pipeline.report.report import write_report

    return write_report(out)


def shown_beside(out: Path, summary: Mapping[str, Any]) -> dict[str, Any]:
    """What commands show beside an experiment's table: its times, and its sheets as pictures."""
    from gaitforge.pipeline.report.report_files import read_sheets
    from gaitforge.pipeline.report.results import verdict_lines

    lines = [f"all of it in {summary['wall_s']:.0f} s"]
    if summary["dataset"]:
        speed = f"{summary['collect']['steps_per_s']:,.0f} steps/s"
        lines.insert(0, f"collected {summary['dataset']['steps']:,} steps at {speed}")
    sheets = [
        f"### {sheet['policy']}: {sheet['alt']}\n![]({sheet['uri']})"
        for sheet in read_sheets(out)[0]
    ]
    texts = {"pictures": "\n\n".join(sheets)} if sheets else {}
    return {"title": "results", "lines": ("", *lines, *verdict_lines(summary)), "texts": texts}


def stages_in(out: Path) -> list[Stage]:
    """The stages of an experiment's folder, of any kind; ValueError without one."""
    return plan_class(staged_kind(out) or EXPERIMENT).claimed(out).stages(out)


def stages_of(claim: Claim, out: Path) -> list[Stage]:
    """An experiment's stages, with its pages."""
    shown = episode_pages() is not None
    pages = Pages(
        card=write_store_card,
        episodes=write_stored_page if shown else None,
        policies=write_evaluation_pages if shown else None,
        report=write_experiment_report,
    )
    return experiment_stages(claim, out, pages)
